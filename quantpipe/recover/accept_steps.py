"""Try the steps of recovery one on top of the other, and keep only those that help.

Each is measured on samples it was not fitted to, which makes an ablation of the method on the model at hand. The
measure is what the outputs lose against the float model's (KL of class scores), without labels. A step that is not kept
leaves nothing; the next one works on what the last kept one left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from types import MappingProxyType

from quantpipe.errors import ArtifactError, DataError, HardwareError
from quantpipe.plan import Overrides
from quantpipe.recover.recovery_cost import PassLimit
from quantpipe.recover.recovery_steps import StepItem
from quantpipe.recover.work import NotApplicable, State
from quantpipe.types import RecoveredLayerRow, StepRow


@dataclass(frozen=True, eq=False)
class RecoveryResult:
    """Hold the overrides of the kept steps (none when no step helped), and the table of steps."""

    overrides: Overrides
    steps: tuple[StepRow, ...]
    layers: tuple[RecoveredLayerRow, ...] = field(default=(), repr=False)
    metrics: Mapping[str, float] = field(default_factory=dict)
    """kl, mse and (with labels) top1 of the result on the samples that judged it; empty when no step was kept."""
    evaluations: int = 0
    """How often the network was measured on samples for it."""


@dataclass(frozen=True)
class StepLoss:
    """Hold the loss of a state, and what decides between two states, which varies less with the samples."""

    loss: float
    compared: float


def accept_steps(
    start: State,
    steps: Sequence[StepItem],
    run: Callable[[StepItem, State], State],
    measure: Callable[[State], StepLoss],
    *,
    kl_target: float = 0.0,
    judges: Mapping[str, Callable[[State], float]] = MappingProxyType({}),
    limit: PassLimit | None = None,
) -> tuple[State, RecoveryResult]:
    """Try the steps in order. `measure` gives the losses of a state, of which lower is better.

    `judges`: step name -> what decides about it in place of `measure`.

    A step that cannot apply, or whose numbers the device or the network cannot express, or that comes upon values which
    have no integers (a float node that divides by what became zero), is not kept; its row has the reason. Where the
    loss is `kl_target` after a walk, steps that would repeat it in other units are left out. So is what exceeds
    `limit` (None: no limit).
    """
    state, best = start, measure(start)
    table: list[StepRow] = []
    spent = 0.0 if limit is None else limit.counts.judgement
    for number, step in enumerate(steps):
        started = time.perf_counter()
        row: StepRow = {"step": step.name, "kl_before": best.loss, "kl_after": None, "kept": False}
        table.append(row)
        if state.walk is not None and best.loss <= kl_target and step.rescales:
            known = f"the loss is {best.loss:.2g}, no more than recover.kl_target={kl_target:g}"
            reason = f"{known}: the walk is not repeated"
            row["seconds"], row["reason"] = 0.0, reason
            continue
        if limit is not None and (beyond := _beyond(limit, spent, state, steps[number:])) is not None:
            row["seconds"], row["reason"], row["limited"] = 0.0, beyond, True
            continue
        try:
            found = run(step, replace(state, note="", curve=()))
            value = measure(found)
        except (HardwareError, NotApplicable, ArtifactError, DataError) as error:
            row["seconds"], row["reason"] = time.perf_counter() - started, str(error)
            continue
        spent += 0.0 if limit is None else step.count(limit.counts, _rows(state))
        helps, note, judge = value.compared < best.compared, found.note, judges.get(step.name)
        if judge is not None:
            before, after = judge(state), judge(found)
            helps, note = after < before, f"{note}, judged with labels: {before:.3g} to {after:.3g}"
        row["kl_after"], row["gain"], row["kept"], row["on"] = value.loss, best.loss - value.loss, helps, note
        row["seconds"] = time.perf_counter() - started
        if found.curve:
            row["curve"] = list(found.curve)
        if not isfinite(value.loss):
            row["reason"] = "its loss is no finite number: outputs are, or differ, beyond what float32 holds"
        if helps:
            best, state = value, found
    return state, RecoveryResult(state.overrides, tuple(table), state.layers)


def _beyond(limit: PassLimit, spent: float, state: State, steps: Sequence[StepItem]) -> str | None:
    """Return why the first of the steps is left out; what it leaves must be enough for the next walk, which gains more.

    A step that cannot apply takes next to nothing and is not counted.
    """
    step, *later = steps
    rows = _rows(state)
    kept = next((other.count(limit.counts, rows) for other in later if other.walks), 0.0) if step.rescales else 0.0
    return limit.lacking(spent + kept, step.count(limit.counts, rows))


def _rows(state: State) -> int | None:
    """Return the rows of the walk that made a state's weights."""
    return None if state.walk is None else state.walk[1]
