"""Find the places of the patterns of a device's kernels in a model.

The pattern is followed from its last value backwards over the graph's own names: the same ops, operands, constants and
attributes; values that are no results are read inside alone. Larger patterns come first, and a node belongs to one
kernel. (onnxscript's matcher rewrites a model and knows no measured shapes; here nothing is rewritten, and a match must
say which tensor each port is.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.errors import HardwareError
from quantpipe.graph.op_tables import COMMUTES
from quantpipe.graph.view import Graph, Node
from quantpipe.hardware.legality import refusal
from quantpipe.oprules import rule_of
from quantpipe.types import HardwareSpec, OpSignature
from quantpipe.types.kernel import KernelSite, LogicalKernel, PatternCall, PatternStep

Pairs = frozenset[tuple[str, str]]

TOLERANCE = 1e-3
"""How far a constant may be from the pattern's number, relative: exporters round, half precision more."""


@dataclass(frozen=True)
class _Bound:
    """Value -> tensor, and value -> the node that makes it."""

    tensors: Mapping[str, str]
    nodes: Mapping[str, str]


def sites_of(graph: Graph, spec: HardwareSpec) -> tuple[KernelSite, ...]:
    """Return the places in a model where kernels with types of their own match, larger patterns first.

    Raises HardwareError where two patterns of one size both match some node.
    """
    taken: dict[str, KernelSite] = {}
    found: list[KernelSite] = []
    size = {kernel.name: len(kernel.steps) for kernel in spec.kernels}
    ends = _by_op(graph)
    for kernel in sorted((k for k in spec.kernels if k.is_typed), key=lambda k: -len(k.steps)):
        for node in reversed(_ends(kernel, ends)):
            bound = next(_matches(kernel, kernel.steps[-1], node, graph), None)
            if bound is None:
                continue
            site = _site(kernel, bound, graph)
            shared = [taken[n] for n in site.nodes if n in taken]
            for other in shared:
                if other.kernel != kernel.name and size[other.kernel] == len(kernel.steps):
                    nodes = ", ".join(sorted({*site.nodes} & {*other.nodes}))
                    place = f" ({kernel.place})" if kernel.place else ""
                    raise HardwareError(
                        f"kernels.{kernel.name}.pattern and kernels.{other.kernel}.pattern have the same size and both "
                        f"match {nodes}, so it is ambiguous which kernel runs. Legal are patterns of different sizes, "
                        f"or different conditions (when){place}",
                        stage="hardware",
                        where=spec.name,
                        field=f"kernels.{kernel.name}.pattern",
                    )
            if not shared:
                found.append(site)
                taken |= dict.fromkeys(site.nodes, site)
    return tuple(found)


def joins_of(graph: Graph, spec: HardwareSpec) -> Pairs:
    """Return which nodes are one by kernels without types, such as chains of `fuse`: pairs, the second reads the first.

    These kernels state nothing else about their nodes, so a node may belong to several.
    """
    ends = _by_op(graph)
    found = [
        _site(kernel, bound, graph)
        for kernel in spec.kernels
        if not kernel.is_typed
        for node in _ends(kernel, ends)
        for bound in _matches(kernel, kernel.steps[-1], node, graph)
    ]
    return pairs_of(found, graph)


def pairs_of(sites: Sequence[KernelSite], graph: Graph) -> Pairs:
    """Return the pairs of nodes of one site, the second of which reads the first."""
    found = set()
    for site in sites:
        for name in site.nodes:
            readers = {reader.name for t in graph.by_name[name].outputs for reader, _ in graph.consumers.get(t, ())}
            found |= {(name, reader) for reader in readers.intersection(site.nodes)}
    return frozenset(found)


def _by_op(graph: Graph) -> dict[str, list[Node]]:
    found: dict[str, list[Node]] = {}
    for node in graph.nodes:
        found.setdefault(node.op, []).append(node)
    return found


def _ends(kernel: LogicalKernel, by_op: Mapping[str, Sequence[Node]]) -> list[Node]:
    """Return the nodes that a pattern may end in, in graph order."""
    ops = dict.fromkeys(call.op for call in kernel.steps[-1].calls)
    return [node for op in ops for node in by_op.get(op, ())]


def placed(sites: Sequence[KernelSite], graph: Graph, spec: HardwareSpec) -> dict[str, tuple[OpSignature, ...]]:
    """Return a mapping: node of some kernel -> the ways in which that kernel runs it."""
    kernels = {kernel.name: kernel for kernel in spec.kernels}
    return {
        node: kernels[site.kernel].signatures[value][graph.by_name[node].op]
        for site in sites
        for node, value in site.makers
    }


def unmatched(graph: Graph, spec: HardwareSpec) -> Iterator[str]:
    """Yield one sentence for each kernel whose pattern lies nowhere in a model."""
    there = {site.kernel for site in sites_of(graph, spec)} if spec.kernels else set()
    for kernel in spec.kernels:
        if not kernel.is_typed and joins_of(graph, replace(spec, kernels=(kernel,))):
            continue
        if kernel.name not in there and not kernel.chain:
            ops = " -> ".join("|".join(dict.fromkeys(c.op for c in step.calls)) for step in kernel.steps)
            yield f"hardware.kernels.{kernel.name} has no effect: its pattern ({ops}) does not occur in this model"


