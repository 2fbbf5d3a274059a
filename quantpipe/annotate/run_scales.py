"""Dense layers whose input gets a scale from the samples of each run: which layers `annotate.dynamic` names.

Such a layer stays in float. Inside, its input is rounded to uint8 by the extremes of the run's whole tensor, and
multiplied by an integer weight.

Files of this feature, all `run_scales.py`: `annotate` (which layers), `lowering` (how they are written), `verify`
(checks the written nodes).
"""

from __future__ import annotations

from collections.abc import Sequence

from quantpipe.errors import ConfigError
from quantpipe.graph.view import Graph, Node
from quantpipe.oprules import rule_of
from quantpipe.option_checks import matching
from quantpipe.types import HardwareSpec, Reason, ReasonKind, Topology

WHERE = "annotate.dynamic"


def dynamic_nodes(graph: Graph, spec: HardwareSpec, patterns: Sequence[str]) -> dict[str, Reason]:
    """Return the nodes that patterns name and the device runs with scales of each run, with the reason.

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
    able = {n.name for n in graph.nodes if n.op in spec.dynamic and _is_able(n, graph)}
    able = {name for name in able if _alone(graph.by_name[name], graph, able)}
    found: dict[str, Reason] = {}
    for pattern in patterns:
        ops = " or ".join(spec.dynamic)
        for name in matching(WHERE, pattern, sorted(able), f"{ops} of the model by a constant matrix"):
            found[name] = Reason(ReasonKind.DYNAMIC, f"its input has a scale of each run, by {WHERE} ({pattern})")
    kept = {n.name: found[n.name] for n in graph.nodes if n.name in found and _alone(n, graph, set(found))}
    if shared := [name for name in found if name not in kept]:
        raise ConfigError(
            f"names {shared[0]}, whose weight other nodes read as well; legal are patterns that match all readers of "
            "a weight, or none",
            where=WHERE,
        )
    return kept


def dynamic_note(topology: Topology) -> str | None:
    """Return what scales of each run mean for the results of a model; None without such layers."""
    count = len(topology.dynamic)
    if not count:
        return None
    layers = f"{topology.dynamic[0]}{f' and {count - 1} more layers' if count > 1 else ''}"
    have = "have input scales" if count > 1 else "has an input scale"
    return (
        f"{layers} {have} of the samples of each run ({WHERE}): a sample's result depends on the other samples of its "
        "batch, and on the number of tokens or frames in a run. Steps with a cache do not equal one run over a text"
    )


def _is_able(node: Node, graph: Graph) -> bool:
    """Return whether a node multiplies one float tensor by a constant matrix, and by nothing else."""
    rule = rule_of(node)
    if rule is None or rule.refuse(node, graph) is not None or graph.dtypes.get(node.outputs[0]) != "float32":
        return False
    weight = rule.weight_of(node, graph)
    return weight is not None and len(graph.shapes[weight]) == 2 and len(rule.activations(node, graph)) == 1


def _alone(node: Node, graph: Graph, others: set[str]) -> bool:
    """Return whether nothing but such nodes reads the weight of a node."""
    rule = rule_of(node)
    weight = rule.weight_of(node, graph) if rule is not None else None
    readers = {reader.name for reader, _ in graph.consumers.get(weight or "", ())}
    captured = any(weight in n.captured for n in graph.nodes)
    return readers <= others and not captured and weight not in graph.output_names
