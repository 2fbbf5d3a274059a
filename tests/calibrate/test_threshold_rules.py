"""Rules give a tensor its own estimator: the first that fits, one for all tensors of a scale, and never in silence."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from quantpipe.annotate.choices import clip_key
from quantpipe.annotate.conditions import AnnotateOptions
from quantpipe.annotate.variants import Topologies
from quantpipe.calibrate.estimators import KL, MSE, Estimator, MaxRange, Percentile, Searched
from quantpipe.calibrate.measure import Detail, measure
from quantpipe.calibrate.needs import require
from quantpipe.calibrate.ruled import RuledEstimator, percents_of, ruled
from quantpipe.calibrate.rules import Role, Rule, Side
from quantpipe.calibrate.threshold_table import ThresholdTable
from quantpipe.errors import ConfigError
from quantpipe.types import ThresholdRuleRow
from tests.ops.line import Line, Net, line


def net() -> Net:
    """Two branches that meet in a Concat, so share a scale, with a convolution before and behind."""
    made = Net()
    x = made.input(None, 3, 6, 6)
    stem = made.node("Relu", made.conv(x, 3, 4, 3, 3, name="stem"), name="act")
    left, right = made.conv(stem, 4, 2, name="left"), made.conv(stem, 4, 2, name="right")
    both = made.node("Concat", left, right, name="both", axis=1)
    made.output(made.conv(both, 4, 2, name="head"))
    return made


@pytest.fixture(scope="module")
def made() -> Line:
    return line(net(), "ort_cpu")


def resolved(made: Line, *rules: Rule, default: Estimator | None = None) -> tuple[Estimator, list[ThresholdRuleRow]]:
    return ruled(default or MaxRange(), rules, made.graph, made.topology)


def strategy(made: Line, estimator: Estimator, method: Any = "mse") -> Any:
    profile = measure(made.graph, made.topology.measured, made.samples, 64)
    table = ThresholdTable(made.graph, made.topology, made.schema, profile, estimator=estimator, weight_method=method)
    table = pickle.loads(pickle.dumps(table))  # as worker processes get it
    options = AnnotateOptions()
    space = Topologies(made.graph, made.spec, made.schema, options).space()
    return table.strategy(space.decode(space.start))


def use(estimator: Estimator, **conditions: Any) -> Rule:
    return Rule(estimator, type(estimator).__name__, **conditions)


HALF = Percentile(p=50.0)


def test_what_a_rule_fits_has_its_estimator_and_all_else_the_default(made: Line) -> None:
    """The oracle: runs in which one estimator serves all tensors."""
    for rule, fitting in (
        (use(HALF, tensors=("act_out",)), {"act_out"}),
        (use(HALF, ops=("Conv",), nodes=("stem",)), {"act_out"}),  # behind the Relu that its kernel swallows
        (use(HALF, ops=("Relu",)), {"act_out"}),
        (use(HALF, nodes=("head",), side=Side.READ, roles=(Role.ACTIVATION,)), {"both_out", "left_out", "right_out"}),
        (use(HALF, tensors=("left*",)), {"both_out", "left_out", "right_out"}),  # one scale, one estimator
        (use(HALF, roles=(Role.INPUT,)), {"x"}),
        (use(HALF, roles=(Role.OUTPUT,)), {"head_out"}),
        (use(HALF, nodes=("stem",), side=Side.BOTH, roles=(Role.ACTIVATION,)), {"x", "act_out"}),
    ):
        estimator, (row,) = resolved(made, rule)
        found, ours, others = (strategy(made, e) for e in (estimator, HALF, MaxRange()))
        hit = set()
        for group in made.topology.groups:
            inside = bool(fitting.intersection(group.tensors))
            hit |= set(group.tensors) if inside else set()
            assert found.ranges[group.key] == (ours if inside else others).ranges[group.key], (rule.text, group.key)
            assert ours.ranges[group.key] != others.ranges[group.key], "else this shows nothing"
            assert (group.key in row["tensors"]) is inside
        assert fitting <= hit and row["overruled"] == []
        weights = zip(found.weights.values(), others.weights.values(), strict=True)
        assert all(np.array_equal(a, b) for a, b in weights)


def test_the_first_rule_that_fits_decides(made: Line) -> None:
    rules = (use(HALF, tensors=("act_out",)), use(KL(), ops=("Conv",)))
    estimator, rows = resolved(made, *rules)
    found, first, second = (strategy(made, e) for e in (estimator, HALF, KL()))
    key, head = made.topology.group_of["act_out"].key, made.topology.group_of["head_out"].key
    assert found.ranges[key] == first.ranges[key] != second.ranges[key]
    assert found.ranges[head] == second.ranges[head]
    assert key in rows[0]["tensors"] and key not in rows[1]["tensors"] and rows[1]["overruled"] == []


def test_rules_that_disagree_within_a_scale_are_settled_by_order_and_said(made: Line) -> None:
    """The later member of the group is decided on by the earlier rule."""
    estimator, rows = resolved(made, use(HALF, tensors=("right_out",)), use(KL(), tensors=("left_out", "head_out")))
    found, first = strategy(made, estimator), strategy(made, HALF)
    key = made.topology.group_of["left_out"].key
    assert key == made.topology.group_of["right_out"].key
    assert found.ranges[key] == first.ranges[key]
    assert rows[0]["tensors"] == [key] and rows[1]["overruled"] == ["left_out"]


@pytest.mark.parametrize("method", ["mse", "max_range", "estimator"])
def test_weights_by_a_rule(made: Line, method: Any) -> None:
    """The oracle: the greatest magnitude of each channel; and a run in which all weights are estimated."""
    weight = made.topology.kernel_of["stem"].weight
    assert weight is not None
    others = strategy(made, MSE(), method)
    found = strategy(made, resolved(made, use(MaxRange(), tensors=(weight,)), default=MSE())[0], method)
    values = made.graph.constant(weight)
    assert np.allclose(found.weights[weight], np.abs(values.reshape(len(values), -1)).max(axis=1))
    read = use(HALF, nodes=("stem",), side=Side.READ, roles=(Role.WEIGHT,))
    halved = strategy(made, resolved(made, read, default=MSE())[0], method)
    assert np.array_equal(halved.weights[weight], strategy(made, HALF, "estimator").weights[weight])
    for name in others.weights:
        if name != weight:
            assert np.array_equal(found.weights[name], others.weights[name])
            assert np.array_equal(halved.weights[name], others.weights[name])


def test_only_what_a_rule_leaves_to_the_search_is_searched(made: Line) -> None:
    """And a rule takes from the search what `threshold=search` would leave to it."""
    topology, key = made.topology, made.topology.group_of["act_out"].key
    variants = Topologies(made.graph, made.spec, made.schema, AnnotateOptions())

    def clipped(default: Estimator, rule: Rule) -> set[str]:
        estimator, _ = resolved(made, rule, default=default)
        space = variants.space(percents_of(estimator, topology.groups))
        return {choice.key for choice in space if choice.key.startswith("clip:")}

    every = {clip_key(group.key) for group in topology.groups}
    assert clipped(MSE(), use(Searched(percents=[100, 50]), tensors=("act_out",))) == {clip_key(key)}
    assert clipped(Searched(), use(MaxRange(), tensors=("act_out",))) == every - {clip_key(key)}


def test_a_rule_needs_the_statistics_of_its_own_tensors_only(made: Line) -> None:
    extremes = measure(made.graph, made.topology.measured, made.samples, 64, detail=Detail(True, frozenset()))
    require(resolved(made, use(MaxRange(), ops=("Conv",)))[0], extremes)
    with pytest.raises(ConfigError, match=r"KL reads a histogram.*for 1 of .*first act_out"):
        require(resolved(made, use(KL(), tensors=("act_out",)))[0], extremes)
    with pytest.raises(ConfigError, match=r"MSE reads a histogram"):
        require(resolved(made, use(MaxRange(), tensors=("act_out",)), default=MSE())[0], extremes)


def test_it_needs_what_any_of_its_estimators_needs(made: Line) -> None:
    estimator, _ = resolved(made, use(KL(), tensors=("act_out",)))
    assert isinstance(estimator, RuledEstimator)
    assert estimator.needs_histogram and not estimator.needs_batches
    assert not resolved(made, use(Searched(), tensors=("act_out",)))[0].needs_histogram


@pytest.mark.parametrize(
    ("conditions", "said"),
    [
        ({"tensors": ("act_ot",)}, r"no tensor of the cleaned model is 'act_ot' \(did you mean 'act_out'"),
        ({"tensors": ("*stm*",)}, r"'\*stm\*' \(did you mean"),
        ({"tensors": ("act_out", "nothing")}, "is 'nothing'"),
        ({"ops": ("Covn",)}, r"no op of the cleaned model is 'Covn' \(did you mean 'Conv'"),
        ({"nodes": ("hed",)}, r"no node of the cleaned model is 'hed' \(did you mean 'head'"),
        ({"tensors": ("stem_out",)}, "fits only stem_out, which has no scale of its own"),
        ({"tensors": ("x",), "roles": (Role.OUTPUT,)}, "no tensor meets all"),
    ],
)
def test_a_rule_that_fits_nothing_names_what_is_near(made: Line, conditions: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        resolved(made, use(HALF, tensors=("act_out",)), use(KL(), **conditions))
    assert str(error.value).startswith("threshold.rules[1]")


def test_a_rule_behind_another_is_refused(made: Line) -> None:
    with pytest.raises(ConfigError, match=r"rules\[1\].*where an earlier rule fits"):
        resolved(made, use(HALF, ops=("Conv",)), use(KL(), tensors=("head_out",)))
    with pytest.raises(ConfigError, match="decides on tensors of the same scale"):
        resolved(made, use(HALF, tensors=("right_out",)), use(KL(), tensors=("left_out",)))


def test_a_given_range_is_no_rules_matter() -> None:
    given = {"act_out": {"kind": "calibrated", "min": 0.0, "max": 3.0}}
    made = line(net(), "ort_cpu", constraints=given)
    with pytest.raises(ConfigError, match="whose range is given"):
        resolved(made, use(HALF, tensors=("act_out",)))


def test_parts_of_a_scale_in_a_variant_keep_its_rule(made: Line) -> None:
    """With the Concat in float, its parts have scales of their own: the rule of the whole decides on each of them."""
    given = (made.graph, made.spec, made.schema, AnnotateOptions())
    variants = Topologies(*given, floatable=Topologies(*given).may_float)
    profile = measure(made.graph, variants.measured, made.samples, 64)
    estimator, _ = ruled(MaxRange(), [use(HALF, tensors=("right_out",))], made.graph, variants.reference)

    def ranges(by: Estimator) -> dict[str, Any]:
        table = ThresholdTable(
            made.graph, variants.base, made.schema, profile, estimator=by, weight_method="mse", variants=variants
        )
        space = variants.space()
        point = {**space.decode(space.start), "float:both": "float"}
        return dict(table.strategy(point).ranges)

    found, ours, others = ranges(estimator), ranges(HALF), ranges(MaxRange())
    assert {"left_out", "right_out"} <= set(found), "stored one by one here"
    for key, range_ in found.items():
        assert range_ == (ours if key in ("left_out", "right_out", "both_out") else others)[key], key
