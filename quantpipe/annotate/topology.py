"""Build the topology: the quantized graph without numbers.

Integer nodes become kernels, tensors between them get a form, and tensors that must share a scale become a group. The
inputs are the graph, the hardware, the schema and the node conditions. The result is deterministic: everything follows
the order of the nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from quantpipe.annotate.conditions import AnnotateOptions, Conditions, decide, tensor_constraints
from quantpipe.annotate.constraints import Kind
from quantpipe.annotate.edges import accepted, misread
from quantpipe.annotate.given_weights import settled
from quantpipe.annotate.groups import scale_groups, weight_sites
from quantpipe.annotate.order import in_canonical_order
from quantpipe.annotate.pins import pins_of
from quantpipe.annotate.tables import refuse_overflowing, table_sites, with_tables
from quantpipe.annotate.unreached import refuse_unreached
from quantpipe.errors import ConfigError, HardwareError
from quantpipe.graph.view import Graph, Node
from quantpipe.hardware.legality import integer_signatures
from quantpipe.hardware.matching import placed, sites_of
from quantpipe.hardware.storage import Signatures, StorageTypes
from quantpipe.oprules import OP_RULES, Family, rule_of
from quantpipe.types import (
    DType,
    Edge,
    FloatOn,
    Form,
    Granularity,
    HardwareSpec,
    Kernel,
    Operand,
    OpSignature,
    Reason,
    ReasonKind,
    Schema,
    Structure,
    Topology,
)
from quantpipe.types.kernel import KernelSite
from quantpipe.types.structure import DEFAULT


@dataclass
class _Draft:
    """What is known of the tensors while kernels are formed."""

    forms: dict[str, Form] = field(default_factory=dict)
    dtypes: dict[str, DType] = field(default_factory=dict)
    heads: dict[str, str] = field(default_factory=dict)
    """Stored tensor -> kernel node that makes it."""


def analyze(
    graph: Graph, spec: HardwareSpec, schema: Schema, options: AnnotateOptions, *, structure: Structure = DEFAULT
) -> Topology:
    """Build the topology of a structure.

    Args:
        graph: the clean model.
        spec: the device.
        schema: how ranges become scales.
        options: the settings of annotate.
        structure: what departs from the default topology.

    Returns:
        The topology.

    Raises:
        ConfigError: for patterns that match nothing, or, with `strict`, where a known op stays in float.
    """
    graph = in_canonical_order(graph)
    settled_here = _settle(graph, spec, options, structure)
    spec, conditions = settled_here.spec, settled_here.conditions
    swallowed, kernels, draft = settled_here.swallowed, settled_here.kernels, settled_here.draft
    taken = {name for chain in swallowed.values() for name in chain}
    node_conds = {n.name: n.name in conditions.integer or n.name in taken for n in graph.nodes}
    reasons = {n: r for n, r in conditions.reasons.items() if n not in taken}
    _forbid_fallback(graph, reasons, options)
    _forbid_float(graph, reasons, spec)
    edges = list(_edges(graph))
    constants = tuple(dict.fromkeys(o.tensor for k in kernels for o in k.operands if graph.is_constant(o.tensor)))
    constraints = tensor_constraints(graph, options)
    tables = table_sites(graph, spec, kernels, reasons, edges=edges, constraints=constraints)
    if structure == DEFAULT:
        refuse_overflowing(graph, tables, spec.tables)
    reasons = with_tables(reasons, tables)
    held = {t.tensor for t in tables}
    refuse_unreached(graph, kernels, {*draft.dtypes, *held}, reasons, constraints=constraints)
    least = {t: c.bits for t, c in constraints.items() if c.kind is Kind.ANY}
    pins = pins_of(
        graph,
        kernels,
        draft.dtypes,
        constraints,
        spec=spec,
        schema=schema,
        fixed_outputs=options.fixed_outputs,
    )
    ways = {k.node: _signatures(graph, spec, k.node) for k in kernels}
    stored, weights = _widest(spec, kernels, ways, conditions, stored=draft.dtypes)
    solved = scale_groups(graph, spec, kernels, stored, edges=edges, pins=pins, least=least)
    sites = weight_sites(
        graph,
        spec,
        weights,
        lambda tensor: Granularity(structure.granularity(tensor) or schema.weights.granularity),
        kernels=kernels,
        edges=edges,
        least=least,
    )
    most = _limited(spec, settled_here.sites)
    groups = tuple(replace(g, max_bits=min(g.max_bits, *(most.get(t, 16) for t in g.tensors))) for g in solved.groups)
    sites = tuple(replace(w, max_bits=min(w.max_bits, most.get(w.tensor, 16))) for w in sites)
    return Topology(
        node_conds=node_conds,
        edge_conds={e.key: node_conds[e.consumer] for e in edges},
        float_nodes=reasons,
        tables=tables,
        kernels=solved.kernels,
        groups=groups if most else solved.groups,
        weights=tuple(settled(w, graph, spec, schema, stated=constraints.get(w.tensor)) for w in sites),
        constants=constants,
        sites=settled_here.sites,
        signatures=ways if any(len(found) > 1 or _narrows_alone(found) for found in ways.values()) else {},
    )


@dataclass(frozen=True)
class _Settled:
    """Node conditions and kernels that agree on every edge. `spec` knows which nodes lie in kernels of patterns."""

    spec: HardwareSpec
    sites: tuple[KernelSite, ...]
    conditions: Conditions
    swallowed: dict[str, tuple[str, ...]]
    kernels: list[Kernel]
    draft: _Draft


def _settle(graph: Graph, spec: HardwareSpec, options: AnnotateOptions, structure: Structure) -> _Settled:
    """Decide what runs in integers until every kernel reads the types that it names.

    A kernel that is a pattern runs as a whole: where one of its nodes cannot, all of them run by themselves.
    """
    refused: dict[str, dict[OpSignature, str]] = {}
    sites = sites_of(graph, spec) if spec.kernels else ()
    while True:
        own = replace(spec, placed=placed(sites, graph, spec), joined=_joined(sites, graph)) if sites else spec
        conditions = decide(graph, own, options, structure, refused=refused)
        swallowed = _swallow(graph, own, conditions)
        draft = _Draft()
        kernels = _kernels(graph, own, conditions, swallowed, draft=draft)
        wrong = misread(graph, own, conditions, kernels, dtypes=draft.dtypes)
        inside = {n for chain in swallowed.values() for n in chain}.union(conditions.integer).difference(wrong)
        whole = tuple(site for site in sites if inside.issuperset(site.nodes))
        if len(whole) < len(sites):
            sites, wrong = whole, {n: w for n, w in wrong.items() if n not in own.placed}
        elif not wrong:
            return _Settled(own, sites, conditions, swallowed, kernels, draft)
        for name, signatures in wrong.items():  # each round takes a signature from some node, or a site, so it ends
            refused.setdefault(name, {}).update(signatures)


def _joined(sites: Sequence[KernelSite], graph: Graph) -> frozenset[tuple[str, str]]:
    """Pairs of nodes of one site, the second of which reads the first."""
    found = set()
    for site in sites:
        for name in site.nodes:
            readers = {reader.name for t in graph.by_name[name].outputs for reader, _ in graph.consumers.get(t, ())}
            found |= {(name, reader) for reader in readers.intersection(site.nodes)}
    return frozenset(found)


def _limited(spec: HardwareSpec, sites: Sequence[KernelSite]) -> dict[str, int]:
    """Tensor -> the most bits that the kernels around it allow."""
    bits = {kernel.name: kernel.bits for kernel in spec.kernels}
    found: dict[str, int] = {}
    for site in sites:
        for value, tensor in site.tensors:
            if value in bits[site.kernel]:
                found[tensor] = min(found.get(tensor, 16), bits[site.kernel][value])
    return found


def _signatures(graph: Graph, spec: HardwareSpec, name: str) -> tuple[OpSignature, ...]:
    """Every way in which the device runs an integer node."""
    node = graph.by_name[name]
    rule = rule_of(node)
    return () if rule is None else integer_signatures(spec, node, graph, rule)


def _narrows_alone(signatures: Sequence[OpSignature]) -> bool:
    """Whether a kernel narrows in a way of its own, so that the plan asks for its signature."""
    return any(s.requantize is not None for s in signatures)


def _widest(
    spec: HardwareSpec,
    kernels: Sequence[Kernel],
    signatures: Signatures,
    conditions: Conditions,
    *,
    stored: Mapping[str, DType],
) -> tuple[dict[str, DType], dict[str, DType]]:
    """Return the types in which the most bits fit that the device has, of stored tensors and of weights.

    Where a file lists kernels of 8 and of 16 bits and allows 16, a search begins there and comes down to the others.
    """
    weights: dict[str, DType] = {}
    for kernel in kernels:
        port = OP_RULES[kernel.op].weight
        if kernel.weight is not None and port is not None:
            weights.setdefault(kernel.weight, conditions.integer[kernel.node].input(port))
    most = dict.fromkeys(stored, spec.activations.bits) | dict.fromkeys(weights, spec.weights.bits)
    found = StorageTypes(kernels, signatures, {**stored, **weights}).at(most)
    return {t: found[t] for t in stored}, {t: found[t] for t in weights}


def _kernels(
    graph: Graph, spec: HardwareSpec, conditions: Conditions, swallowed: dict[str, tuple[str, ...]], *, draft: _Draft
) -> list[Kernel]:
    """All integer nodes as kernels, in graph order; what is known of the tensors goes into `draft`."""
    kernels: list[Kernel] = []
    raw = _fused_into_sums(graph, spec, conditions, swallowed, sums=set())
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
    """Head node -> the clamps behind it that the device fuses into it."""
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
            if not spec.fuses(last.op, follower.op) and (last.name, follower.name) not in spec.joined:
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
    graph: Graph,
    spec: HardwareSpec,
    conditions: Conditions,
    swallowed: dict[str, tuple[str, ...]],
    *,
    sums: set[str],
) -> set[str]:
    """Accumulating nodes whose accumulator goes straight into an addition (the later arm, when both could)."""
    found: set[str] = set()
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
        if is_sum and spec.hands_on(node.op, follower.op, treatment) and follower.name not in sums:
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
    draft: _Draft,
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
    node: Node,
    port: int,
    conditions: Conditions,
    ports: int,
    *,
    spec: HardwareSpec,
    draft: _Draft,
    raw: set[str],
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


def _storage(offered: tuple[DType, ...], spec: HardwareSpec, operands: tuple[Operand, ...], draft: _Draft) -> DType:
    """Return the type that a tensor is stored in.

    It is the narrow one of the signature, that of the operand it was moved from, or the default.
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


