"""Choose the estimator of each tensor of one model, where rules replace the default for some.

Tensors that share a scale have one range, so they have one estimator: the first rule, in the order of the list, that
fits any of them decides it. A tensor that another rule fits first then has that estimator, too, and the report lists
it. A rule that decides nothing is rejected: its name is a mistake, or an earlier rule hides it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from quantpipe.calibrate.decided import base_of
from quantpipe.calibrate.estimators import MSE, Estimator, MaxRange, clip_percents
from quantpipe.calibrate.rules import WHERE, Rule, Side, Surroundings, matches
from quantpipe.errors import ConfigError, nearest, some_of
from quantpipe.graph.view import Graph
from quantpipe.types import Range, ScaleGroup, TensorSchema, TensorStats, ThresholdRuleRow, Topology

WeightMethod = Literal["max_range", "mse", "estimator"]


@dataclass(frozen=True, eq=False)
class RuledEstimator:
    """Estimate ranges by another estimator for the tensors that rules fit, found by the name in the statistics.

    `default`: The estimator of the threshold option. `rules`: All rules, in order. `rule_of`: Tensor -> the number of
    the rule that decides on it.
    """

    default: Estimator
    rules: tuple[Rule, ...]
    rule_of: Mapping[str, int]

    @property
    def needs_histogram(self) -> bool:
        """Return whether any of the estimators reads histograms."""
        return any(e.needs_histogram for e in self._all)

    @property
    def needs_batches(self) -> bool:
        """Return whether any of the estimators reads the extremes of batches."""
        return any(e.needs_batches for e in self._all)

    def __call__(self, stats: TensorStats, bits: int, schema: TensorSchema) -> Range:
        """Return the range that the estimator of the tensor of these statistics gives."""
        return estimator_of(self, (stats.name,))(stats, bits, schema)

    @property
    def _all(self) -> tuple[Estimator, ...]:
        return (self.default, *(rule.estimator for rule in self.rules))


def place_of(estimator: Estimator, tensors: Iterable[str]) -> int | None:
    """Return the number of the rule that decides on tensors of one scale; None where the threshold option does."""
    estimator = base_of(estimator)
    if not isinstance(estimator, RuledEstimator):
        return None
    return min((estimator.rule_of[t] for t in tensors if t in estimator.rule_of), default=None)


def estimator_of(estimator: Estimator, tensors: Iterable[str]) -> Estimator:
    """Return the estimator of tensors of one scale."""
    estimator = base_of(estimator)
    if not isinstance(estimator, RuledEstimator):
        return estimator
    place = place_of(estimator, tensors)
    return estimator.default if place is None else estimator.rules[place].estimator


def weight_method_of(estimator: Estimator, tensor: str, method: WeightMethod) -> WeightMethod:
    """Return how the thresholds of a weight are found.

    `method` is the method of weights without a rule. A rule's estimator takes the channels' statistics. `mse` and
    `max_range` without options are the exception: they mean the same as in `threshold.weights.method`, and see the
    values.
    """
    if place_of(estimator, (tensor,)) is None:
        return method
    found = estimator_of(estimator, (tensor,))
    return "mse" if found == MSE() else "max_range" if found == MaxRange() else "estimator"


def percents_of(estimator: Estimator, groups: Iterable[ScaleGroup]) -> Mapping[str, Sequence[int]]:
    """Return, by key of the scale group, what percents of its range a search may clip to, where it may."""
    found = {group.key: clip_percents(estimator_of(estimator, group.tensors)) for group in groups}
    return {key: percents for key, percents in found.items() if percents}


def ruled(
    default: Estimator, rules: Sequence[Rule], graph: Graph, topology: Topology
) -> tuple[Estimator, list[ThresholdRuleRow]]:
    """Return the estimator of a model, and a row per rule for the report.

    `topology` should be the one with the most integer nodes, so that it has every scale. Without rules the result is
    the default. Raises ConfigError for a rule that decides on no tensor, with near names where it matches none.
    """
    if not rules:
        return default, []
    around = Surroundings(graph, topology)
    for number, rule in enumerate(rules):
        _refuse_unmatched(number, rule, around, topology)
    first = {t: n for t in _candidates(around, topology) if (n := _first(around, rules, t)) is not None}
    rule_of = dict(first)
    decided: list[list[str]] = [[] for _ in rules]
    overruled: list[list[str]] = [[] for _ in rules]
    for group in topology.groups:
        fitting = {t: first[t] for t in group.tensors if t in first}
        if not fitting or group.fixed is not None:
            continue
        place = min(fitting.values())
        rule_of |= dict.fromkeys(group.tensors, place)
        decided[place].append(group.key)
        for tensor, own in fitting.items():
            if own != place:
                overruled[own].append(tensor)
    for weight in topology.weights:
        if weight.tensor in first:
            decided[first[weight.tensor]].append(weight.tensor)
    for number, mine in enumerate(decided):
        if not mine:
            raise ConfigError(_why_idle(number, rules, around, topology), where=f"{WHERE}[{number}]")
    rows: list[ThresholdRuleRow] = [
        {"rule": rule.text, "tensors": mine, "overruled": lost}
        for rule, mine, lost in zip(rules, decided, overruled, strict=True)
    ]
    return RuledEstimator(default, tuple(rules), rule_of), rows


def _candidates(around: Surroundings, topology: Topology) -> list[str]:
    """Return all tensors: also those that only another variant of the topology stores."""
    return list(dict.fromkeys((*around.tensors, *topology.group_of, *topology.weight_of)))


def _first(around: Surroundings, rules: Sequence[Rule], tensor: str) -> int | None:
    return next((n for n, rule in enumerate(rules) if around.fits(rule, tensor)), None)


def _refuse_unmatched(number: int, rule: Rule, around: Surroundings, topology: Topology) -> None:
    """Raise ConfigError for a pattern of a rule that nothing in the model matches."""
    for condition, patterns in {"tensors": rule.tensors, "ops": rule.ops, "nodes": rule.nodes}.items():
        known = around.known(condition)
        shown = [*topology.group_of, *topology.weight_of] if condition == "tensors" else known
        for pattern in patterns:
            if not any(matches((pattern,), name) for name in known):
                raise ConfigError(
                    f"{rule.text} fits no tensor: no {_ONE[condition]} of the cleaned model is "
                    f"{pattern!r}{_near(pattern, known)}; there are {some_of(shown) or 'none'}",
                    where=f"{WHERE}[{number}].{condition}",
                )


_ONE = {"tensors": "tensor", "ops": "op", "nodes": "node"}


def _why_idle(number: int, rules: Sequence[Rule], around: Surroundings, topology: Topology) -> str:
    rule = rules[number]
    fitting = [t for t in _candidates(around, topology) if around.fits(rule, t)]
    if not fitting:
        return (
            f"{rule.text} fits no tensor: some tensors meet each condition, but no tensor meets all. (Rules apply to "
            f"the outputs of a node, unless side is {Side.READ} or {Side.BOTH}.)"
        )
    stored = [t for t in fitting if t in topology.group_of or t in topology.weight_of]
    if not stored:
        known = [*topology.group_of, *topology.weight_of]
        hint = next((near for pattern in rule.tensors if (near := _near(pattern, known))), "")
        return (
            f"{rule.text} fits only {some_of(fitting)}, which {'has' if len(fitting) == 1 else 'have'} no scale of "
            f"{'its' if len(fitting) == 1 else 'their'} own on this hardware (in float, or inside a kernel){hint}; "
            f"there are {some_of(known)}"
        )
    if all(t in topology.group_of and topology.group_of[t].fixed is not None for t in stored):
        return f"{rule.text} fits only {some_of(stored)}, whose range is given (by annotate.constraints, or by the op)"
    earlier = any(around.fits(other, t) for t in stored for other in rules[:number])
    how = "an earlier rule fits" if earlier else "an earlier rule decides on tensors of the same scale"
    return f"{rule.text} fits only {some_of(stored)}, where {how}; leave it out, or put it before that one"


def _near(pattern: str, known: Sequence[str]) -> str:
    """Return a hint to names like the pattern, or with a part like what stands between its stars."""
    core = pattern.strip("*")
    if hint := nearest(core, known):
        return hint
    parts = {part: name for name in reversed(known) for part in re.split(r"[/._:]", name) if part}
    close = difflib.get_close_matches(core, list(parts), n=3, cutoff=0.4)
    return f" (did you mean {' or '.join(repr(parts[part]) for part in close)}?)" if close else ""
