"""Propose changes worth measuring: for a run's worst tensors and weights, and for the whole run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from quantpipe.annotate.limits import ChoiceLimits
from quantpipe.calibrate.estimators import Estimator, MaxRange, Percentile
from quantpipe.errors import ConfigError
from quantpipe.explain.advice import Change, constraints_with, with_annotate
from quantpipe.explain.override_text import override, patterns
from quantpipe.pipeline.context import RunContext
from quantpipe.pipeline.explain_settings import TRAINING, ShippedOptions
from quantpipe.types import Granularity, Strategy, TensorStats, Topology
from quantpipe.types.choice_key import ChoiceKind, choice_key

WIDE = 16
"""Bits that are tried where a stored tensor has fewer, and the device may have them."""

OTHER_RANGES: Mapping[str, Estimator] = {"max_range": MaxRange(), "percentile": Percentile()}
"""Of a single tensor: everything that calibration saw, or all but its rarest values."""

FEWEST = 4
"""Bits of a weight, at least."""

ALIKE = 0.01
"""Ranges whose ends differ by less, as a share of the greater one, are the same."""


MOST_STATED = 6
"""Tensors of one role whose ranges are stated one by one: those that cost most."""


@dataclass(frozen=True, eq=False)
class Culprit:
    """Tensors, or weights with their biases, at the same place of repeated blocks. `loss`: the sum of theirs alone."""

    role: str
    members: tuple[str, ...]
    is_weight: bool
    loss: float


@dataclass(frozen=True, eq=False)
class ChangeProposals:
    """The changes of one run.

    `strategy` is what it chose, `topology` what runs in integers with that, `statistics` what other ranges follow from.
    """

    context: RunContext
    strategy: Strategy
    topology: Topology
    statistics: Mapping[str, TensorStats]
    overflowed: Collection[str] = ()
    """Results whose sums overflow."""
    outliers: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Tensor or weight -> channels worth a copy, as often as they are."""

    def of(self, culprit: Culprit) -> Iterator[Change]:
        """Return possible remedies for a culprit."""
        yield from self._in_float(culprit)
        yield from self._split(culprit)
        if culprit.is_weight:
            yield from self._weights(culprit)
            return
        yield from self._fewer(culprit)
        yield from self._wider(culprit)
        for name, estimator in OTHER_RANGES.items():
            yield from self._range(culprit, name, estimator)

    def of_all(self, shipped: ShippedOptions, *, recovered: bool) -> Iterator[Change]:
        """Return possible remedies for the whole run."""
        settings = self.context.settings
        for name, (estimator, method) in shipped.thresholds.items():
            if (repr(estimator), method) != (repr(settings.estimator), settings.weight_method):
                other = replace(settings, estimator=estimator, weight_method=method)
                yield Change(
                    "the whole run", (), f"ranges by {name}", (override("threshold", name),), other, anew=True
                )  # fmt: skip
        if shipped.recover is not None and not recovered:
            words, text = "better weights and biases", (override("recover", "default"),)
            yield Change("the whole run", (), words, text, settings, recover=shipped.recover)
        if shipped.train is not None and not settings.train.active:
            words = f"training, in a trial of {shipped.train.epochs} epochs"
            trained = replace(settings, train=shipped.train)
            text = (override("train", TRAINING),)
            yield Change("the whole run", (), words, text, trained, train=shipped.train)
        if settings.profile is not None:
            other = replace(settings, profile=None)
            words = "statistics of the run's own samples"
            yield Change("the whole run", (), words, (override("profile.load", None),), other, anew=True)
        yield from self._back_in_integers()
        if settings.limits.fix:
            other = replace(settings, limits=replace(settings.limits, fix={}))
            yield Change("the whole run", (), "no choice fixed", (override("choices.fix", None),), other, anew=True)

    def _back_in_integers(self) -> Iterator[Change]:
        """Yield each pattern of nodes that the user keeps in float, and each op: maybe only the cost of it remains."""
        settings, graph = self.context.settings, self.context.graph
        kept = settings.annotate
        for pattern in kept.float_nodes:
            nodes = [node.name for node in graph.nodes if fnmatchcase(node.name, pattern)]
            left = tuple(one for one in kept.float_nodes if one != pattern)
            role = nodes[0] if len(nodes) == 1 else f"{len(nodes)} nodes {pattern}"
            text = (override("annotate.float_nodes", list(left)),)
            yield Change(role, (), f"{pattern} back in integers", text, with_annotate(settings, float_nodes=left))
        for op in kept.float_ops:
            left = tuple(one for one in kept.float_ops if one != op)
            text = (override("annotate.float_ops", list(left)),)
            yield Change(f"all {op}", (), f"{op} back in integers", text, with_annotate(settings, float_ops=left))

    def _in_float(self, culprit: Culprit) -> Iterator[Change]:
        """Yield the kernels that make or read it: a tensor stays stored as long as one of its readers wants it so."""
        may = self.context.variants.may_float
        nodes: dict[str, None] = {}
        for member in culprit.members:
            maker = self.context.graph.producers.get(member)
            names = [] if maker is None else [self.topology.fused_into.get(maker.name, maker.name)]
            names += [node.name for node, _ in self.context.graph.consumers.get(member, ())]
            nodes |= dict.fromkeys(name for name in names if name in may)
        if not nodes or not self.topology.kernel_of.keys() & nodes.keys():
            return
        every = [node.name for node in self.context.graph.nodes]
        wanted = [*self.context.settings.annotate.float_nodes, *patterns(list(nodes), every)]
        words = f"{len(nodes)} node{'' if len(nodes) == 1 else 's'} in float"
        settings = with_annotate(self.context.settings, float_nodes=tuple(wanted))
        yield Change(culprit.role, culprit.members, words, (override("annotate.float_nodes", wanted),), settings)

    def _wider(self, culprit: Culprit) -> Iterator[Change]:
        members = [t for t in culprit.members if self.strategy.bits.get(t, WIDE) < WIDE]
        yield from self._stated(culprit, f"{WIDE} bits", {t: {"kind": "any", "bits": WIDE} for t in members})

    def _fewer(self, culprit: Culprit) -> Iterator[Change]:
        """Yield fewer bits for the weight, where a sum overflows: smaller integers leave room for it."""
        bits, kernels = self.strategy.bits, {k.output: k for k in self.topology.kernels}
        wrapped = [kernels[t].weight or "" for t in culprit.members if t in self.overflowed]
        weights = [w for w in wrapped if w in bits]
        for less in (1, 2):
            fewer = {choice_key(ChoiceKind.BITS, w): bits[w] - less for w in weights if bits[w] - less >= FEWEST}
            if fewer:
                words = f"{less} bit{'s' if less > 1 else ''} fewer in the weight, which leaves room for its sums"
                yield self._fixed(culprit, words, fewer)

    def _range(self, culprit: Culprit, name: str, estimator: Estimator) -> Iterator[Change]:
        stats = self.statistics
        found: dict[str, Any] = {}
        for tensor in culprit.members[:MOST_STATED]:
            group = self.topology.group_of.get(tensor)
            sources = [stats[s] for s in group.sources if s in stats] if group is not None else []
            if group is None or not sources or (getattr(estimator, "needs_histogram", True) and not sources[0].full):
                continue
            bits, schema = self.strategy.bits[group.key], self.context.settings.schema.activations
            parts = [estimator(s, bits, schema) for s in sources]
            low, high = (float(f"{end:.6g}") for end in (min(p.low for p in parts), max(p.high for p in parts)))
            own = self.strategy.ranges[group.key]
            if high > low and max(abs(low - own.low), abs(high - own.high)) > ALIKE * max(high, -low):
                found[tensor] = {"kind": "calibrated", "min": low, "max": high}
        yield from self._stated(culprit, f"range by {name}", found)

    def _stated(self, culprit: Culprit, words: str, statements: Mapping[str, Any]) -> Iterator[Change]:
        if not statements:
            return
        every = constraints_with(self.context.settings, statements)
        try:
            settings = with_annotate(self.context.settings, constraints=every)
        except ConfigError:
            return
        yield Change(culprit.role, tuple(statements), words, (override("annotate.constraints", every),), settings)

    def _split(self, culprit: Culprit) -> Iterator[Change]:
        """Yield a split of channels that alone set the step of all others; splits of the run itself stay."""
        before = self.context.settings.annotate.split_channels or {}
        more = {t: self.outliers[t] for t in culprit.members if t in self.outliers and t not in before}
        if more:
            count = sum(map(len, more.values()))
            words = f"{count} channel{'s' if count > 1 else ''} split, so that outliers set no step"
            every = {**before, **more}
            settings = with_annotate(self.context.settings, split_channels=every)
            text = (override("annotate.split_channels", every),)
            yield Change(culprit.role, tuple(more), words, text, settings)

    def _weights(self, culprit: Culprit) -> Iterator[Change]:
        settings, sites = self.context.settings, self.topology.weight_of
        weights = [sites[t] for t in culprit.members if t in sites]
        fewer = {
            choice_key(ChoiceKind.BITS, w.tensor): w.max_bits
            for w in weights
            if self.strategy.bits[w.tensor] < w.max_bits
        }
        if fewer:
            yield self._fixed(culprit, "all the bits it can have", fewer)
        if Granularity.PER_CHANNEL not in settings.spec.weights.granularity:
            return
        coarse = {
            choice_key(ChoiceKind.GRANULARITY, w.tensor): Granularity.PER_CHANNEL.value
            for w in weights
            if w.axis is None
        }
        if coarse:
            change = self._fixed(culprit, "a scale per channel", coarse)
            kinds = [*(settings.config.get("annotate") or {}).get("choices", ()), "granularity"]
            text = (override("annotate.choices", kinds), *change.overrides, override("choices.freeze", _REST))
            annotated = with_annotate(change.settings, choices=(*settings.annotate.choices, "granularity"))
            yield replace(change, overrides=text, settings=annotated)

    def _fixed(self, culprit: Culprit, words: str, options: Mapping[str, int | str]) -> Change:
        settings = self.context.settings
        fix = {**settings.limits.fix, **options}
        limits = ChoiceLimits(fix, settings.limits.restrict, settings.limits.freeze)
        text = (override("choices.fix", fix),)
        return Change(culprit.role, culprit.members, words, text, replace(settings, limits=limits))


_REST: Sequence[str] = ("granularity:*",)
"""Choices that stay as they begin: those of the weights that a change says nothing of."""
