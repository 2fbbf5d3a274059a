"""Which nodes run in integers: the RFC's node conditions, each refusal with its reason.

A node with an integer signature runs in integers, unless it also has a float signature and all its producers are float
(then quantizing would only open an island; a node with weights is worth one), or the user, the hardware file or a
search keeps it in float, or the node itself cannot be expressed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

from quantpipe.annotate.cache_sites import on_paths
from quantpipe.annotate.constraints import WHERE, Constraint, ConstraintKind, constraints_of, read_constraints
from quantpipe.annotate.conversions import fewest_conversions, may_move
from quantpipe.annotate.guards import GUARD, is_guard
from quantpipe.annotate.real_sums import may_be_real, real_sums
from quantpipe.annotate.run_scales import dynamic_nodes
from quantpipe.annotate.tail import ALWAYS, AUTO, NEVER, tail_of
from quantpipe.errors import ConfigError, nearest
from quantpipe.graph.view import Graph, Node
from quantpipe.hardware.legality import choose_signature, takes_float
from quantpipe.oprules import Family, float_reason, rule_of
from quantpipe.oprules.float_ops import OF_TYPES, QUANTIZED, QUANTIZED_OPS
from quantpipe.oprules.positions import angles_of
from quantpipe.oprules.scores import VIEWS
from quantpipe.option_checks import is_integer, matching
from quantpipe.types import AddInputs, FloatType, HardwareSpec, OpSignature, Reason, ReasonKind, Structure
from quantpipe.types.choice_key import ChoiceKind, choice_key
from quantpipe.types.structure import DEFAULT

REALS = ("float16", "bfloat16", "float64")

KINDS = ("auto", "bits", "range", "float", "granularity", "block", "add", "rescale", "edges", "threshold", "estimators")
"""What `annotate.choices` may list; `auto`: the bits that the device gains from, ranges, and forms of
additions in integers. `edges`: each further reader of a tensor may have it at a scale and bits of its own.
`estimators`: `range`, and ranges by other estimators."""

STRUCTURAL = ("float", "granularity", "block", "add", "rescale", "edges")
"""Those that lead to other topologies."""


@dataclass(frozen=True)
class AnnotateOptions:
    """State what a user wants kept in float, what may be searched, and known properties of single tensors.

    `float_nodes` are glob patterns over node names, `float_ops` op types, `only_ops` those op types that alone are
    quantized (empty: all that can be); `min_bits` is the floor of every choice.

    `dynamic` are glob patterns over dense layers whose input gets a scale from each run's samples (run_scales.py).

    `constraints` state things of single tensors (constraints.py); `fixed_outputs` gives functions with a known range
    (Sigmoid, Softmax, Tanh) their usual fixed scale. `threshold_steps` are powers of two by which a range may be scaled
    as part of the search (0 must be among them). `choices` are the kinds of decisions that a search may take.
    `float_type`: what nodes left in float compute in, on devices that have a choice (half.py).
    `float_tail`: whether everything after the last layers stays in float (tail.py). `split_channels`: channels of
    single tensors and weights that become several (split before annotation, `recover/rescale/split_channels.py`).
    """

    min_bits: int = 4
    choices: tuple[str, ...] = ("bits",)
    threshold_steps: tuple[int, ...] = (0,)
    float_nodes: tuple[str, ...] = ()
    float_ops: tuple[str, ...] = ()
    only_ops: tuple[str, ...] = ()
    dynamic: tuple[str, ...] = ()
    skip_first: bool = False
    skip_last: bool = False
    float_tail: str = AUTO
    float_type: str = FloatType.FLOAT32.value
    strict: bool = False
    fixed_outputs: bool = False
    constraints: Mapping[str, Any] | None = None
    split_channels: Mapping[str, Sequence[int]] | None = None

    def __post_init__(self) -> None:
        for name in ("choices", "threshold_steps", "float_nodes", "float_ops", "only_ops", "dynamic"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for kind in self.choices:
            if kind not in KINDS:
                raise ConfigError(
                    f"{kind!r} is no kind of choice{nearest(kind, KINDS)}; legal are {', '.join(KINDS)}",
                    where="annotate.choices",
                )
        if self.float_tail not in (AUTO, ALWAYS, NEVER):
            raise ConfigError(
                f"is {self.float_tail!r}; legal are {AUTO}, {ALWAYS} and {NEVER}", where="annotate.float_tail"
            )
        types = [kind.value for kind in FloatType]
        if self.float_type not in types:
            raise ConfigError(
                f"is {self.float_type!r}{nearest(self.float_type, types)}; legal are {', '.join(types)}",
                where="annotate.float_type",
            )
        if not 2 <= self.min_bits <= 16:
            raise ConfigError(f"min_bits is {self.min_bits}; it must be between 2 and 16", where="annotate.min_bits")
        if 0 not in self.threshold_steps:
            raise ConfigError("0 must be among the steps", where="annotate.threshold_steps")
        if both := sorted({*self.float_ops} & {*self.only_ops}):
            raise ConfigError(
                f"and annotate.only_ops both name {', '.join(both)}. An op type is either kept in float or quantized; "
                "legal are op types in one of the two lists (types that are not in only_ops stay in float anyway)",
                where="annotate.float_ops",
            )
        object.__setattr__(self, "split_channels", _channels(self.split_channels))
        _ = self.stated

    @cached_property
    def stated(self) -> tuple[Constraint, ...]:
        """Return the constraints, read.

        Raises ConfigError for illegal ones.
        """
        return read_constraints(self.constraints or {})


def _channels(given: Any) -> dict[str, tuple[int, ...]]:
    """What `split_channels` says, as channels by tensor.

    Raises ConfigError for other values.
    """
    where = "annotate.split_channels"
    legal = "legal is a mapping of tensors or weights to lists of channels, such as {conv1.out: [3, 7]}, or null"
    if given is not None and not isinstance(given, Mapping):
        raise ConfigError(f"is {given!r}; {legal}", where=where)
    found: dict[str, tuple[int, ...]] = {}
    for name, channels in (given or {}).items():
        listed = isinstance(channels, Sequence) and not isinstance(channels, str) and bool(channels)
        if not listed or not all(is_integer(c, 0) for c in channels):
            raise ConfigError(f"{name} has {channels!r}; {legal}", where=where)
        found[str(name)] = tuple(channels)
    return found


@dataclass(frozen=True)
class Conditions:
    """Hold which nodes run in integers.

    `integer`: node -> its signature. `reasons`: float node -> why. `additions`: addition -> how it takes its operands,
    where that is not the hardware's own way. `held`: tensors whose scale is given, which are therefore stored where
    their node runs in integers.
    """

    integer: dict[str, OpSignature]
    reasons: dict[str, Reason]
    additions: dict[str, AddInputs]
    held: frozenset[str] = frozenset()

    def treatment(self, node: str, spec: HardwareSpec) -> AddInputs | None:
        """Return how an addition takes its operands."""
        return self.additions.get(node, spec.add_inputs)


def decide(
    graph: Graph,
    spec: HardwareSpec,
    options: AnnotateOptions,
    structure: Structure = DEFAULT,
    *,
    refused: Mapping[str, Mapping[OpSignature, str]] = MappingProxyType({}),
) -> Conditions:
    """Decide which nodes run in integers, in execution order.

    `refused`: signatures that nodes cannot have, with the reasons. Returns the signature of each integer node, and why
    each other one stays in float.
    """
    chosen = {
        n.name: Reason(ReasonKind.CHOSEN, f"left in float by the choice {choice_key(ChoiceKind.FLOAT, n.name)}")
        for n in graph.nodes
        if structure.floats(n.name)
    }
    asked = _kept_in_float(graph, options)
    named = {name for name, reason in asked.items() if reason.kind is not ReasonKind.NOT_ASKED}
    dynamic = dynamic_nodes(graph, spec, options.dynamic, without=named)
    kept = _angles(graph) | _skipped(graph, spec) | asked | dynamic | chosen
    additions = {n.name: AddInputs(t) for n in graph.nodes if (t := structure.addition(n.name)) is not None}
    found = Conditions({}, {}, additions, _held(graph, options))
    either: dict[str, OpSignature] = {}
    sums: list[str] = []
    cached = on_paths(graph, spec)

    def stays(node: Node) -> bool:
        rule = None if node.name in kept or _own_reason(node, graph) is not None else rule_of(node)
        return rule is None or choose_signature(spec, node, graph, rule, treatment=None)[0] is None

    for node in graph.nodes:
        reason = kept.get(node.name) or _own_reason(node, graph)
        signature = None
        if reason is None:
            rule = rule_of(node)
            assert rule is not None  # noqa: S101  (checked by _own_reason; narrows the type)
            given = node.name in cached or _given_around(node, graph, found)
            signature, why = choose_signature(
                spec,
                node,
                graph,
                rule,
                treatment=found.treatment(node.name, spec),
                refused=refused.get(node.name, {}),
                given=given,
            )
            reason = Reason(ReasonKind.DEVICE, why)
            if additions.get(node.name) is AddInputs.NONE:
                reason = Reason(
                    ReasonKind.CHOSEN, f"it adds in float by the choice {choice_key(ChoiceKind.ADD, node.name)}"
                )
            heavy = rule.weight_of(node, graph) is not None  # what a device is there for: worth a conversion
            both = not heavy and signature is not None and takes_float(spec, node, graph, rule)
            both = both and not given
            alone = both and not _views_input(node, graph) and _producers_float(node, graph, found)
            if both and signature is not None and may_move(node, graph, not alone):
                either[node.name] = signature
            if both and may_be_real(node) and node.name not in additions:
                sums.append(node.name)
            if alone:
                signature = None
                reason = Reason(ReasonKind.AROUND, "all its producers are in float, and so can it be")
            if signature is not None and not given and is_guard(node, graph, stays):
                signature, reason = None, Reason(ReasonKind.KEPT, GUARD)
        if signature is None:
            found.reasons[node.name] = reason
        else:
            found.integer[node.name] = signature
    makers = {n for n in found.integer if _gives_real(graph.by_name[n], found, spec)}
    for name in real_sums(graph, found.integer, [n for n in sums if n in found.integer], makers=makers, moves=either):
        del found.integer[name]
        why = "only float nodes read it, and its operands are float"
        found.reasons[name] = Reason(ReasonKind.AROUND, why)
    free = {n: n in found.integer for n in either}
    for name, integer in fewest_conversions(graph, found.integer.__contains__, free, makers).items():
        if integer:
            found.integer[name] = either[name]
            del found.reasons[name]
        else:
            del found.integer[name]
            why = "it moves values only, and in float the graph converts fewer tensors"
            found.reasons[name] = Reason(ReasonKind.AROUND, why)
    return found


def _held(graph: Graph, options: AnnotateOptions) -> frozenset[str]:
    """Tensors whose scale is known beforehand: by a statement, or as the file is quantized already."""
    kinds = (ConstraintKind.UNIFORM, ConstraintKind.CALIBRATED)
    stated = {t for t, constraint in tensor_constraints(graph, options).items() if constraint.kind in kinds}
    return frozenset(stated | set(graph.imported.kept_tensors if graph.imported is not None else ()))


def _given_around(node: Node, graph: Graph, found: Conditions) -> bool:
    """Whether a quantized file gives what a node reads and what it makes: there the node is an integer one."""
    rule = rule_of(node)
    if rule is None or graph.imported is None:
        return False
    read = [node.inputs[p] for p in rule.activations(node, graph)]
    return found.held.issuperset((*read, node.outputs[0]))


def _own_reason(node: Node, graph: Graph) -> Reason | None:
    if node.op in QUANTIZED_OPS:
        return Reason(ReasonKind.QUANTIZED, QUANTIZED)
    dtype = graph.dtypes.get(node.outputs[0], "float32")
    if dtype != "float32" and not node.has_body:
        why = f"it computes {dtype}, not real values" if dtype not in REALS else f"it computes in {dtype}"
        return Reason(ReasonKind.TYPE, why)
    rule = rule_of(node)
    if rule is not None:
        refused = rule.refuse(node, graph)
        return None if refused is None else Reason(ReasonKind.NODE, refused)
    reason = float_reason(node)
    read = graph.dtypes.get(node.inputs[0], "float32") if node.inputs else "float32"
    if reason.text == OF_TYPES and read != "float32" and read not in REALS:
        return Reason(ReasonKind.TYPE, f"it converts {read} to float; the result is quantized where it is stored")
    if node.has_body:
        held = ", ".join(f"{op} {count}" for op, count in sorted(node.body_ops.items()))
        return replace(reason, text=f"{reason} (in them: {held})")
    return reason


def _views_input(node: Node, graph: Graph) -> bool:
    """Whether a node gives an input of the model another shape, which is as well quantized before as after."""
    return node.op in VIEWS and node.inputs[0] in {info.name for info in graph.inputs}


def _gives_real(node: Node, found: Conditions, spec: HardwareSpec) -> bool:
    """Whether a node's kernel can pass on floats, or its accumulator, in place of stored integers."""
    rule = rule_of(node)
    wide = any(spec.is_wide(dtype) for dtype in found.integer[node.name].outputs)
    return wide and rule is not None and rule.family is Family.ACCUMULATE


