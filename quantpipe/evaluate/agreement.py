"""Check that the simulated and the realized model compute the same, tensor by tensor, element by element.

Both are run on the same samples, and every value that leaves the realized model is compared with the *simulated* one.
These are all integers, the float values that kernels pass on, and the outputs. Values that depend on integers alone
must be equal. Where a float island feeds integers again, or an output, two correct runs may differ by rounding inside
the island. Such values must be within a stated bound (`roundoff.py`), and those that are not equal are counted apart.
After an island the simulated run continues with the realized integers, so nothing can cascade: every counted difference
is made where it is found.

The realized model is run in several sessions, since users may run it in other sessions than ours. It runs as the file
requests (with every integer as an output, and as it is), and with each session option that changes kernels.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, cast

import onnx_ir as ir

from quantpipe.calibrate.passes import RUN_MB, run_size
from quantpipe.errors import AgreementError
from quantpipe.evaluate.compared_models import RealizedModel, SessionKind, SimulatedModel, Values, value_names
from quantpipe.evaluate.compared_tensors import Watched
from quantpipe.evaluate.spending import UNLIMITED, Spending
from quantpipe.graph.ahead import in_order
from quantpipe.graph.execute import Kernels, Session, concurrency, pairs_saturate, release_memory
from quantpipe.graph.external_weights import is_outside, weight_bytes
from quantpipe.graph.session_options import EXACT_PAIRS, carried, name_of
from quantpipe.graph.view import Graph
from quantpipe.lowering import Rendered
from quantpipe.simulate.simulator import Simulation
from quantpipe.types import AgreementPart, Batch, QuantPlan, Samples, Topology

APART = 1 << 26
"""Bytes of a realized model's weights from which on not all its sessions are open at once: each holds a copy."""

OTHERS = 16
"""Samples that sessions with other options are compared on: they show whether kernels differ, not how often."""

WORSE_DB = 3.0
"""By how much the realized model's SQNR may lie below the simulated one's: rounding in float nodes explains no more."""
ROUNDING_DB = 90.0
"""SQNR above which nodes in float, whose sums may be made in another order, are as good as equal."""

UNOPTIMIZED = "optimization off"

INFORMED = 0.5
"""Share of the time after which only the sessions that decide are compared further."""


@dataclass(frozen=True)
class SessionAgreement:
    """Hold what the realized model computes in sessions of one kind.

    `decides`: the run fails where these differ; others say what to expect where the file is run so. `inexact`: not
    equal, and within the bound of float32's rounding. `refused`: why the runtime takes no such session. `watched`: with
    every integer as an output, which can change what the runtime fuses; else as the file is, with its own outputs.
    `same_as`: the session whose kernels it has on this processor; it is not run again.
    """

    session: str
    decides: bool
    samples: int = 0
    elements: int = 0
    differing: int = 0
    inexact: int = 0
    first_tensor: str | None = None
    refused: str | None = None
    watched: bool = True
    same_as: str | None = None


@dataclass(frozen=True)
class Agreement:
    """The comparison in the sessions that decide.

    `tensors` and `elements` compared (`real_elements` of them are floats). `differing`: elements that rounding does not
    explain. `behind_float`, made by float nodes, and `real_inexact`, made by kernels, differ within the bound of
    float32's rounding. `max_lsb`: the maximum difference in integer steps. `first_tensor`: the first that differs, in
    graph order. `undefined`: the first in which the simulated model has NaN and the realized one a number.
    """

    tensors: int
    elements: int
    differing: int
    behind_float: int
    max_lsb: float
    first_tensor: str | None
    samples: int = 0
    real_elements: int = 0
    real_inexact: int = 0
    sessions: tuple[SessionAgreement, ...] = field(default=())
    undefined: str | None = None

    def as_dict(self) -> AgreementPart:
        """Return the figures as plain data, for the report."""
        return cast("AgreementPart", asdict(self) | {"sessions": [asdict(session) for session in self.sessions]})

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Agreement:
        """Return the agreement that `as_dict` gave as plain data."""
        return cls(**{**found, "sessions": tuple(SessionAgreement(**row) for row in found["sessions"])})

    @property
    def warnings(self) -> list[str]:
        """Return in sentences what other sessions compute differently, where those that decide agree."""
        if self.differing:
            return []
        return [
            f"in {_session(s.session)}, {s.differing:,} of {s.elements:,} elements differ from the searched "
            f"integers, first in {s.first_tensor}; {_deploy(self.sessions)}"
            for s in self.sessions
            if not s.decides and s.differing and s.session != UNOPTIMIZED
        ]


