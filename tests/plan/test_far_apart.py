"""Operands whose scales lie very far apart, as where a mask of -3e38 is quantized with the scores that it is for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from quantpipe.errors import HardwareError
from quantpipe.verify import verify_folder
from tests.ops.line import Net, line
from tests.verify.folders import write


def net() -> Net:
    made = Net(0)
    x = made.input(None, 3, 5, 5)
    far = made.node("Mul", made.conv(x, 3, 4), made.constant(np.float32(1e30)))
    scores = made.node("Add", made.conv(x, 3, 4), far, name="sum")
    made.output(made.node("Softmax", scores, axis=1, name="shares"))
    return made


@pytest.mark.parametrize("spec", ["hago_sample", "vta_mul", "esp32p4"])
def test_the_lesser_operand_leaves_nothing(spec: str, tmp_path: Path) -> None:
    made = line(net(), spec)
    plan = made.plan()
    assert min(t.shift for t in plan.kernels["sum"].terms) < -64  # type: ignore[union-attr]
    assert made.agree(plan, "integer").differing == 0
    assert verify_folder(write(made, plan, "integer", tmp_path / "run")).wrong is None


@pytest.mark.parametrize("spec", ["tflite_16x8", "npu_w8a16"])
def test_a_multiplier_beyond_all_is_named_with_its_kernel(spec: str) -> None:
    with pytest.raises(HardwareError, match=r"shares: .* is no requantize multiplier.*float_nodes=\[shares\]"):
        line(net(), spec).plan()
