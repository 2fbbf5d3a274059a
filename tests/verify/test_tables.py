"""Tables against definitions: what float32 may round either way is put up with, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from quantpipe.verify.checked_tables import expect_table
from quantpipe.verify.files import Wrong

STEP = np.float32(1 / 65535)


def filled(alpha: float, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """A HardSigmoid of 16 bits as a runtime fills it, in float32; and the codes less their zero point."""
    centred = np.arange(-32768, 32768)
    x = centred.astype(np.float32) * np.float32(scale)
    y = np.clip(np.float32(alpha) * x + np.float32(0.5), np.float32(0), np.float32(1))
    return np.clip(np.rint(y / STEP), 0, 65535).astype(np.int64)[None], centred


SCALES = (0.00039097797707654536, 0.0004496532492339611, 0.00030995954875834286, 9.223032247973606e-05)
"""Of those with a code at which the float32 sum lies on the other side of a half."""


@pytest.mark.parametrize("scale", SCALES)
def test_sums_that_nearly_cancel_may_be_rounded_either_way(scale: float) -> None:
    alpha = float(np.float32(0.2))
    table, centred = filled(alpha, scale)
    function = {"op": "HardSigmoid", "attributes": {"alpha": alpha, "beta": 0.5}, "parameters": []}
    out = (float(STEP), 0, 0, 65535)
    expect_table(table, function, (centred, scale), out, where="h")
    for code in (10000, 30000, 40000):
        other = table.copy()
        other[0, code] += 2 if other[0, code] < 65534 else -2
        with pytest.raises(Wrong, match=f"entry {code} "):
            expect_table(other, function, (centred, scale), out, where="h")