def _site(kernel: LogicalKernel, bound: _Bound, graph: Graph) -> KernelSite:
    value_of = {node: value for value, node in bound.nodes.items()}
    nodes = tuple(n.name for n in graph.nodes if n.name in value_of)
    makers = tuple((node, value_of[node]) for node in nodes)
    return KernelSite(kernel.name, nodes, tuple(bound.tensors.items()), makers)


def _matches(kernel: LogicalKernel, last: PatternStep, node: Node, graph: Graph) -> Iterator[_Bound]:
    """Yield every way in which the pattern ends in a node."""
    steps = {step.value: step for step in kernel.steps}
    for bound in _step(steps, last, node, graph, bound=_Bound({}, {})):
        for whole in _rest(steps, graph, bound):
            if _is_apart(kernel, whole, graph):
                yield whole


def _rest(steps: Mapping[str, PatternStep], graph: Graph, bound: _Bound) -> Iterator[_Bound]:
    """Yield the match with the steps that the last value does not depend on: further results."""
    step = next((s for s in steps.values() if s.value not in bound.nodes), None)
    if step is None:
        yield bound
        return
    known = [s for s in steps.values() if s.value not in bound.nodes and _known_operands(s, bound)]
    for other in known[:1]:
        readers = {r.name: r for t in _known_operands(other, bound) for r, _ in graph.consumers.get(t, ())}
        for reader in readers.values():
            for found in _step(steps, other, reader, graph, bound=bound):
                yield from _rest(steps, graph, found)


def _known_operands(step: PatternStep, bound: _Bound) -> list[str]:
    names = (a for call in step.calls for a in call.arguments if isinstance(a, str))
    return [bound.tensors[name] for name in names if name in bound.tensors]


def _step(
    steps: Mapping[str, PatternStep], step: PatternStep, node: Node, graph: Graph, *, bound: _Bound
) -> Iterator[_Bound]:
    if step.value in bound.nodes:
        if bound.nodes[step.value] == node.name:
            yield bound
        return
    if node.name in bound.nodes.values() or len([t for t in node.outputs if t]) != 1:
        return
    for call in step.calls:
        if call.op == node.op and _attributes(call, node) and _conditions(step, node, graph):
            made = _Bound({**bound.tensors, step.value: node.outputs[0]}, {**bound.nodes, step.value: node.name})
            for order in _orders(node):
                yield from _operands(steps, call, order, graph, bound=made)


def _orders(node: Node) -> list[tuple[str, ...]]:
    both = node.op in COMMUTES and len(node.inputs) == 2
    return [node.inputs, node.inputs[::-1]] if both else [node.inputs]


def _operands(
    steps: Mapping[str, PatternStep], call: PatternCall, given: Sequence[str], graph: Graph, *, bound: _Bound
) -> Iterator[_Bound]:
    """Yield the match operand by operand; operands that the pattern does not name must be constants."""
    if len(given) < len(call.arguments):
        return
    rest = given[len(call.arguments) :]
    if not call.open and any(tensor and not graph.is_constant(tensor) for tensor in rest):
        return
    ways = [bound]
    for argument, tensor in zip(call.arguments, given, strict=False):
        ways = [found for way in ways for found in _operand(steps, argument, tensor, graph, bound=way)]
    yield from ways


def _operand(
    steps: Mapping[str, PatternStep], argument: str | float, tensor: str, graph: Graph, *, bound: _Bound
) -> Iterator[_Bound]:
    if not isinstance(argument, str):
        if graph.is_constant(tensor) and _is_number(graph.constant(tensor), argument):
            yield bound
    elif argument in bound.tensors:
        if bound.tensors[argument] == tensor:
            yield bound
    elif argument in steps:
        maker = graph.producers.get(tensor)
        if maker is not None:
            yield from _step(steps, steps[argument], maker, graph, bound=bound)
    elif tensor:
        yield _Bound({**bound.tensors, argument: tensor}, bound.nodes)


def _is_number(values: NDArray[Any], number: float) -> bool:
    return bool(values.size and np.allclose(values, number, rtol=TOLERANCE, atol=0))


def _attributes(call: PatternCall, node: Node) -> bool:
    for name, wanted in call.attributes:
        found = node.attr(name)
        found = found.decode() if isinstance(found, bytes) else tuple(found) if isinstance(found, list) else found
        if found != wanted:
            return False
    return True


def _conditions(step: PatternStep, node: Node, graph: Graph) -> bool:
    rule = rule_of(node)
    return rule is not None and refusal(OpSignature((), (), step.when), node, graph, rule) is None


def _is_apart(kernel: LogicalKernel, bound: _Bound, graph: Graph) -> bool:
    """Return whether values that are no results are only read inside."""
    inside = set(bound.nodes.values())
    for value, node in bound.nodes.items():
        tensor = graph.by_name[node].outputs[0]
        readers = {reader.name for reader, _ in graph.consumers.get(tensor, ())}
        if value not in kernel.results and (tensor in graph.output_names or not readers <= inside):
            return False
    return True
