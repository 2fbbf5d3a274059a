"""Groups that an average hides are found, named and warned of; groups that lose as much as the rest are not."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom

from quantpipe.artifacts import plain
from quantpipe.errors import ConfigError
from quantpipe.evaluate.nearness import OutputFigures, figures_of_output
from quantpipe.evaluate.sample_groups import JudgedGroups, SampleFacts, _chance, facts_of, groups_by, judged_groups
from quantpipe.metrics.answers import Answers
from quantpipe.metrics.losses import LossKind, OutputLoss
from quantpipe.metrics.reference import Compared, JudgedOver, Reference, metric_of, objective_value, output_metrics
from quantpipe.metrics.sample_figures import CountedAnswers
from quantpipe.types import Batch

COUNT = 96


class Named:
    """Samples of which only the names and groups are asked."""

    def __init__(self, groups: NDArray[np.str_] | None = None) -> None:
        self.groups = groups

    def name(self, position: int) -> str:
        return f"file{position}.wav"

    def __len__(self) -> int:
        return COUNT


def facts(inputs: NDArray[Any], groups: NDArray[np.str_] | None = None) -> SampleFacts:
    found = facts_of(Batch({"x": inputs}, None, np.arange(len(inputs))))
    return SampleFacts.of(found, Named(groups))  # type: ignore[arg-type]


def quiet(rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    """Inputs from 0 to -60 dB, and outputs in proportion."""
    gains = 10 ** (-np.linspace(0, 60, COUNT) / 20)
    return rng.standard_normal((COUNT, 50)) * gains[:, None], rng.standard_normal((COUNT, 8)) * gains[:, None]


def judged(
    inputs: NDArray[Any], own: NDArray[Any], found: NDArray[Any], watched: CountedAnswers | None = None, **more: Any
) -> JudgedGroups:
    figures = figures_of_output("y", own, found, (), watched=watched, samples=len(inputs))
    return judged_groups([figures], facts(inputs, **more), 15.0)


def test_quiet_samples_are_warned_of_by_their_energy_and_named() -> None:
    rng = np.random.default_rng(0)
    x, y = quiet(rng)
    found = judged(x, y, y + 0.002 * rng.standard_normal(y.shape))  # the same noise for all
    average = next(row for row in found.rows if row["by"] == "all")
    worse = [row for row in found.rows if row["worse"]]
    assert average["sqnr_db"] is not None and average["sqnr_db"] > 30
    assert {row["by"] for row in worse} == {"energy", "worst_decile"}
    least = next(row for row in worse if row["by"] == "energy")
    assert least["group"].startswith("-6") and least["sqnr_db"] is not None and least["sqnr_db"] < 5
    low, high = least["sqnr_interval"] or (0, 0)
    assert low < least["sqnr_db"] < high
    (said,) = found.warnings
    assert "input energy of -6" in said and "file9" in said and found.worst[0]["row"] > 80
    assert "16 bits" in said and "inputs of the same energy" in said


def test_noise_in_proportion_is_not_warned_of() -> None:
    rng = np.random.default_rng(1)
    x, y = quiet(rng)
    found = judged(x, y, y * (1 + 0.02 * rng.standard_normal(y.shape)))
    assert not found.warnings and not any(row["worse"] for row in found.rows)


def scores(rng: np.random.Generator, kinds: NDArray[Any], classes: int = 10) -> NDArray[Any]:
    return np.eye(classes)[kinds] * 12 + rng.standard_normal((*kinds.shape, classes))


def test_a_rare_class_that_vanishes_is_named() -> None:
    rng = np.random.default_rng(2)
    kinds = np.where(np.arange(COUNT) < 4, 9, np.arange(COUNT) % 5)
    own = scores(rng, kinds)
    found = own.copy()
    found[:4, 9] -= 12  # four of 96 samples change their class; the mean hardly sees it
    watched = CountedAnswers(Answers(1), divergence=True)
    result = judged(rng.standard_normal((COUNT, 5)), own, found, watched)
    row = next(row for row in result.rows if row["by"] == "class" and row["group"] == "9")
    assert row["equal"] == 0.0 and row["samples"] == 4 and row["worse"]
    assert "class 9" in result.warnings[0]
    again = judged(rng.standard_normal((COUNT, 5)), own, own + 0.01 * rng.standard_normal(own.shape), watched)
    assert not again.warnings


def test_a_single_change_of_a_class_with_few_samples_is_chance() -> None:
    rng = np.random.default_rng(3)
    own = scores(rng, np.arange(COUNT) % 40, 40)
    found = own.copy()
    for at in (0, 7, 11, 30, 31, 90):  # 6 % of the answers, each of another class
        found[at, at % 40] -= 14
    result = judged(rng.standard_normal((COUNT, 5)), own, found, CountedAnswers(Answers(1)))
    assert not any(row["worse"] for row in result.rows if row["by"] == "class")


def test_the_blank_of_ctc_is_left_out() -> None:
    rng = np.random.default_rng(4)
    kinds = np.zeros((COUNT, 20), np.int64)
    kinds[:, ::4] = 1 + np.arange(5) % 3
    own = scores(rng, kinds, 4)
    watched = CountedAnswers(Answers(2, sequence=True))
    rows = judged(rng.standard_normal((COUNT, 5)), own, own, watched).rows
    assert [row["group"] for row in rows if row["by"] == "class"] == ["1", "2", "3"]


def test_groups_of_a_column_and_groups_of_one_sample() -> None:
    rng = np.random.default_rng(5)
    x, y = rng.standard_normal((COUNT, 8)), rng.standard_normal((COUNT, 8))
    groups = np.array(["day"] * 60 + ["night"] * 35 + ["dusk"])
    noise = np.where(groups == "day", 0.01, 0.5)[:, None] * rng.standard_normal(y.shape)
    loud = np.where(groups == "day", 6.0, 1.0)[:, None] * y
    found = judged(x, loud, loud + noise, groups=groups)
    rows = {row["group"]: row for row in found.rows if row["by"] == "groups"}
    assert rows["night"]["worse"] and not rows["day"]["worse"]
    assert not rows["dusk"]["judged"] and not rows["dusk"]["worse"]
    assert "the group night" in found.warnings[0]
    assert "1 of 3 groups" in found.warnings[1] and "dusk" in found.warnings[1]


def test_lengths_come_from_axes_or_from_masks() -> None:
    long = [facts_of(Batch({"x": np.ones((2, n, 3))}, None, np.arange(2))) for n in (4, 4, 9, 20)]
    found = SampleFacts.of(np.concatenate(long), Named())  # type: ignore[arg-type]
    assert found.length is not None and found.length.tolist() == [4, 4, 4, 4, 9, 9, 20, 20]
    assert sum(int(group.members.sum()) for group in groups_by(found) if group.by == "length") == 8
    mask = np.tril(np.ones((6, 6), np.int64))
    tokens = {"ids": np.full((6, 6), 7), "mask": mask}
    found = SampleFacts.of(facts_of(Batch(tokens, None, np.arange(6))), Named())  # type: ignore[arg-type]
    assert found.length is not None and found.length.tolist() == [1, 2, 3, 4, 5, 6]


def test_a_sample_of_several_rows_counts_once() -> None:
    rng = np.random.default_rng(6)
    own = rng.standard_normal((12, 4))
    found = figures_of_output("y", own, own + 0.1, (), samples=4)
    assert found.samples.signal == pytest.approx((own**2).sum(1).reshape(4, 3).sum(1).tolist())
    assert found.samples.noise == pytest.approx([0.12] * 4)


def test_figures_survive_a_file() -> None:
    rng = np.random.default_rng(7)
    own = scores(rng, np.arange(6) % 3, 3)
    figures = figures_of_output(
        "y", own, np.where(own > 12, np.inf, own), (), watched=CountedAnswers(Answers(1), True), samples=6
    )
    again = OutputFigures.from_dict(json.loads(json.dumps(figures, default=plain)))
    assert again.samples.counts == figures.samples.counts
    assert np.isnan(again.samples.kl).any() or again.samples.kl == figures.samples.kl


def test_the_worst_tenth_and_the_worst_group_judge_a_candidate() -> None:
    rng = np.random.default_rng(8)
    own = rng.standard_normal((COUNT, 6))
    found = own + np.where(np.arange(COUNT) < 10, 1.0, 0.01)[:, None] * rng.standard_normal(own.shape)
    losses = (OutputLoss("y", LossKind.MSE),)
    reference = Reference(own, None, output="y", losses=losses)
    groups = np.where(np.arange(COUNT) < 5, "a", "b")
    mean = metric_of("auto", reference, found)
    for over in (JudgedOver("auto", COUNT), JudgedOver("auto", COUNT, groups)):
        value = over.value(reference, found)
        assert value < 4 * mean < 0  # losses: what judges is worse, and the mean bounds it
        judging = Reference(own, None, output="y", losses=losses, over=over)
        assert objective_value("auto", output_metrics(judging, found)) == value
    labels = np.zeros(COUNT, np.int64)
    right = np.where(np.arange(COUNT)[:, None] < 5, [0, 1], [1, 0])
    by_group = JudgedOver("accuracy", COUNT, groups)
    assert by_group.value(Reference(right, labels, output="y"), right) == 0.0


def test_the_worst_group_needs_groups() -> None:
    with pytest.raises(ConfigError, match=r"objective\.over.*dataset\.groups"):
        Compared("y", over="worst_group").judged(Named())  # type: ignore[arg-type]
    assert Compared("y").judged(Named()) is None  # type: ignore[arg-type]


def test_the_chance_of_a_group_is_the_binomial_distribution() -> None:
    """By scipy, which a run does without: its import takes longer than an evaluation of the digits."""
    for samples, right, share in (
        (1, 0, 0.9),
        (61, 58, 0.99),
        (61, 61, 0.99),
        (700, 12, 0.6),
        (700, 420, 0.6),
        (9, 3, 0.0),
    ):
        row: Any = {"samples": samples, "equal": right / samples}
        whole: Any = {"samples": 10_000, "equal": share}
        assert _chance(row, whole) == pytest.approx(binom.cdf(right, samples, share), rel=1e-9)
