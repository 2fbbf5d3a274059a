"""Which nodes run in integers and how, until every kernel reads the types that it names.

`settle` decides node by node, forms kernels with the clamps that they swallow and the accumulators that they pass on,
and begins again where an edge does not agree. Kernels of a device that are patterns of ops run as a whole here.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from quantpipe.annotate.conditions import AnnotateOptions, Conditions, decide
from quantpipe.annotate.edges import accepted, misread
from quantpipe.annotate.fixed_operands import cut_off
from quantpipe.graph.view import Graph, Node
from quantpipe.hardware.matching import joins_of, pairs_of, placed, sites_of
from quantpipe.oprules import Family, rule_of
from quantpipe.types import AddInputs, DType, Form, HardwareSpec, Kernel, Operand, OpSignature, ReasonKind, Structure
from quantpipe.types.kernel import KernelSite


@dataclass
class Draft:
    """Collect facts about the tensors while kernels are formed."""

    forms: dict[str, Form] = field(default_factory=dict)
    dtypes: dict[str, DType] = field(default_factory=dict)
    heads: dict[str, str] = field(default_factory=dict)
    """Stored tensor -> kernel node that makes it."""


@dataclass(frozen=True)
class Settled:
    """Node conditions and kernels that agree on every edge. `spec` knows which nodes lie in kernels of patterns."""

    spec: HardwareSpec
    sites: tuple[KernelSite, ...]
    conditions: Conditions
    swallowed: dict[str, tuple[str, ...]]
    kernels: list[Kernel]
    draft: Draft


def settle(graph: Graph, spec: HardwareSpec, options: AnnotateOptions, structure: Structure) -> Settled:
    """Decide what runs in integers until every kernel reads the types that it names.

    A kernel that is a pattern runs as a whole: where one of its nodes cannot, all of them run by themselves.
    """
    refused: dict[str, dict[OpSignature, str]] = {}
    sites, joined = sites_of(graph, spec), joins_of(graph, spec)
    while True:
        own = replace(spec, placed=placed(sites, graph, spec), joined=joined | pairs_of(sites, graph))
        conditions = decide(graph, own, options, structure, refused=refused)
        swallowed = _swallow(graph, own, conditions)
        draft = Draft()
        kernels = _kernels(graph, own, conditions, swallowed, draft=draft)
        wrong = misread(graph, own, conditions, kernels, dtypes=draft.dtypes)
        wrong = wrong or cut_off(graph, own, conditions, kernels, fixed_outputs=options.fixed_outputs)
        inside = {n for chain in swallowed.values() for n in chain}.union(conditions.integer).difference(wrong)
        whole = tuple(site for site in sites if inside.issuperset(site.nodes))
        if len(whole) < len(sites):
            sites, wrong = whole, {n: w for n, w in wrong.items() if n not in own.placed}
        elif not wrong:
            return Settled(own, sites, conditions, swallowed, kernels, draft)
        for name, signatures in wrong.items():  # each round takes a signature from some node, or a site, so it ends
            refused.setdefault(name, {}).update(signatures)


def _kernels(
    graph: Graph, spec: HardwareSpec, conditions: Conditions, swallowed: dict[str, tuple[str, ...]], *, draft: Draft
) -> list[Kernel]:
    """All integer nodes as kernels, in graph order; facts about the tensors go into `draft`."""
    kernels: list[Kernel] = []
    raw = _fused_into_sums(graph, spec, conditions, swallowed)
    taken = {name for chain in swallowed.values() for name in chain}
    for node in graph.nodes:
        if node.name not in conditions.integer or node.name in taken:
            continue
        kernel = _kernel(node, graph, conditions, swallowed.get(node.name, ()), raw=raw, spec=spec, draft=draft)
        draft.forms[kernel.output] = kernel.form
        draft.heads[kernel.output] = node.name
        kernels.append(kernel)
    return kernels


def _swallow(graph: Graph, spec: HardwareSpec, conditions: Conditions) -> dict[str, tuple[str, ...]]:
    """Head node -> the clamps after it that the device fuses into it."""
    found: dict[str, tuple[str, ...]] = {}
    taken: set[str] = set()
    for node in graph.nodes:
        if node.name not in conditions.integer or node.name in taken:
            continue
        if all(spec.is_wide(d) for d in conditions.integer[node.name].outputs):
            continue  # the clamp acts on stored integers; an accumulator is handed on as it is
        chain: list[str] = []
        last = node
        while (follower := _only_consumer(last, graph)) is not None:
            rule = rule_of(follower)
            reason = conditions.reasons.get(follower.name)
            kept = reason is not None and reason.kind is ReasonKind.KEPT
            if rule is None or rule.family is not Family.CLAMP or kept or rule.refuse(follower, graph):
                break
            if (last.name, follower.name) not in spec.joined:
                break
            chain.append(follower.name)
            last = follower
        if chain:
            found[node.name] = tuple(chain)
            taken.update(chain)
    return found


def _only_consumer(node: Node, graph: Graph) -> Node | None:
    tensor = node.outputs[0]
    readers = graph.consumers.get(tensor, ())
    return readers[0][0] if len(readers) == 1 and tensor not in graph.output_names else None


def _fused_into_sums(
    graph: Graph, spec: HardwareSpec, conditions: Conditions, swallowed: dict[str, tuple[str, ...]]
) -> set[str]:
    """Accumulating nodes whose accumulator goes straight into an addition (the later arm, when both could)."""
    found: set[str] = set()
    sums: set[str] = set()
    for node in reversed(graph.nodes):
        rule = rule_of(node)
        if node.name not in conditions.integer or rule is None or rule.family is not Family.ACCUMULATE:
            continue
        follower = _only_consumer(node, graph)
        if follower is None or node.name in swallowed or follower.name not in conditions.integer:
            continue
        follower_rule = rule_of(follower)
        is_sum = follower_rule is not None and follower_rule.family is Family.SUM
        treatment = conditions.treatment(follower.name, spec)
        one = (node.name, follower.name) in spec.joined and node.name not in spec.placed  # else types of the kernel say
        hands_on = one if treatment is None else treatment is AddInputs.RESIDUAL_ONLY
        if is_sum and hands_on and follower.name not in sums:
            sums.add(follower.name)
            found.add(node.name)
    return found


def _kernel(
    node: Node,
    graph: Graph,
    conditions: Conditions,
    fused: tuple[str, ...],
    *,
    raw: set[str],
    spec: HardwareSpec,
    draft: Draft,
) -> Kernel:
    rule = rule_of(node)
    assert rule is not None  # noqa: S101  (integer nodes have rules; narrows the type)
    signature = conditions.integer[node.name]
    ports = rule.activations(node, graph)
    operands = tuple(_operand(node, p, conditions, len(ports), spec=spec, draft=draft, raw=raw) for p in ports)
    output = graph.by_name[fused[-1]].outputs[0] if fused else node.outputs[0]
    form = _output_form(node, output, graph, operands, conditions=conditions, raw=raw, spec=spec)
    if form is Form.QUANTIZED:
        offered = accepted(signature.outputs, output, graph, spec, conditions=conditions)
        draft.dtypes.setdefault(output, _storage(offered, spec, operands, draft))
    bounds = (float("-inf"), float("inf"))
    clamps = [graph.by_name[f] for f in fused] + ([node] if rule.family is Family.CLAMP else [])
    for clamp in clamps:
        clamp_rule = rule_of(clamp)
        if clamp_rule is not None:
            low, high = clamp_rule.bounds(clamp, graph)
            bounds = (max(bounds[0], low), min(bounds[1], high))
    bias = node.inputs[rule.bias] if rule.bias is not None and rule.bias < len(node.inputs) else ""
    return Kernel(
        node=node.name,
        op=node.op,
        operands=operands,
        output=output,
        form=form,
        weight=rule.weight_of(node, graph),
        bias=bias or None,
        fused=fused,
        bounds=bounds,
    )


def _operand(
    node: Node, port: int, conditions: Conditions, ports: int, *, spec: HardwareSpec, draft: Draft, raw: set[str]
) -> Operand:
    rule = rule_of(node)
    family = None if rule is None else rule.family
    tensor = node.inputs[port]
    wanted = conditions.integer[node.name].input(port)
    produced = draft.forms.get(tensor, Form.FLOAT)
    passes_raw = spec.is_wide(wanted)
    if family is Family.SUM:
        passes_raw = conditions.treatment(node.name, spec) is None or draft.heads.get(tensor) in raw
    if produced is Form.RAW and passes_raw and not (family is Family.MOVE and ports > 1):
        return Operand(port, tensor, Form.RAW)
    if tensor not in draft.dtypes:
        draft.dtypes[tensor] = _storage((wanted,), spec, (), draft)
    return Operand(port, tensor, Form.QUANTIZED)


def _output_form(
    node: Node,
    output: str,
    graph: Graph,
    operands: tuple[Operand, ...],
    *,
    conditions: Conditions,
    raw: set[str],
    spec: HardwareSpec,
) -> Form:
    rule = rule_of(node)
    if rule is not None and rule.family in (Family.MOVE, Family.CLAMP):
        return operands[0].form
    if node.name in raw:
        return Form.RAW
    signature = conditions.integer[node.name]
    narrow = [d for d in signature.outputs if not spec.is_wide(d)]
    if not narrow:
        return Form.RAW
    readers = graph.consumers.get(output, ())
    only_float = all(reader.name not in conditions.integer for reader, _ in readers)
    offers_wide = len(narrow) < len(signature.outputs)
    may_leave = output == node.outputs[0] and output not in conditions.held
    return Form.RAW if only_float and offers_wide and may_leave else Form.QUANTIZED


def _storage(offered: tuple[DType, ...], spec: HardwareSpec, operands: tuple[Operand, ...], draft: Draft) -> DType:
    """Return the type that a tensor is stored in.

    It is the narrow one of the signature, the type of the operand it was moved from, or the default.
    """
    for operand in operands:
        if operand.form is Form.QUANTIZED and all(spec.is_wide(d) for d in offered):
            return draft.dtypes[operand.tensor]
    narrow = [d for d in offered if not spec.is_wide(d)]
    if narrow:
        return narrow[0]
    unsigned = spec.activations.signed is False
    if spec.activations.bits <= 8:
        return DType.UINT8 if unsigned else DType.INT8
    return DType.UINT16 if unsigned else DType.INT16
