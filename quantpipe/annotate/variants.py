"""Structural choices and the topologies they lead to: layers in float, treatments of additions, scales per weight.

One `Topologies` per run. It takes what `analyze` takes, and gives the choices, and for each structure its topology,
made when first asked for and kept.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from cachetools import LRUCache

from quantpipe.annotate.block_choices import block_choices
from quantpipe.annotate.choices import AUTO, Assignment, bits_of, choice_space, clips_of, steps_of
from quantpipe.annotate.conditions import AnnotateOptions, tensor_constraints
from quantpipe.annotate.edge_copies import EDGES, is_copy
from quantpipe.annotate.groups import joins
from quantpipe.annotate.half import half_tensors
from quantpipe.annotate.legal_structures import granularity_choices, refuse_illegal
from quantpipe.annotate.range_choices import ranges_of
from quantpipe.annotate.tail import AUTO as MEASURED
from quantpipe.annotate.tail import NEVER, TAIL, computes, tail_of
from quantpipe.annotate.topology import analyze
from quantpipe.graph.view import Graph, Node
from quantpipe.hardware.gain import Gains
from quantpipe.hardware.legality import takes_float
from quantpipe.oprules import Family, rule_of
from quantpipe.types import (
    AddInputs,
    Choice,
    ChoiceSpace,
    Edge,
    Form,
    HardwareSpec,
    Kernel,
    Schema,
    Structure,
    Topology,
)
from quantpipe.types.choice_key import ChoiceKind, choice_key, is_structural, read_key
from quantpipe.types.hardware_fields import FloatOn
from quantpipe.types.structure import DEFAULT, FLOAT, INTEGER, OWN, SHARED

KEPT = 64
"""Topologies kept; a search stays among few structures for a while."""

ARITHMETIC = (Family.ACCUMULATE, Family.SUM, Family.PRODUCT, Family.AVERAGE, Family.LOOKUP, Family.ROWS, Family.DEVICE)
"""What may be left in float by choice. What only moves or clamps values follows its producers."""


class Topologies:
    """Give all topologies of one graph on one hardware.

    It is pickled without the topologies that it has made.
    """

    def __init__(
        self,
        graph: Graph,
        spec: HardwareSpec,
        schema: Schema,
        options: AnnotateOptions,
        *,
        floatable: Collection[str] = (),
        forms: bool = True,
    ) -> None:
        """Take what `analyze` takes.

        `floatable`: Nodes of `may_float` and `may_host` that may be left in float by choice, whatever
        `annotate.choices` asks for. `forms`: Whether `auto` offers the forms of additions in integers.
        """
        self._given = (graph, spec, schema, options)
        self._floatable, self._forms = frozenset(floatable), forms and AUTO in options.choices
        self._kept: LRUCache[Structure, Topology] = LRUCache(KEPT)

    def __getstate__(self) -> dict[str, Any]:
        given = {"_given": self._given, "_floatable": self._floatable, "_forms": self._forms}
        return {**given, "_kept": LRUCache(KEPT)}

    @property
    def graph(self) -> Graph:
        """Return the graph that all topologies are of."""
        return self._given[0]

    @cached_property
    def base(self) -> Topology:
        """Return the default topology."""
        return self.at(DEFAULT)

    @cached_property
    def reference(self) -> Topology:
        """Return the topology in which the most runs in integers.

        In it every addition takes both operands stored, where it may, and every copy of a tensor for one reader has a
        scale and bits of its own.
        """
        spec = self._given[1]
        sums = spec.add_inputs is not AddInputs.BOTH and AddInputs.BOTH in spec.add_variants
        decided = [*(self._all_sums(AddInputs.BOTH).decided if sums else ()), *self._own_copies]
        return analyze(*self._given, structure=Structure(tuple(decided)))

    @property
    def _own_copies(self) -> list[tuple[str, str]]:
        """Copies of tensors for one reader, each decided to have a scale of its own."""
        graph, spec, *_ = self._given
        copies = [node.name for node in graph.nodes if is_copy(node.name)]
        kernels = joins(analyze(*self._given), spec) if copies else ()
        return [(choice_key(ChoiceKind.RESCALE, k.node), OWN) for k in kernels if is_copy(k.node)]

    @property
    def _rescales(self) -> bool:
        return not {ChoiceKind.RESCALE.value, EDGES}.isdisjoint(self._given[3].choices)

    def at(self, structure: Structure) -> Topology:
        """Return the topology of a structure.

        Raises ConfigError for one that this graph or hardware does not allow.
        """
        found = self._kept.get(structure)
        if found is None:
            graph, spec, *_ = self._given
            refuse_illegal(structure, graph, spec, self.reference, joins={k.node for k in self._joins})
            found = self._marked(analyze(*self._given, structure=structure) if structure else analyze(*self._given))
            self._kept[structure] = found
        return found

    def structure_of(self, assignment: Assignment) -> Structure:
        """Return what an assignment decides that is not the default."""
        chosen = {k: str(v) for k, v in assignment.items() if is_structural(k)}
        if self.tail and (together := chosen.pop(choice_key(ChoiceKind.FLOAT, TAIL), None)) is not None:
            chosen |= {choice_key(ChoiceKind.FLOAT, name): together for name in self.tail}
        return Structure(tuple((k, v) for k, v in chosen.items() if v != self._default(k)))

    def topology_of(self, assignment: Assignment) -> Topology:
        """Return the topology that an assignment leads to."""
        return self.at(self.structure_of(assignment))

    def bits(self, assignment: Assignment) -> dict[str, int]:
        """Return a mapping: tensor -> bits in the topology of an assignment."""
        return bits_of(self.topology_of(assignment), assignment, self.reference)

    def steps(self, assignment: Assignment) -> dict[str, int]:
        """Return a mapping: group key -> threshold step in the topology of an assignment."""
        return steps_of(self.topology_of(assignment), assignment, self.reference)

    def clips(self, assignment: Assignment) -> dict[str, int]:
        """Return a mapping: group key -> percent of the range that is kept, in the topology of an assignment."""
        return clips_of(self.topology_of(assignment), assignment, self.reference)

    def ranges(self, assignment: Assignment) -> dict[str, str]:
        """Return a mapping: key of a group or weight -> option of its range, in the topology of an assignment."""
        return ranges_of(self.topology_of(assignment), assignment, self.reference)

    def space(
        self,
        percents: Mapping[str, Sequence[int]] | None = None,
        ranges: Mapping[str, Sequence[str]] | None = None,
        *,
        every: bool = False,
        raised: bool = False,
    ) -> ChoiceSpace:
        """Return all choices; `percents` and `ranges` as `choice_space` takes them.

        `every`: also bits that the device gains nothing from. `raised`: also those beyond its default.
        """
        graph, spec, _, options = self._given
        gains = Gains(self.reference, graph, spec) if AUTO in options.choices and not every else None
        return choice_space(self.reference, options, percents, self.choices, ranges=ranges, gains=gains, raised=raised)

    @cached_property
    def choices(self) -> tuple[Choice, ...]:
        """Return the structural ones that `annotate.choices` asks for, in graph order by kind."""
        kinds = self._given[3].choices
        found = self._float_choices(ChoiceKind.ADD in kinds) if ChoiceKind.FLOAT in kinds else []
        known = {choice.key for choice in found}
        found += [
            c
            for k in (*self._may_float(), *self._may_host())
            if k.node in self._floatable and (c := self._float_choice(k)).key not in known
        ]
        if ChoiceKind.ADD in kinds:
            found += self._add_choices(self._given[1].add_variants)
        elif self._forms:
            found += self._add_choices(tuple(t for t in self._given[1].add_variants if t is not AddInputs.NONE))
        if ChoiceKind.GRANULARITY in kinds:
            found += granularity_choices(self.reference, *self._given[1:3])
        if self._rescales:
            found += self._rescale_choices()
        if ChoiceKind.BLOCK in kinds:
            found += block_choices(self.reference, self._given[0])
        return tuple(found)

    @cached_property
    def measured(self) -> tuple[str, ...]:
        """Return tensors whose statistics calibration must gather, so that every variant has the ranges it needs."""
        known = dict.fromkeys((*self.base.measured, *self.reference.measured))
        known |= dict.fromkeys(half_tensors(self._given[0], self.base))
        if any(c.kind in (ChoiceKind.FLOAT, ChoiceKind.ADD) for c in self.choices):
            for kernel in self.reference.kernels:
                known |= dict.fromkeys([*(o.tensor for o in kernel.operands), kernel.output, *self._inside(kernel)])
            # What moves values runs on either side, wherever the graph converts less.
            for node in self._given[0].nodes:
                rule = rule_of(node)
                if rule is not None and rule.family is Family.MOVE and self._real(node.outputs[0]):
                    ports = rule.activations(node, self._given[0])
                    known |= dict.fromkeys([*(node.inputs[p] for p in ports), node.outputs[0]])
        if self._rescales:
            known |= dict.fromkeys(t for k in self._joins for t in (*(o.tensor for o in k.operands), k.output))
        return tuple(t for t in known if not self._given[0].is_constant(t))

    def _real(self, tensor: str) -> bool:
        return self._given[0].dtypes.get(tensor, "float32") == "float32"

    def _inside(self, kernel: Kernel) -> list[str]:
        """Return the tensors between a kernel's node and a clamp that it swallows and that cannot run in float.

        They are stored where the node is in float and the clamp is not.
        """
        graph, spec, *_ = self._given
        clamps = [graph.by_name[n] for n in kernel.fused]
        return [c.inputs[0] for c in clamps if (r := rule_of(c)) is not None and not takes_float(spec, c, graph, r)]

    def _float_choices(self, additions_have_their_own: bool) -> list[Choice]:
        graph, spec, *_ = self._given
        found, together = [], [kernel for kernel in self.reference.kernels if kernel.node in self.tail]
        for kernel in self.reference.kernels:
            node = graph.by_name[kernel.node]
            rule = rule_of(node)
            if rule is None or rule.family not in ARITHMETIC or not takes_float(spec, node, graph, rule):
                continue
            if kernel.node in self._never or kernel in together:
                continue
            if additions_have_their_own and rule.family is Family.SUM and AddInputs.NONE in spec.add_variants:
                continue
            if not self._touches_stated(kernel):
                found.append(self._float_choice(kernel))
        if together:
            key, edges = choice_key(ChoiceKind.FLOAT, TAIL), tuple(e for k in together for e in self._edges(k))
            found.append(Choice(key, ChoiceKind.FLOAT, (INTEGER, FLOAT), edges, graded=False))
        return found

    @cached_property
    def tail(self) -> frozenset[str]:
        """Return the nodes after the last layers that go into float as one.

        They are those that run in integers and could run in float; none where a single one of them computes, or the
        user has decided.
        """
        graph, *_, options = self._given
        if options.float_tail != MEASURED or TAIL in graph.by_name:  # a node of that name has the key
            return frozenset()
        found = tail_of(graph) & frozenset(self.may_float)
        return found if sum(computes(graph.by_name[name]) for name in found) > 1 else frozenset()

    @cached_property
    def _never(self) -> frozenset[str]:
        """Return the nodes that the user keeps in integers."""
        graph, *_, options = self._given
        return tail_of(graph) if options.float_tail == NEVER else frozenset()

    @property
    def may_float(self) -> tuple[str, ...]:
        """Return nodes that run in integers and that the device could run in float as well, in execution order.

        Those that only move values are among them, but none whose tensors the user states something of.
        """
        return tuple(kernel.node for kernel in self._may_float())

    @property
    def may_host(self) -> tuple[str, ...]:
        """Return nodes that the device has in integers alone, and that could run where nodes left in float do."""
        return tuple(kernel.node for kernel in self._may_host())

    def _may_float(self) -> list[Kernel]:
        return [kernel for kernel in self._free if self._declared(kernel)]

    def _may_host(self) -> list[Kernel]:
        elsewhere = self._given[1].float_on is not FloatOn.NONE
        return [kernel for kernel in self._free if not self._declared(kernel)] if elsewhere else []

    @cached_property
    def _free(self) -> tuple[Kernel, ...]:
        """The kernels that, and whose tensors, the user states nothing of."""
        free = (kernel for kernel in self.reference.kernels if kernel.node not in self._never)
        return tuple(kernel for kernel in free if not self._touches_stated(kernel))

    def _declared(self, kernel: Kernel) -> bool:
        """Return whether the device has the kernel's node in float, too."""
        graph, spec, *_ = self._given
        node = graph.by_name[kernel.node]
        rule = rule_of(node)
        return rule is not None and takes_float(spec, node, graph, rule)

    def _float_choice(self, kernel: Kernel) -> Choice:
        key = choice_key(ChoiceKind.FLOAT, kernel.node)
        return Choice(key, ChoiceKind.FLOAT, (INTEGER, FLOAT), self._edges(kernel), graded=False)

    def _add_choices(self, forms: tuple[AddInputs, ...]) -> list[Choice]:
        """Return a choice among some forms for each addition that has at least two of them."""
        sums, found, joined = self._sums, list[Choice](), set[str]()
        if len(forms) > 1 and AddInputs.RESIDUAL_ONLY in forms:
            # Each addition for itself: an accumulator that is handed on has one reader.
            handing_on = analyze(*self._given, structure=self._all_sums(AddInputs.RESIDUAL_ONLY))
            joined = {k.node for k in handing_on.kernels if any(o.form is Form.RAW for o in k.operands)}
        for kernel in self.reference.kernels:
            legal = [t for t in forms if t is not AddInputs.RESIDUAL_ONLY or kernel.node in joined]
            if kernel.node in sums and len(legal) > 1 and not self._touches_stated(kernel):
                key, words = choice_key(ChoiceKind.ADD, kernel.node), tuple(t.value for t in legal)
                found.append(Choice(key, ChoiceKind.ADD, words, self._edges(kernel), graded=False))
        return found

    @cached_property
    def _sums(self) -> tuple[str, ...]:
        return tuple(n.name for n in self._given[0].nodes if (r := rule_of(n)) is not None and r.family is Family.SUM)

    def _all_sums(self, treatment: AddInputs) -> Structure:
        return Structure(tuple((choice_key(ChoiceKind.ADD, n), treatment.value) for n in self._sums))

    def _touches_stated(self, kernel: Kernel) -> bool:
        """Return whether a tensor next to the kernel has to stay stored.

        It has to where a user states something of it, or of a tensor that is stored only as long as it is.
        """
        graph = self._given[0]
        nodes = [graph.by_name[n] for n in (kernel.node, *kernel.fused)]
        return bool(self._stated.intersection(t for n in nodes for t in (*n.inputs, *n.outputs)))

    @cached_property
    def _stated(self) -> frozenset[str]:
        graph, _, _, options = self._given
        given = graph.imported
        kept = [] if given is None else [*given.kept_tensors, *(given.kept_weights if given.keep.integers else ())]
        waiting, found = [*tensor_constraints(graph, options), *kept], set()
        while waiting:
            tensor = waiting.pop()
            producer = graph.producers.get(tensor)
            rule = rule_of(producer) if producer is not None and tensor not in found else None
            if producer is not None and rule is not None and rule.family in (Family.MOVE, Family.CLAMP):
                waiting += [producer.inputs[p] for p in rule.activations(producer, graph)]
            found.add(tensor)
        return frozenset(found)

    @cached_property
    def _joins(self) -> tuple[Kernel, ...]:
        """Return the kernels whose operands may be rescaled by choice; kernels of caches are never among them."""
        _, spec, _, options = self._given
        found = [k for k in joins(analyze(*self._given), spec) if not self._touches_stated(k)]
        asked = ChoiceKind.RESCALE in options.choices or EDGES not in options.choices
        return tuple(k for k in found if is_copy(k.node) or asked)

    def _rescale_choices(self) -> list[Choice]:
        keys, kind = {k: choice_key(ChoiceKind.RESCALE, k.node) for k in self._joins}, ChoiceKind.RESCALE
        return [Choice(key, kind, (SHARED, OWN), self._edges(k), graded=False) for k, key in keys.items()]

    def _edges(self, kernel: Kernel) -> tuple[str, ...]:
        node = self._given[0].by_name[kernel.node]
        ports = [*(o.port for o in kernel.operands), *([node.inputs.index(kernel.weight)] if kernel.weight else [])]
        return tuple(self._edge(node, port) for port in ports)

    def _edge(self, node: Node, port: int) -> str:
        tensor = node.inputs[port]
        producer = self._given[0].producers.get(tensor)
        return Edge(producer.name if producer is not None else tensor, tensor, node.name, port).key

    def _default(self, key: str) -> str | None:
        _, spec, schema, _ = self._given
        kind = read.kind if (read := read_key(key)) is not None else None
        if kind in (ChoiceKind.FLOAT, ChoiceKind.RESCALE):
            return INTEGER if kind is ChoiceKind.FLOAT else SHARED
        if kind is ChoiceKind.ADD:
            return spec.add_inputs.value if spec.add_inputs is not None else None
        if kind is ChoiceKind.BLOCK:
            return None if spec.weights.block is None else str(spec.weights.block.size)
        return schema.weights.granularity.value

    def _marked(self, topology: Topology) -> Topology:
        """With what the reference quantizes and this one does not."""
        kept = {e for part in (topology.groups, topology.weights) for site in part for e in site.edges}
        by_name = self._given[0].by_name  # accumulators that are handed on are not stored, but no float either
        kept |= {
            self._edge(by_name[k.node], o.port) for k in topology.kernels for o in k.operands if o.form is Form.RAW
        }
        held, reference = {w.tensor: w.nodes for w in topology.weights}, self.reference
        edges = [e for part in (reference.groups, reference.weights) for site in part for e in site.edges]
        weights = [w.tensor for w in reference.weights if not set(w.nodes).issubset(held.get(w.tensor, ()))]
        lost = tuple(e for e in dict.fromkeys(edges) if e not in kept)
        return replace(topology, float_edges=lost, float_weights=tuple(weights)) if lost or weights else topology
