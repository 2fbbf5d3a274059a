"""Layers whose input gets a scale from the samples of each run: which layers `annotate.dynamic` names.

Such a layer stays in float. Inside, its input is rounded to uint8 by the extremes of the run's whole tensor, and
multiplied by an integer weight. Recurrent layers round the state of each step as well.

Files of this feature, all `run_scales.py`: `annotate` (which layers), `lowering` (how they are written), `verify`
(checks the written nodes).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from quantpipe.errors import ConfigError
from quantpipe.graph.op_tables import DYNAMIC_CELLS
from quantpipe.graph.view import Graph, Node
from quantpipe.oprules import rule_of
from quantpipe.option_checks import matching
from quantpipe.types import (
    DType,
    DynamicCell,
    Edge,
    Granularity,
    HardwareSpec,
    Reason,
    ReasonKind,
    Schema,
    Symmetry,
    Topology,
    WeightSite,
)

WHERE = "annotate.dynamic"

CELL_WEIGHTS = (1, 2)
"""Ports of a recurrent layer: its weights of the input and of the state."""


def able_nodes(graph: Graph, spec: HardwareSpec) -> list[str]:
    """Return the nodes that the device can run with scales of each run."""
    able = {n.name for n in graph.nodes if n.op in spec.dynamic and _weights(n, graph)}
    captured = {t for n in graph.nodes for t in n.captured}
    return sorted(name for name in able if _alone(graph.by_name[name], graph, able, captured))


def dynamic_nodes(
    graph: Graph, spec: HardwareSpec, patterns: Sequence[str], *, without: Collection[str] = ()
) -> dict[str, Reason]:
    """Return the nodes that patterns name and the device runs with scales of each run, with the reason.

    `without`: nodes that other options keep in float.

    Raises ConfigError where the device has no such kernels, and for a pattern without such a node.
    """
    if not patterns:
        return {}
    if not spec.dynamic:
        raise ConfigError(
            f"names {', '.join(patterns)}, but {spec.name} runs no op with scales computed in the run; legal are [], "
            "or a hardware file with the field `dynamic`, such as ort_cpu",
            where=WHERE,
        )
    able = able_nodes(graph, spec)
    found: dict[str, Reason] = {}
    for pattern in patterns:
        ops = " or ".join(spec.dynamic)
        for name in matching(WHERE, pattern, able, f"{ops} of the model by constant matrices"):
            found[name] = Reason(ReasonKind.DYNAMIC, f"its input has a scale of each run, by {WHERE} ({pattern})")
    found = {name: reason for name, reason in found.items() if name not in without}
    captured = {t for n in graph.nodes for t in n.captured}
    kept = {n.name: found[n.name] for n in graph.nodes if n.name in found and _alone(n, graph, set(found), captured)}
    if shared := [name for name in found if name not in kept]:
        raise ConfigError(
            f"names {shared[0]}, whose weight other nodes read as well; legal are patterns that match all readers of "
            "a weight, or none",
            where=WHERE,
        )
    return kept


def dynamic_cells(graph: Graph, reasons: Mapping[str, Reason]) -> tuple[DynamicCell, ...]:
    """Return the recurrent layers among the nodes with scales of each run.

    `reasons`: float node -> why it is in float.
    """
    asked = (n for n in graph.nodes if n.name in reasons and reasons[n.name].kind is ReasonKind.DYNAMIC)
    return tuple(
        DynamicCell(n.name, n.op, (n.inputs[CELL_WEIGHTS[0]], n.inputs[CELL_WEIGHTS[1]])) for n in asked if _is_cell(n)
    )


def cell_weights(
    spec: HardwareSpec,
    schema: Schema,
    cells: Sequence[DynamicCell],
    granularity: Callable[[str], Granularity],
    *,
    edges: Sequence[Edge],
) -> tuple[WeightSite, ...]:
    """Return the weights of recurrent layers, `[D, 4·H, K]`, with a scale for each row where they have several.

    Both directions share the scales of their rows. onnxruntime needs one zero point of all rows, so asymmetric weights
    have one scale.
    """
    bits = spec.weights.bits_in(DType.INT8)
    symmetric = schema.weights.symmetry is not Symmetry.ASYMMETRIC
    found: dict[str, WeightSite] = {}
    for cell in cells:
        for weight in cell.weights:
            axis = 1 if symmetric and granularity(weight) is Granularity.PER_CHANNEL else None
            keys = tuple(e.key for e in edges if e.tensor == weight)
            found[weight] = WeightSite(weight, (cell.node,), DType.INT8, 1, axis, bits, keys)
    return tuple(found.values())


def dynamic_note(topology: Topology) -> str | None:
    """Return what scales of each run mean for the results of a model; None without such layers."""
    named = (*topology.dynamic, *topology.cell_of)
    count = len(named)
    if not count:
        return None
    layers = f"the layers {named[0]} and {count - 1} more have" if count > 1 else f"the layer {named[0]} has"
    scales = "input scales" if count > 1 else "an input scale"
    return (
        f"{layers} {scales} of the samples of each run ({WHERE}): a sample's result depends on the other samples of "
        "its batch, and on the number of tokens or frames in a run. Steps with a cache do not equal one run over a text"
        f"{_threads(topology)}"
    )


def _threads(topology: Topology) -> str:
    """Return what else the results of recurrent layers depend on; nothing without such layers."""
    if not topology.cells:
        return ""
    return (
        f". onnxruntime gives the states of each thread a scale, so {topology.cells[0].node} computes the compared "
        "numbers with one thread (intra_op_num_threads = 1)"
    )


def _is_cell(node: Node) -> bool:
    return node.op in DYNAMIC_CELLS


def _weights(node: Node, graph: Graph) -> tuple[str, ...]:
    """Return the constants by which a node multiplies float tensors; () where it cannot have scales of each run.

    That is one matrix of a dense layer, which multiplies by nothing else, and two of a recurrent layer.
    """
    rule = rule_of(node)
    made = [t for t in node.outputs if t]
    if any(graph.dtypes.get(t) != "float32" for t in made):
        return ()
    if _is_cell(node):
        found = tuple(node.inputs[port] for port in CELL_WEIGHTS)
        constant = all(graph.is_constant(weight) for weight in found)
        return found if constant and found[0] != found[1] and not node.attr("layout", 0) else ()
    if rule is None or rule.refuse(node, graph) is not None or len(rule.activations(node, graph)) != 1:
        return ()
    weight = rule.weight_of(node, graph)
    return (weight,) if weight is not None and len(graph.shapes[weight]) == 2 else ()


def _alone(node: Node, graph: Graph, others: set[str], captured: set[str]) -> bool:
    """Return whether nothing but such nodes reads the weights of a node; a recurrent layer's belong to it alone.

    `captured`: tensors that bodies read.
    """
    weights = _weights(node, graph)
    readers = {reader.name for weight in weights for reader, _ in graph.consumers.get(weight, ())}
    legal = {node.name} if _is_cell(node) else {name for name in others if not _is_cell(graph.by_name[name])}
    return readers <= legal and captured.isdisjoint(weights) and graph.output_names.isdisjoint(weights)
