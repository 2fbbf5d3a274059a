"""Compare the integers inside loops, which no tensor of the graph shows, with NumPy's integers at each step.

More outputs of a loop show what a product of the realized model reads, its codes, its sums and their float values. The
same holds for a state that is stored for the next step: as it is made, its codes, and their float values. From the
inputs, NumPy computes the others, to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from quantpipe import intmath
from quantpipe.lowering.show_loops import HANDED_ON, STEPS, ShownLoops, ShownProduct, ShownState
from quantpipe.types import QuantPlan

Values = Mapping[str, NDArray[np.generic]]
Doubles = NDArray[np.float64]


def expected_of(
    shown: ShownProduct, plan: QuantPlan, found: Values
) -> Iterator[tuple[str, NDArray[np.float64], NDArray[np.float64]]]:
    """Yield (step, expected, actual) of a product's codes, sums and float values, float64."""
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


def handed_on(shown: ShownState, plan: QuantPlan, found: Values) -> Iterator[tuple[str, Doubles, Doubles]]:
    """Yield (step, expected, actual) of the codes and float values that steps pass to the next step, float64."""
    q = plan.quantizers[shown.tensor]
    made, codes, real = (np.asarray(found[shown.name(step)]) for step in HANDED_ON)
    steps = intmath.round_real(made.astype(np.float32) / np.float32(q.scale)).astype(np.float64)
    yield "codes", np.clip(steps + q.zero_point, q.qmin, q.qmax), codes.astype(np.float64)
    centred = codes.astype(np.int64) - q.zero_point
    yield "real", (centred.astype(np.float32) * np.float32(q.scale)).astype(np.float64), real.astype(np.float64)


def compare_loops(shown: ShownLoops, plan: QuantPlan, found: Values, count: Count) -> None:
    """Count every step of every product and state that differs, under its name and the step's."""
    for product in shown.products:
        for step, wanted, own in expected_of(product, plan, found):
            count(product.name(step), wanted, own)
    for state in shown.states:
        for step, wanted, own in handed_on(state, plan, found):
            count(state.name(step), wanted, own)