def _producers_float(node: Node, graph: Graph, found: Conditions) -> bool:
    rule = rule_of(node)
    ports = rule.activations(node, graph) if rule else ()
    producers = [graph.producers.get(node.inputs[p]) for p in ports if not graph.is_constant(node.inputs[p])]
    return all(p is None or p.name not in found.integer for p in producers)


def _kept_in_float(graph: Graph, options: AnnotateOptions) -> dict[str, Reason]:
    names = list(graph.by_name)
    kept: dict[str, Reason] = {}
    for pattern in options.float_nodes:
        matches = matching("annotate.float_nodes", pattern, names, "node of the model")
        kept |= dict.fromkeys(matches, _kept_by(f"annotate.float_nodes ({pattern})"))
    _refuse_unknown_ops(graph, options.float_ops, "annotate.float_ops")
    _refuse_unknown_ops(graph, options.only_ops, "annotate.only_ops")
    kept |= {n.name: _kept_by("annotate.float_ops") for n in graph.nodes if n.op in options.float_ops}
    if options.only_ops:
        # Not "kept in float": a clamp that a kernel takes in is a part of that kernel, and none of its own.
        others = {
            n.name: Reason(ReasonKind.NOT_ASKED, f"{n.op} is not among annotate.only_ops")
            for n in graph.nodes
            if n.op not in options.only_ops
        }
        kept = others | kept
    for tensor, constraint in tensor_constraints(graph, options).items():
        if constraint.kind is ConstraintKind.NONE:
            around = [n for n, _ in graph.consumers.get(tensor, ())]
            around += [graph.producers[tensor]] if tensor in graph.producers else []
            kept |= {n.name: _kept_by(f"{WHERE} ({tensor} is real)") for n in around}
    heavy = _accumulating(graph)
    if heavy and options.skip_first:
        kept[heavy[0]] = _kept_by("annotate.skip_first")
    if heavy and options.skip_last:
        kept[heavy[-1]] = _kept_by("annotate.skip_last")
    if options.float_tail == ALWAYS:
        kept |= dict.fromkeys(tail_of(graph), _kept_by("annotate.float_tail"))
    return kept