def _edges(graph: Graph) -> list[Edge]:
    found = []
    for node in graph.nodes:
        for port, tensor in enumerate(node.inputs):
            if tensor:
                producer = graph.producers.get(tensor)
                found.append(Edge(producer.name if producer else tensor, tensor, node.name, port))
    return found


def _forbid_float(graph: Graph, reasons: dict[str, Reason], spec: HardwareSpec) -> None:
    """A device with nothing beside it that computes real numbers takes no float nodes (`check` lists them all)."""
    real = [n for n in reasons if graph.dtypes.get(graph.by_name[n].outputs[0], "float32") == "float32"]
    if spec.float_on is not FloatOn.NONE or not real:
        return
    listed = "; ".join(f"{n}: {reasons[n]}" for n in real[:4])
    more = f"; and {len(real) - 4} more" if len(real) > 4 else ""
    raise HardwareError(
        f"hardware.float_on is none, and {len(real)} nodes cannot run in integers: {listed}{more}; legal are a model "
        "without such nodes, or hardware.float_on=cpu",
        stage="annotate",
        where=spec.name,
    )


def _forbid_fallback(graph: Graph, reasons: dict[str, Reason], options: AnnotateOptions) -> None:
    unknown = [n for n, r in reasons.items() if r.kind is ReasonKind.UNKNOWN_OP]
    if options.strict and unknown:
        listed = ", ".join(f"{n} ({graph.by_name[n].op})" for n in unknown[:8])
        more = f" and {len(unknown) - 8} more" if len(unknown) > 8 else ""
        raise ConfigError(
            f"strict=true refuses ops that no rule knows: {listed}{more}; "
            "without strict they stay in float and are listed",
            stage="annotate",
            where="strict",
        )
