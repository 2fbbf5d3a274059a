"""Find ops by which values of very different size meet in one tensor."""

from __future__ import annotations

ADDING = ("Add", "Sub", "Sum")
"""Ops that lay a mask over values by adding a sentinel to some of them."""

SELECTING = ("Where", "Max", "Min")
"""Ops that put a sentinel in the place of values."""

JOINING = ("Concat",)
"""Ops whose result holds all values of each operand."""

WRITING = ("ScatterND", "ScatterElements", "TensorScatter")
"""Ops whose result holds the values of their first operand, with others in some places."""

OF_SHAPES = ("Shape", "Size")
"""Ops whose result depends on the shape of what they read, not on its values."""
