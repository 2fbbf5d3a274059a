"""Build the topology: the quantized graph without numbers.

Integer nodes become kernels, tensors between them get a form, and tensors that must share a scale become a group. The
inputs are the graph, the hardware, the schema and the node conditions. The result is deterministic: everything follows
the order of the nodes. Ranges that a user gives, or that an op's function has, are known before calibration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from quantpipe.annotate.bits import bounded_group, bounded_weight, ends_of, limited
from quantpipe.annotate.block_choices import with_block
from quantpipe.annotate.cache_operands import with_new_values_apart
from quantpipe.annotate.cache_sites import cache_bits, cache_sites
from quantpipe.annotate.conditions import AnnotateOptions, Conditions, tensor_constraints
from quantpipe.annotate.constraints import WHERE, Constraint, ConstraintKind
from quantpipe.annotate.embedding_table import refuse_overflowing, table_sites, tied, with_tables
from quantpipe.annotate.fixed_range import FixedRange
from quantpipe.annotate.function_ranges import FunctionPins, exact_range, function_pins
from quantpipe.annotate.given import fitted_range
from quantpipe.annotate.given_weights import settled
from quantpipe.annotate.groups import scale_groups, weight_sites
from quantpipe.annotate.half import half_nodes
from quantpipe.annotate.recurrent_loop import edges_of, loop_sites, loop_weights, with_state_bits
from quantpipe.annotate.run_scales import cell_weights, dynamic_cells
from quantpipe.annotate.settle import settle
from quantpipe.annotate.unreached import refuse_unreached
from quantpipe.annotate.weighted import reason_of, weighted
from quantpipe.errors import ConfigError, HardwareError, some_of
from quantpipe.graph.view import Graph
from quantpipe.hardware.legality import integer_signatures
from quantpipe.hardware.storage import Signatures, StorageTypes, weight_only_types
from quantpipe.oprules import OP_RULES, rule_of
from quantpipe.types import (
    DType,
    Edge,
    FloatOn,
    Form,
    Granularity,
    HardwareSpec,
    Kernel,
    OpSignature,
    Range,
    Reason,
    ReasonKind,
    Schema,
    Structure,
    Topology,
)
from quantpipe.types.structure import DEFAULT


def pins_of(
    graph: Graph,
    functions: FunctionPins,
    dtypes: Mapping[str, DType],
    constraints: Mapping[str, Constraint],
    *,
    spec: HardwareSpec,
    schema: Schema,
) -> dict[str, FixedRange]:
    """Return the pin of each stored tensor whose range is known before calibration.

    What a user states comes before what the model gives that was quantized already, and that before an op's function.

    `functions`: the pins of results of functions. `constraints`: what the user states, by tensor. Returns stored tensor
    -> its pin. Raises ConfigError for a uniform constraint that the stored type or schema cannot express.
    """
    found = {**functions.usual, **functions.formed}
    for tensor, dtype in dtypes.items():
        constraint = constraints.get(tensor)
        given = graph.imported.kept_tensors.get(tensor) if graph.imported is not None else None
        if given is not None and constraint is None and tensor not in functions.formed:
            found[tensor], _ = fitted_range(given.grid, dtype, schema, spec.activations.bits)
        if constraint is not None and constraint.kind is ConstraintKind.CALIBRATED:
            found[tensor] = FixedRange(Range(constraint.low, constraint.high), None, WHERE)
        elif constraint is not None and constraint.kind is ConstraintKind.UNIFORM:
            found[tensor] = _uniform(tensor, constraint, dtype, schema)
    return found


def _uniform(tensor: str, constraint: Constraint, dtype: DType, schema: Schema) -> FixedRange:
    if len(constraint.scales) > 1 or len(constraint.zeros) > 1:
        raise ConfigError(
            f"{tensor!r} is given {len(constraint.scales)} scales; an activation has one on every device here, and "
            "weights alone may have one per channel",
            where=WHERE,
        )
    if constraint.dtype is not dtype:
        raise ConfigError(f"{tensor!r} is stored as {dtype} on this hardware, not as {constraint.dtype}", where=WHERE)
    return exact_range(tensor, (constraint.scales[0], constraint.zeros[0]), dtype, schema, where=WHERE)


def in_canonical_order(graph: Graph) -> Graph:
    """Return the same graph with its nodes sorted by (longest path from an input, name).

    This is an execution order.
    """
    depth: dict[str, int] = {}
    ranks = {}
    for node in graph.nodes:
        rank = max((depth.get(t, 0) for t in (*node.inputs, *node.captured)), default=0)
        ranks[node.name] = rank
        depth |= {t: rank + 1 for t in node.outputs if t}
    return replace(graph, nodes=tuple(sorted(graph.nodes, key=lambda n: (ranks[n.name], n.name))))


def analyze(
    graph: Graph, spec: HardwareSpec, schema: Schema, options: AnnotateOptions, *, structure: Structure = DEFAULT
) -> Topology:
    """Build the topology of a structure.

    Raises ConfigError for patterns that match nothing, or, with `strict`, where a known op stays in float.
    """
    graph = in_canonical_order(graph)
    settled_here = settle(graph, spec, options, structure)
    spec, conditions = settled_here.spec, settled_here.conditions
    swallowed, draft = settled_here.swallowed, settled_here.draft
    ways = {k.node: _signatures(graph, spec, k.node) for k in settled_here.kernels}
    own = {**draft.dtypes, **_weight_types(settled_here.kernels, conditions)}
    kernels = with_new_values_apart(graph, spec, settled_here.kernels, ways, stored=own)
    kernels = [_apart(k) if structure.rescales(k.node) else k for k in kernels]
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
    loops = loop_sites(graph, spec, reasons, draft.dtypes)
    reasons |= loops.reasons
    edges += (inside := list(edges_of(graph, loops.sites)))
    draft.dtypes.update(loops.dtypes)
    held = {t.tensor for t in tables} | {e.tensor for e in inside}
    refuse_unreached(graph, kernels, {*draft.dtypes, *held}, reasons, constraints=constraints)
    least = {t: c.bits for t, c in constraints.items() if c.kind is ConstraintKind.ANY}
    stored, weights = _widest(spec, kernels, ways, conditions, stored=draft.dtypes)
    functions = function_pins(graph, kernels, stored, spec=spec, schema=schema, fixed_outputs=options.fixed_outputs)
    pins = pins_of(graph, functions, draft.dtypes, constraints, spec=spec, schema=schema)
    solved = scale_groups(graph, spec, kernels, stored, edges=edges, pins=pins, least=least)
    real = weighted(graph, spec, reasons)
    blocks = [k for k in real if reasons[k.node].kind is not ReasonKind.DYNAMIC]
    weights |= {k.weight: DType.INT8 for k in real if k.weight is not None and k not in blocks}
    weights |= {k.weight: weight_only_types(spec, k.op)[-1] for k in blocks if k.weight is not None}
    reasons |= {k.node: reason_of(spec) for k in blocks}
    granularity = partial(_granularity, structure, schema)
    sites = weight_sites(graph, spec, weights, granularity, kernels=(*kernels, *real), edges=edges, least=least)
    sites += loop_weights(spec, loops.sites, granularity, edges=inside)
    cells = dynamic_cells(graph, reasons)
    sites += cell_weights(spec, schema, cells, granularity, edges=edges)
    sites = tuple(with_block(site, structure) for site in sites)
    most = limited(spec, settled_here.sites)
    held_bits = cache_bits(graph, spec)
    most |= {t: min(bits, most.get(t, bits)) for t, bits in held_bits.items()}
    caches = cache_sites(graph, spec, solved.kernels, solved.groups, reasons=reasons)
    ends = ends_of(graph, spec, kernels)
    holding = [t for table in tables for t in table.nodes] + [k.node for k in real]
    holding += [s.node for s in loops.sites] + [c.node for c in cells]
    groups = tuple(bounded_group(g, most, ends) for g in with_state_bits(solved.groups, loops.sites))
    sites = tuple(bounded_weight(w, most, ends) for w in sites)
    return Topology(
        node_conds=node_conds,
        edge_conds={e.key: node_conds[e.consumer] for e in edges} | {e.key: True for e in inside},
        float_nodes=reasons,
        tables=tuple(tied(tables, sites, graph, spec)),
        kernels=solved.kernels,
        groups=groups,
        weights=tuple(settled(w, graph, spec, schema, stated=constraints.get(w.tensor)) for w in sites),
        constants=constants,
        sites=settled_here.sites,
        brain_floats=frozenset(k.output for k in kernels if _leaves_in(k, conditions) is DType.BFLOAT16),
        caches=caches.sites,
        real_caches=caches.real,
        half_nodes=half_nodes(graph, spec, options.float_type, reasons, held=holding),
        weighted=real,
        cells=cells,
        loops=tuple(replace(s, edges=tuple(e.key for e in inside if e.consumer == s.node)) for s in loops.sites),
        signatures=ways if any(len(found) > 1 or any(s.has_own for s in found) for found in ways.values()) else {},
    )


def _apart(kernel: Kernel) -> Kernel:
    """Return a join by which all operands are rescaled."""
    return replace(kernel, operands=tuple(replace(o, rescaled=True) for o in kernel.operands))


def _leaves_in(kernel: Kernel, conditions: Conditions) -> DType | None:
    """Return the type in which an accumulator leaves as a real value; None where its signature names none."""
    named = [d for d in conditions.integer[kernel.node].outputs if d.is_float]
    return named[0] if kernel.form is Form.RAW and named else None


def _granularity(structure: Structure, schema: Schema, weight: str) -> Granularity:
    """How many scales a weight has: what is decided, else what the schema says."""
    return Granularity(structure.granularity(weight) or schema.weights.granularity)


def _signatures(graph: Graph, spec: HardwareSpec, name: str) -> tuple[OpSignature, ...]:
    """Every way in which the device runs an integer node."""
    node = graph.by_name[name]
    rule = rule_of(node)
    return () if rule is None else integer_signatures(spec, node, graph, rule)


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
    weights = _weight_types(kernels, conditions)
    most = dict.fromkeys(stored, spec.activations.widest) | dict.fromkeys(weights, spec.weights.widest)
    found = StorageTypes(kernels, signatures, {**stored, **weights}).at(most)
    return {t: found[t] for t in stored}, {t: found[t] for t in weights}


def _weight_types(kernels: Sequence[Kernel], conditions: Conditions) -> dict[str, DType]:
    """Weight -> the type that the signature of its first kernel names."""
    found: dict[str, DType] = {}
    for kernel in kernels:
        port = OP_RULES[kernel.op].weight
        if kernel.weight is not None and port is not None:
            found.setdefault(kernel.weight, conditions.integer[kernel.node].input(port))
    return found


def _edges(graph: Graph) -> list[Edge]:
    found = []
    for node in graph.nodes:
        for port, tensor in enumerate(node.inputs):
            if tensor:
                producer = graph.producers.get(tensor)
                found.append(Edge(producer.name if producer else tensor, tensor, node.name, port))
    return found


def _forbid_float(graph: Graph, reasons: dict[str, Reason], spec: HardwareSpec) -> None:
    """A device without a host that computes floats takes no float nodes (`check` lists them all)."""
    real = [n for n in reasons if graph.dtypes.get(graph.by_name[n].outputs[0], "float32") == "float32"]
    if spec.float_on is not FloatOn.NONE or not real:
        return
    listed = some_of([f"{n}: {reasons[n]}" for n in real], 4, "; ")
    raise HardwareError(
        f"hardware.float_on=none, and {len(real)} nodes cannot run in integers: {listed}; legal are a model "
        "without such nodes, or hardware.float_on=cpu",
        stage="annotate",
        where=spec.name,
    )


def _forbid_fallback(graph: Graph, reasons: dict[str, Reason], options: AnnotateOptions) -> None:
    unknown = [n for n, r in reasons.items() if r.kind is ReasonKind.UNKNOWN_OP]
    if options.strict and unknown:
        listed = some_of([f"{n} ({graph.by_name[n].op})" for n in unknown], 8)
        raise ConfigError(
            f"strict=true rejects ops without a rule: {listed}; without strict they stay in float and are listed",
            stage="annotate",
            where="strict",
        )
