"""Decide whether the forms that a device's own tool chain loads express the device's numbers for a model exactly.

Takes a model and its topology, before any number is known; so what it calls exact is exact whatever the numbers are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from quantpipe.errors import some_of
from quantpipe.graph.view import Graph
from quantpipe.oprules import OP_RULES, Family
from quantpipe.realize import BACKENDS, EXACT, FILE_FORMS, inexact_on
from quantpipe.realize.tflite.litert_kernels import stated_departures
from quantpipe.realize.vta.fits import unfit
from quantpipe.types import Form, HardwareSpec, RequantizeKind, Scales, Topology

NAMED = 3
"""Nodes that a reason names."""


@dataclass(frozen=True)
class LoadedForm:
    """Hold one form that the device's tool chain loads.

    `form`: Its name, as in `realize=NAME`. `written`: This version writes it. `exact`: Its file computes the device's
    numbers, bit by bit; None where this depends on the tool. `why`: The inexact parts, or why this is unknown.
    """

    form: str
    written: bool
    exact: bool | None
    why: str | None


def loaded_forms(graph: Graph, topology: Topology, spec: HardwareSpec) -> tuple[LoadedForm, ...]:
    """Return the facts about each form that the device `loads`."""
    found = []
    for form in spec.loads:
        if form not in BACKENDS and form not in FILE_FORMS:
            found.append(LoadedForm(form, False, None, "this version does not write it"))
            continue
        if form in UNKNOWN:
            found.append(LoadedForm(form, True, None, UNKNOWN[form]))
            continue
        reasons = list(_REASONS.get(form, _none)(graph, topology, spec))
        found.append(LoadedForm(form, True, not reasons, "; ".join(reasons) or None))
    return tuple(found)


def _none(graph: Graph, topology: Topology, spec: HardwareSpec) -> Iterator[str]:
    yield from ()


def _kernels(form: str) -> Callable[[Graph, Topology, HardwareSpec], Iterator[str]]:
    """Yield reasons against forms that onnxruntime's own kernels run."""

    def reasons(graph: Graph, topology: Topology, spec: HardwareSpec) -> Iterator[str]:
        always = inexact_on(spec, form)
        if always is not None:
            yield f"{always.removeprefix('whose ')}"
        handed_on = [k.node for k in topology.kernels if k.form is Form.RAW and k.output not in graph.output_names]
        if handed_on:
            yield f"accumulators are passed on from {some_of(handed_on, NAMED)}"
        wide = [g.key for g in topology.groups if g.dtype.bits > 8]
        if wide:
            yield f"more than 8 bits may be stored in {some_of(wide, NAMED)}, which onnxruntime computes in float32"

    return reasons


def _integers_only(graph: Graph, topology: Topology, spec: HardwareSpec) -> Iterator[str]:
    if topology.float_nodes:
        stay = some_of(list(topology.float_nodes), NAMED)
        yield f"it holds integers only and rejects this model: {stay} stay in float"


def _reals(graph: Graph, topology: Topology, spec: HardwareSpec) -> Iterator[str]:
    """Return reasons against QONNX, whose accumulators are floats."""
    kinds = dict.fromkeys(str(how.kind) for how in spec.requantizations if how.kind is not RequantizeKind.SHIFT)
    if kinds or spec.scales is not Scales.POWER_OF_TWO:
        yield f"float values are between its integers; {spec.name} narrows by {', '.join(kinds) or 'other scales'}"
    functions = [k.node for k in topology.kernels if OP_RULES[k.op].family in (Family.LOOKUP, Family.ROWS)]
    if functions:
        yield f"functions are computed in float: {some_of(functions, NAMED)}"


def _instructions(graph: Graph, topology: Topology, spec: HardwareSpec) -> Iterator[str]:
    """Yield reasons against VTA's instruction streams: inexpressible ops, or layers too large for the buffers."""
    found = list(unfit(graph, topology))
    if found:
        node, why = found[0]
        yield f"it rejects this model: {some_of([name for name, _ in found], NAMED)} ({node}: {why})"


def _litert(graph: Graph, topology: Topology, spec: HardwareSpec) -> Iterator[str]:
    found = list(stated_departures(topology, spec))
    if found:
        yield f"LiteRT's kernels round otherwise: {some_of(found, NAMED)}"


_REASONS: Mapping[str, Callable[[Graph, Topology, HardwareSpec], Iterator[str]]] = {
    "qdq": _kernels("qdq"),
    "qoperator": _kernels("qoperator"),
    EXACT: _none,
    "c": _integers_only,
    "qonnx": _reals,
    "vta": _instructions,
    "tflite": _litert,
    "tflite_integer_io": _litert,
}
UNKNOWN = {"sidecars": "only scales and zero points: the tool has its own arithmetic"}
"""Forms whose arithmetic is no part of them."""