def _refuse_unknown_ops(graph: Graph, given: Sequence[str], where: str) -> None:
    ops = sorted({n.op for n in graph.nodes})
    for op in given:
        if op not in ops:
            raise ConfigError(f"no node is a {op!r}{nearest(op, ops)}; the model has {', '.join(ops)}", where=where)


def _kept_by(key: str) -> Reason:
    return Reason(ReasonKind.KEPT, f"kept in float by {key}")


def _skipped(graph: Graph, spec: HardwareSpec) -> dict[str, Reason]:
    """What the hardware file leaves in float (`skip`)."""
    kept = {n.name: _kept_by("hardware.skip.ops") for n in graph.nodes if n.op in spec.skip.ops}
    heavy = _accumulating(graph)
    if heavy and spec.skip.first:
        kept[heavy[0]] = _kept_by("hardware.skip.first")
    if heavy and spec.skip.last:
        kept[heavy[-1]] = _kept_by("hardware.skip.last")
    return kept


def _angles(graph: Graph) -> dict[str, Reason]:
    """What would saturate beyond the positions of the samples; a file with scales of its own has decided that."""
    if graph.imported is not None:
        return {}
    why = "it computes angles of positions, and no sample bounds these"
    return dict.fromkeys(angles_of(graph), Reason(ReasonKind.NODE, why))


def tensor_constraints(graph: Graph, options: AnnotateOptions) -> dict[str, Constraint]:
    """Return a mapping: tensor -> what the user states of it."""
    tensors = [i.name for i in graph.inputs] + [t for n in graph.nodes for t in n.outputs if t]
    return constraints_of(options.stated, dict.fromkeys([*tensors, *graph.constant_names()]))


def _accumulating(graph: Graph) -> Sequence[str]:
    return [n.name for n in graph.nodes if (r := rule_of(n)) is not None and r.family is Family.ACCUMULATE]
