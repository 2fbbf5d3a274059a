"""Candidates on samples of differing shapes: batches of any size, outputs of any shape, the same scores and bounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from quantpipe.annotate.choices import choice_space
from quantpipe.annotate.conditions import AnnotateOptions
from quantpipe.evaluate.generalization import generalization
from quantpipe.graph.execute import MAX_CONCURRENT, Session
from quantpipe.graph.normalize import with_varying
from quantpipe.metrics.reference import Reference, output_metrics, outputs_of, reference_of
from quantpipe.scoring.bound import PartialScoreBound
from quantpipe.scoring.candidate import CandidateRecipe, EvaluatorKind, _Batches
from quantpipe.scoring.tensor_cache import TensorCache
from quantpipe.simulate.simulator import Simulator
from quantpipe.types import Batch, Outputs, Score
from tests.ops.line import Net, line

WIDTHS = (9, 9, 9, 12, 12, 9, 15, 15, 15, 15, 15, 12)


@dataclass(frozen=True, eq=False)
class Rows:
    """Samples `[4, width]` of several widths; a batch ends where the width changes."""

    rows: tuple[NDArray[Any], ...]
    digest: str = "rows"
    labelled: bool = False

    def __len__(self) -> int:
        return len(self.rows)

    def batches(self, size: int) -> Iterator[Batch]:
        start = 0
        while start < len(self.rows):
            stop = start + 1
            while stop < min(start + size, len(self.rows)) and self.rows[stop].shape == self.rows[start].shape:
                stop += 1
            yield Batch({"x": np.stack(self.rows[start:stop])}, None, np.arange(start, stop))
            start = stop


def sound() -> Net:
    net = Net(3)
    x = net.input(None, 4, None, name="x")
    for _ in range(3):
        x = net.node("Relu", net.conv(x, 4, 4, 3, pads=[1, 1]))
    net.output(net.conv(x, 4, 4, 1))
    return net


@pytest.fixture(scope="module")
def recipe() -> CandidateRecipe:
    rng = np.random.default_rng(4)
    samples = Rows(tuple(rng.standard_normal((4, width)).astype(np.float32) for width in WIDTHS))
    found = line(sound(), "ort_cpu")
    graph = found.graph
    for batch in samples.batches(2):
        graph = with_varying(graph, batch.inputs)
    graph.__dict__["batch_size"] = 4  # candidates: 2
    space = choice_space(found.topology, AnnotateOptions())
    reference = reference_of(Session(graph.model), samples, 2)
    assert isinstance(reference.outputs, tuple)
    return CandidateRecipe(
        graph, found.topology, found.spec, found.schema, space, found.table, samples, reference, "kl", "bits", "qdq"
    )


@pytest.mark.parametrize("kind", [EvaluatorKind.SIMULATED, EvaluatorKind.INTEGER])
def test_scores_are_those_of_the_whole_model(recipe: CandidateRecipe, kind: EvaluatorKind) -> None:
    r = replace(recipe, kind=kind)
    measure = r.make()
    rng = np.random.default_rng(5)
    points = [r.space.start, *(tuple(int(rng.integers(len(c.options))) for c in r.space) for _ in range(3))]
    for point in [*points, r.space.start]:
        plan = measure._planner.plan(r.table.strategy(r.space.decode(point)))
        session, parameters = Simulator(r.graph, r.topology).prepare(plan)
        expected = output_metrics(r.reference, outputs_of(session, r.samples, 2, parameters))
        (score,) = measure([point])
        assert dict(score.metrics) == expected
    assert len(list(measure._batches.numbers())) == 8


def test_giving_up_before_the_number_of_batches_is_known(recipe: CandidateRecipe) -> None:
    measure = replace(recipe, kind=EvaluatorKind.SIMULATED).make()
    worst = tuple(len(c.options) - 1 for c in recipe.space)
    (given_up,) = measure([worst], lambda best: best.value < 0.0)
    (exact,) = measure([worst])
    assert given_up.pruned and not exact.pruned
    assert exact.value <= given_up.value < 0.0
    assert next(recipe.make()([worst])) == exact


@pytest.mark.parametrize("metric", ["kl", "mse"])
def test_a_bound_ends_at_the_value(metric: str) -> None:
    """After all samples the bound is the metric, which is computed from all at once, elsewhere."""
    rng = np.random.default_rng(6)
    rows: Outputs = tuple(rng.standard_normal((3, width)) for width in WIDTHS)
    noisy = [row + 0.3 * rng.standard_normal(row.shape) for row in rows]
    bound = PartialScoreBound(metric, Reference(rows, None))
    value = -output_metrics(Reference(rows, None), tuple(noisy))[metric]
    for row in noisy:
        assert bound.best(1.0).value >= value
        bound.add(row[None])
    assert bound.best(1.0).value == pytest.approx(value, rel=1e-8)
    assert bound.best(1.0).value >= value


def test_losses_on_outputs_of_several_shapes() -> None:
    rng = np.random.default_rng(7)
    rows = tuple(rng.standard_normal((3, width)) for width in WIDTHS)
    noisy = tuple(row + 0.3 * rng.standard_normal(row.shape) for row in rows)
    found = generalization("mse", (Reference(rows, None), rows), (Reference(rows, None), noisy))
    assert found is not None and found["search"] == 0.0
    flat, difference = np.concatenate([r.ravel() for r in rows]), [n - r for n, r in zip(noisy, rows, strict=True)]
    squares = np.concatenate([d.ravel() ** 2 for d in difference])
    assert found["report"] == pytest.approx(squares.mean() / flat.var())
    assert found["parted"] and found["report_samples"] == len(WIDTHS)


def test_a_recipe_stays_here_with_what_cannot_be_pickled(recipe: CandidateRecipe) -> None:
    assert recipe.is_picklable

    class Held:
        def __call__(self, *_: Any) -> float:
            return 0.0

        def __reduce__(self) -> str:
            raise TypeError("a handle of this process")

    assert not replace(recipe, reference=replace(recipe.reference, value_of=Held())).is_picklable


def test_a_function_of_the_users_is_a_candidates_value(recipe: CandidateRecipe) -> None:
    def worst_row(reference: Outputs, outputs: Outputs, labels: object) -> float:
        return -max(float(np.abs(r - o).max()) for r, o in zip(reference, outputs, strict=True))

    r = replace(recipe, metric="callable", reference=replace(recipe.reference, value_of=worst_row))
    (score,) = r.make()([r.space.start])
    plan = r.make()._planner.plan(r.table.strategy(r.space.decode(r.space.start)))
    session, parameters = Simulator(r.graph, r.topology).prepare(plan)
    assert score.value == worst_row(r.reference.outputs, outputs_of(session, r.samples, 2, parameters), None) < 0
    assert isinstance(score, Score)


def test_batches_that_are_passed_over_are_not_held() -> None:
    """A candidate that starts behind them from kept states asks for a late one first."""
    held: list[int] = []

    class Watched(Rows):
        def batches(self, size: int) -> Iterator[Batch]:
            for batch in super().batches(size):
                held.append(len(asked._latest))
                yield batch

    asked = _Batches(Watched(tuple(np.zeros((4, 3), np.float32) for _ in range(20))), 1, TensorCache(0))
    asked(19)
    assert len(held) == 20 and max(held) <= MAX_CONCURRENT