def compare(
    graph: Graph, topology: Topology, plan: QuantPlan, simulation: Simulation, *, realized: Rendered, samples: Samples
) -> Agreement:
    """Run both models on all samples, the realized one in every kind of session; return the comparison.

    Raises AgreementError where the realized model lacks a tensor that the plan lists.
    """
    simulated = SimulatedModel(graph, topology, plan, simulation, realized=realized)
    return compare_with(simulated, realized, samples, session_kinds(realized.model))


def compare_with(
    simulated: SimulatedModel,
    realized: Rendered,
    samples: Samples,
    kinds: Sequence[SessionKind],
    *,
    spending: Spending = UNLIMITED,
) -> Agreement:
    """Compare with a simulated model that is loaded already, in some kinds of sessions.

    When `spending` is over, the rest of the samples is left out.

    Raises AgreementError where the realized model lacks a tensor that the plan lists.
    """
    lacking = [n for n in realized.integers.values() if n not in value_names(realized.model)]
    if lacking:
        raise AgreementError(
            f"the realized model holds no tensor {lacking[0]!r}, which the plan names; it is not the model that this "
            "run wrote: delete it, and the run writes it again",
            stage="evaluate",
        )
    # A large model leaves less memory for tensors: one run is made while the one before is compared.
    large = is_outside(realized.model) or weight_bytes(realized.model) >= APART
    at_once, threads = (1, None) if large else concurrency(len(kinds))
    size = run_size(simulated.graph, simulated.held, RUN_MB // 2 if large else RUN_MB)
    sides: list[RealizedModel] = []
    for group in _together(kinds, realized):
        opened = [RealizedModel(kind, simulated, realized, threads=threads) for kind in group]
        _run_all(simulated, _asked(opened, samples.batches(size), spending), at_once)
        sides += opened
        if len(group) < len(kinds):
            for side in opened:
                side.close()
            release_memory()
    return _summary(simulated.watched, sides)


def _together(kinds: Sequence[SessionKind], realized: Rendered) -> Sequence[Sequence[SessionKind]]:
    """Return the sessions that are open at once: of a large model those that decide, then each of the others."""
    if weight_bytes(realized.model) < APART:
        return [kinds]
    return [[kind for kind in kinds if kind.decides], *([kind] for kind in kinds if not kind.decides)]


def _run_all(simulated: SimulatedModel, asked: Iterable[tuple[RealizedModel, Batch]], at_once: int) -> None:
    """Compare sessions of the realized model, each on the batches that it is asked for."""
    current: Batch | None = None
    with ThreadPoolExecutor(at_once) as pool, closing(in_order(pool, _run, asked, at_once)) as running:
        for (side, batch), coming in running:
            if batch is not current:
                current = batch
                simulated.start(batch.inputs)
            side.compare(coming.result(), len(batch.indices))


def _asked(
    sides: Sequence[RealizedModel], batches: Iterable[Batch], spending: Spending
) -> Iterator[tuple[RealizedModel, Batch]]:
    """Yield each batch with the sessions that are compared on it: all take the first one."""
    done, early = 0, spending.first(INFORMED)
    for batch in batches:
        if done and spending.over():
            return
        for side in sides:
            if side.takes(done) and not (done and not side.kind.decides and early.over()):
                yield side, batch
        done += len(batch.indices)


def _run(asked: tuple[RealizedModel, Batch]) -> Values:
    side, batch = asked
    return side.run(batch.inputs)


def float_warning(agreement: Agreement, simulated: Mapping[str, Any], realized: Mapping[str, Any]) -> str | None:
    """Return a warning where the elements agree and the realized model is still far worse, else None.

    The elements agree on the samples compared, and the metrics `simulated` and `realized` cover all samples.
    """
    lost, found = simulated.get("sqnr_db"), realized.get("sqnr_db")
    best = ROUNDING_DB if lost is None else min(lost, ROUNDING_DB)  # None: no noise at all
    if agreement.differing or found is None or found >= best - WORSE_DB:
        return None
    simply = "without noise" if lost is None else f"{lost:.1f} dB"
    return (
        f"the realized model's SQNR is {found:.1f} dB on all samples, and the simulated model's is {simply}. The "
        f"elements compared on {agreement.samples} samples agree, so a float node differs in the realized model"
    )


def session_kinds(model: ir.Model) -> list[SessionKind]:
    """Return the sessions to compare: those that decide, then each that users may open instead."""
    asked = carried(model)
    name, exact = name_of(asked), EXACT_PAIRS.items() <= asked.items()
    kinds = [
        SessionKind(name, True, partial(Session, options=asked)),
        SessionKind(name, True, partial(Session, options=asked), whole=False),
    ]
    if is_outside(model):  # each session maps all weights again, and runs without rearranged ones
        return kinds
    others: list[tuple[dict[str, str], int | None]] = [({}, None)] if asked else []
    others += [] if exact else [({**asked, **EXACT_PAIRS}, OTHERS)]
    for options, most in others:
        # As it is: integers that are outputs keep the runtime from rewriting int8 to uint8.
        opened = partial(Session, options=options, kernels=Kernels.NATIVE)
        whole, same = bool(options), name if same_kernels(model, asked, options) else None
        kinds.append(SessionKind(name_of(options), False, opened, whole=whole, samples=most, same_as=same))
    off = partial(Session, options=asked, kernels=Kernels.AS_WRITTEN)
    return [*kinds, SessionKind(UNOPTIMIZED, False, off, samples=OTHERS)]


def same_kernels(model: ir.Model, one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Return whether two sessions of a model, by their options, run the same kernels on this processor.

    They do if they differ in `EXACT_PAIRS` alone, and no product of the model is added in saturating pairs: on
    processors with VNNI and on Arm, or without int8 constants.
    """
    if {*one.items()} ^ {*other.items()} != {*EXACT_PAIRS.items()}:
        return False
    return not pairs_saturate() or not _has_signed_weights(model)


def _has_signed_weights(model: ir.Model) -> bool:
    """Return whether a model, or a graph inside it, holds int8 constants."""
    held = [value.const_value for graph in model.graphs() for value in graph.initializers.values()]
    held += [
        attribute.as_tensor()
        for graph in model.graphs()
        for node in graph
        for attribute in node.attributes.values()
        if attribute.type == ir.AttributeType.TENSOR
    ]
    return any(tensor is not None and tensor.dtype == ir.DataType.INT8 for tensor in held)


def _session(name: str) -> str:
    return "a default session" if name == name_of({}) else f"a session with {name}"


def _deploy(sessions: Collection[SessionAgreement]) -> str:
    name = next(s.session for s in sessions if s.decides)
    how = "with onnxruntime's default options" if name == name_of({}) else f"with the session option {name}"
    return f"run the model {how}, in which all agree"


def _summary(what: Watched, sides: Collection[RealizedModel]) -> Agreement:
    """Return one figure of the sessions that decide, and a line for each kind."""
    whole, plain = (side.count for side in sides if side.kind.decides)
    differing = whole.differing or plain.differing
    return Agreement(
        tensors=len(what.integers) + len(what.entries) + max(side.products for side in sides),
        elements=whole.elements,
        differing=differing,
        behind_float=max(whole.behind, plain.behind),
        max_lsb=max(whole.max_lsb, plain.max_lsb),
        first_tensor=whole.first or plain.first,
        samples=min(side.samples for side in sides if side.kind.decides),
        real_elements=whole.real_elements,
        real_inexact=max(whole.inexact, plain.inexact),
        sessions=tuple(_line(side) for side in sides),
        undefined=whole.undefined or plain.undefined,
    )


def _line(side: RealizedModel) -> SessionAgreement:
    count = side.count
    return SessionAgreement(
        session=side.kind.name,
        decides=side.kind.decides,
        samples=side.samples,
        elements=count.elements,
        differing=count.differing,
        inexact=count.behind + count.inexact,
        first_tensor=count.first,
        refused=side.refused,
        watched=side.kind.whole,
        same_as=side.kind.same_as,
    )
