"""The integer products inside of loops, which no tensor of the graph shows: each step of them beside NumPy's integers.

What a product of the realized model reads, its codes, its sums and what they come to are shown by more outputs of its
loop. From what it reads, NumPy says what the others are, to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from quantpipe import intmath
from quantpipe.lowering.show_loops import STEPS, ShownProduct
from quantpipe.types import QuantPlan

Values = Mapping[str, NDArray[np.generic]]


def expected_of(
    shown: ShownProduct, plan: QuantPlan, found: Values
) -> Iterator[tuple[str, NDArray[np.float64], NDArray[np.float64]]]:
    """Yield (step, what it has to be, what it is) of a product's codes, sums and real numbers, float64.

    Args:
        shown: the product.
        plan: every number.
        found: what the realized model shows.
    """
    product, q = shown.product, plan.quantizers[shown.tensor]
    state, codes, sums, real = (np.asarray(found[shown.name(step)]) for step in STEPS)
    steps = intmath.round_real(state.astype(np.float32) / np.float32(q.scale)).astype(np.float64)
    wanted = np.clip(steps + q.zero_point, q.qmin, q.qmax)
    whole = codes.dtype.kind == "f"  # carried by floats, zero points are off already
    yield "codes", wanted, codes.astype(np.float64) + (q.zero_point if whole else 0)
    centred = codes.astype(np.int64) - (0 if whole else q.zero_point)
    made = (centred @ plan.weights[product.weight].centred().astype(np.int64)).astype(np.float64)
    yield "sums", made, sums.astype(np.float64)
    scaled = sums.astype(np.float32) * product.scale
    yield "real", scaled.astype(np.float64), real.astype(np.float64)


Count = Callable[[str, NDArray[np.float64], NDArray[np.float64]], None]


def compare_products(shown: list[ShownProduct], plan: QuantPlan, found: Values, count: Count) -> None:
    """Count every step of every product that differs, under the product's name and the step's."""
    for one in shown:
        for step, wanted, own in expected_of(one, plan, found):
            count(one.name(step), wanted, own)
