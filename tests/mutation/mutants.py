"""Realized models with one number changed: every constant of the model in turn, one element each.

A mutant is *moved* where an output of the plain model differs, in any bit, from the unchanged model's on the samples.
Each moved mutant has to be found by the comparison with the simulated model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from quantpipe.errors import QuantpipeError
from quantpipe.evaluate.agreement import compare_with, session_kinds
from quantpipe.evaluate.compared_models import SimulatedModel
from quantpipe.lowering import Rendered
from quantpipe.types import QuantPlan
from tests.ops.line import Line

SCALE = np.float32(1 + 2.0**-7)
"""What a real number of a kernel is multiplied by."""
WEIGHT = np.float32(2)
"""What a real constant of a node in float is multiplied by: of a smaller change, rounding may explain what it moves."""
TRIES = 3
"""Elements of a constant that are changed, one at a time, until an output moves."""


@dataclass(frozen=True)
class Mutant:
    """One changed element, whether an output moved, and whether the comparison found it."""

    constant: str
    index: tuple[int, ...]
    moved: bool
    found: bool

    @property
    def missed(self) -> bool:
        return self.moved and not self.found


def mutants(made: Line, plan: QuantPlan, backend: str, seed: int = 0) -> Iterator[Mutant]:
    """Every constant of the realized model, changed in one element, up to `TRIES` until an output moves."""
    rng = np.random.default_rng(seed)
    realized = made.realize(plan, backend)
    simulated = SimulatedModel(made.graph, made.topology, plan, made.simulate(plan), realized=realized)
    kinds = [kind for kind in session_kinds(realized.model) if kind.decides]
    assert compare_with(simulated, realized, made.samples, kinds).differing == 0, "the unchanged model"
    before = _outputs(made, realized)
    assert before is not None
    for name, value in realized.model.graph.initializers.items():
        kept = value.const_value
        assert kept is not None
        array = np.array(kept.numpy())
        tried = rng.permutation(array.size)[:TRIES]
        for attempt, flat in enumerate(tried):
            index = tuple(int(i) for i in np.unravel_index(flat, array.shape))
            factor = WEIGHT if made.graph.is_constant(name) else SCALE
            value.const_value = _tensor(_changed(array, index, factor), kept.dtype, name)
            after = _outputs(made, realized)
            moved = after is None or any(not np.array_equal(after[o], before[o], equal_nan=True) for o in before)
            if moved or attempt == len(tried) - 1:
                yield Mutant(name, index, moved, after is None or _found(simulated, realized, made, kinds))
                break
        value.const_value = kept


def tally(found: Counter[str], mutant: Mutant) -> None:
    """Count a mutant."""
    found["mutants"] += 1
    found["moved"] += mutant.moved
    found["found"] += mutant.moved and mutant.found
    found["missed"] += mutant.missed
    found["inside"] += mutant.found and not mutant.moved


def _changed(array: np.ndarray, index: tuple[int, ...], factor: np.float32) -> np.ndarray:
    changed = array.copy()
    old = array[index]
    if array.dtype == bool:
        changed[index] = ~old
    elif array.dtype.kind in "iu":
        changed[index] = old - 1 if old == np.iinfo(array.dtype).max else old + 1
    else:
        changed[index] = old * factor if old and np.isfinite(old) else 1
    return changed


def _tensor(array: np.ndarray, dtype: ir.DataType, name: str) -> ir.Tensor:
    return ir.Tensor(array, dtype=dtype, name=name)


def _outputs(made: Line, realized: Rendered) -> dict[str, np.ndarray] | None:
    """All outputs of the plain model; None where the runtime refuses it."""
    try:
        return made.outputs(realized.model)
    except QuantpipeError:
        return None


def _found(simulated: SimulatedModel, realized: Rendered, made: Line, kinds: list) -> bool:
    try:
        return compare_with(simulated, realized, made.samples, kinds).differing > 0
    except QuantpipeError:
        return True
