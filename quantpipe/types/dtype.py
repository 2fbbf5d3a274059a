"""Integer and float storage types, by the names that hardware files use."""

from __future__ import annotations

from enum import StrEnum
from functools import cached_property

import numpy as np
from numpy.typing import DTypeLike


class DType(StrEnum):
    """Name a storage type; `bits` includes the sign bit."""

    INT2 = "int2"
    UINT2 = "uint2"
    INT4 = "int4"
    UINT4 = "uint4"
    INT8 = "int8"
    UINT8 = "uint8"
    INT16 = "int16"
    UINT16 = "uint16"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"

    @property
    def is_float(self) -> bool:
        """Return whether it is a float type."""
        return self in (DType.FLOAT32, DType.BFLOAT16)

    @property
    def signed(self) -> bool:
        """Return whether the type holds negative values."""
        return not self.value.startswith("u")

    @cached_property
    def bits(self) -> int:
        """Return the width of the type in bits, the sign bit included."""
        return int("".join(c for c in self.value if c.isdigit()))

    @property
    def qmin(self) -> int:
        """Return the minimum value of the storage type."""
        return -(1 << (self.bits - 1)) if self.signed else 0

    @property
    def qmax(self) -> int:
        """Return the maximum value of the storage type."""
        return (1 << (self.bits - 1)) - 1 if self.signed else (1 << self.bits) - 1

    @property
    def numpy(self) -> DTypeLike:
        """Return the NumPy type that holds it (values of 2 and 4 bits live in 8-bit arrays)."""
        if self.bits < 8:
            return np.dtype("int8" if self.signed else "uint8")
        return np.dtype(self.value)
