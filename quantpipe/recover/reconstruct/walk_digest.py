"""Name the solved layers of a walk, so that an interrupted one continues with them.

A layer's name is a digest of all that its numbers follow from: options, samples, seed, scales, and the layers before
it. So a file can only be found by a walk that would make the same numbers, in whatever step of recovery it belongs to.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.artifacts.checkpoint import Arrays
from quantpipe.types import QuantPlan


class WalkDigest:
    """Hold the digest of a walk so far."""

    def __init__(self, plan: QuantPlan, *settings: Any) -> None:
        self._digest = hashlib.blake2b(repr(settings).encode(), digest_size=16)
        for name, q in plan.quantizers.items():
            self._digest.update(repr((name, float(q.scale), q.zero_point, q.qmin, q.qmax, q.dtype)).encode())

    def key(self, name: str, *arrays: NDArray[Any] | None) -> str:
        """Return the key of the next layer, made of its node and the arrays that its numbers are made from."""
        self._digest.update(name.encode())
        self._add(*arrays)
        return self._digest.hexdigest()

    def solved(self, layer: Arrays) -> None:
        """Include the layer's numbers, which all later ones follow from."""
        self._add(*layer.values())

    def _add(self, *arrays: NDArray[Any] | None) -> None:
        for array in arrays:
            if array is not None:
                self._digest.update(repr((array.dtype.str, array.shape)).encode())
                self._digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
