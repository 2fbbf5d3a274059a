"""Scores of candidates: whatever is cut, kept, pruned or run in integers, they are the whole simulated model's."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from quantpipe.annotate.choices import choice_space
from quantpipe.annotate.conditions import AnnotateOptions
from quantpipe.errors import HardwareError
from quantpipe.graph.execute import Session
from quantpipe.metrics.reference import objective_value, output_metrics, outputs_of, reference_of
from quantpipe.plan import NO_OVERRIDES, Overrides, Planner
from quantpipe.recover import LayerOptions, Variants, float_moments
from quantpipe.scoring import candidate as candidates
from quantpipe.scoring.candidate import CandidateRecipe, EvaluatorKind, runs_fast
from quantpipe.scoring.sections import sections
from quantpipe.simulate.simulator import Simulator
from quantpipe.types import Form, Point, QuantPlan, Score, Strategy
from tests.ops.line import ArraySamples, Line, Net, line
from tests.zoo import requires_zoo, zoo

SIMULATED, INTEGER, AUTO = EvaluatorKind.SIMULATED, EvaluatorKind.INTEGER, EvaluatorKind.AUTO


def residual() -> Net:
    """Branches, a sum, a concatenation, a pool, a dense layer that leaves as real numbers."""
    net = Net(1)
    x = net.input(None, 3, 12, 12)
    a = net.node("Relu", net.conv(x, 3, 8, 3, 3, pads=[1, 1, 1, 1]))
    for _ in range(3):
        b = net.node("Relu", net.conv(a, 8, 8, 3, 3, pads=[1, 1, 1, 1]))
        a = net.node("Relu", net.node("Add", net.conv(b, 8, 8, 1, 1), a))
    a = net.node("Concat", a, net.conv(a, 8, 4, 1, 1), axis=1)
    a = net.node("MaxPool", a, kernel_shape=[2, 2], strides=[2, 2])
    a = net.node("Flatten", net.node("GlobalAveragePool", a))
    net.output(net.dense(a, 12, 5))
    return net


def island() -> Net:
    """A float op between integers, a second input that is read late, an output that is made early, a dead branch."""
    net = Net(2)
    x, late = net.input(None, 4, 8, 8), net.input(None, 6, name="late")
    a = net.node("Relu", net.conv(x, 4, 6, 3, 3, pads=[1, 1, 1, 1]))
    b = net.node("Erf", net.conv(a, 6, 6, 1, 1))
    c = net.node("Relu", net.conv(b, 6, 6, 3, 3, pads=[1, 1, 1, 1]))
    d = net.node("Flatten", net.node("GlobalAveragePool", net.node("Relu", net.conv(c, 6, 6, 1, 1))))
    first = net.dense(net.node("Add", d, late), 6, 7)
    net.output(first, net.node("Sigmoid", c))
    return net


def layers() -> Net:
    """Dense layers, which a device may store at each its own width."""
    net = Net(3)
    a = net.input(None, 12)
    for _ in range(5):
        a = net.node("Relu", net.dense(a, 12, 12))
    net.output(net.dense(a, 12, 5))
    return net


NETS: dict[str, Callable[[], Net]] = {"residual": residual, "island": island}


@cache
def made(net: str, spec: str) -> Line:
    found = line(NETS[net](), spec)
    rng = np.random.default_rng(3)
    shapes = {i.name: (70, *[d or 1 for d in i.shape[1:]]) for i in found.graph.inputs}
    inputs = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    classes = found.graph.shapes[found.graph.outputs[0].name][-1]
    return replace(found, samples=ArraySamples(inputs, rng.integers(0, classes, 70)))


@cache
def recipe(net: str, spec: str, kind: EvaluatorKind = SIMULATED, metric: str = "kl") -> CandidateRecipe:
    made_line = made(net, spec)
    # Few samples a run, so that there are several batches.
    graph = replace(made_line.graph)
    graph.__dict__["batch_size"] = 16
    backend = made_line.spec.realize
    space = choice_space(made_line.topology, AnnotateOptions(threshold_steps=(-1, 0, 1)))
    reference = reference_of(Session(graph.model), made_line.samples, 16)
    return CandidateRecipe(
        graph,
        made_line.topology,
        made_line.spec,
        made_line.schema,
        space,
        made_line.table,
        made_line.samples,
        reference,
        metric,
        "bits",
        backend,
        kind,
    )


def points(r: CandidateRecipe, count: int, seed: int = 0) -> list[Point]:
    """The start, a walk of single changes from it, and random points."""
    rng = np.random.default_rng(seed)
    found, point = [r.space.start], list(r.space.start)
    for _ in range(count):
        i = int(rng.integers(len(point)))
        point[i] = int(rng.integers(len(r.space.choices[i].options)))
        found.append(tuple(point))
    random = [tuple(int(rng.integers(len(c.options))) for c in r.space) for _ in range(3)]
    return [*found, *random, found[1], found[0]]


def whole(r: CandidateRecipe, point: Point) -> Score:
    """The oracle: one simulated graph, all samples, no section, nothing kept."""
    plan = r.make()._planner.plan(r.table.strategy(r.space.decode(point)))
    session, parameters = Simulator(r.graph, r.topology).prepare(plan)
    metrics = output_metrics(r.reference, outputs_of(session, r.samples, 16, parameters))
    return Score(objective_value(r.metric, metrics), r.make().cost(point), tuple(metrics.items()))


@pytest.mark.program
@pytest.mark.parametrize("spec", ["ort_cpu", "vta", "hago_sample", "tvm_arm", "int4_weights"])
@pytest.mark.parametrize("net", NETS)
def test_sections_give_the_score_of_the_whole_model(net: str, spec: str) -> None:
    r = recipe(net, spec)
    asked = points(r, 6)
    assert list(r.make()(asked)) == [whole(r, p) for p in asked]


def test_what_passes_a_cut_has_the_type_that_the_plan_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """8 bits in one section and 16 in the next, on a device whose layers store either."""
    monkeypatch.setitem(NETS, "layers", layers)
    r = recipe("layers", "qnn_htp")
    asked = points(r, 12)
    widths = [
        {q.dtype for q in r.make()._planner.plan(r.table.strategy(r.space.decode(p))).quantizers.values()}
        for p in asked
    ]
    assert any(len(found) > 1 for found in widths), "some candidates store both"
    assert list(r.make()(asked)) == [whole(r, p) for p in asked]


@pytest.mark.sliced(8)
@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("backend", ["qdq", "qoperator"])
def test_integer_candidates_have_the_same_scores(net: str, backend: str) -> None:
    r = recipe(net, "ort_cpu")
    assert runs_fast(backend, r.topology, r.make()._parts)
    asked = points(r, 12, seed=4)
    assert list(replace(r, kind=INTEGER, backend=backend).make()(asked)) == list(r.make()(asked))
    auto = replace(r, kind=AUTO, backend=backend).make()
    assert list(auto(asked[:3])) == list(r.make()(asked[:3]))
    assert auto.kind in (SIMULATED, INTEGER)


def test_hardware_without_multipliers_may_run_in_integers_too() -> None:
    r = replace(recipe("residual", "vta"), kind=INTEGER)
    assert r.backend == "integer" and any(p.integer for p in r.make()._parts)
    asked = points(r, 3)
    assert list(r.make()(asked)) == list(recipe("residual", "vta").make()(asked))


def test_a_recipe_that_was_sent_gives_the_same() -> None:
    r = recipe("residual", "ort_cpu")
    asked = points(r, 2)
    there = pickle.loads(pickle.dumps(r))
    there.graph.__dict__["batch_size"] = 16
    assert r.is_picklable and list(there.make()(asked)) == list(r.make()(asked))


def test_auto_simulates_where_the_runtime_has_no_kernels() -> None:
    r = replace(recipe("residual", "vta"), kind=AUTO)
    measure = r.make()
    next(measure([r.space.start]))
    assert measure.kind is SIMULATED


def test_auto_simulates_where_the_integer_form_computes_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a processor whose 8 bit kernels saturate."""
    r = replace(recipe("residual", "ort_cpu"), kind=AUTO)
    plain = Session.run

    def wrong(self: Session, *given: object, **named: object) -> dict[str, object]:
        found = plain(self, *given, **named)  # type: ignore[arg-type]
        return {k: np.maximum(v, 1) if self._where == "realized section" else v for k, v in found.items()}

    monkeypatch.setattr(Session, "run", wrong)
    measure = r.make()
    (score,) = measure([r.space.start])
    assert measure.kind is SIMULATED
    assert score == whole(r, r.space.start)


@pytest.mark.sliced(12)
@pytest.mark.parametrize("memory", [0, 40_000, 1 << 30])
@pytest.mark.parametrize("kind", [SIMULATED, INTEGER])
def test_what_is_kept_changes_no_bit(memory: int, kind: EvaluatorKind) -> None:
    r = replace(recipe("residual", "ort_cpu"), kind=kind)
    asked = points(r, 8, seed=1)
    cold = [next(r.make()([p])) for p in asked]
    measure = candidates.CandidateMeasure(r, None, memory)
    assert list(measure(asked)) == cold
    assert measure._cache.used <= memory


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Every run of a session, by what the session is."""
    found: list[str] = []
    plain = Session.run

    def counted(self: Session, *given: object, **named: object) -> dict[str, object]:
        found.append(self._where)
        return plain(self, *given, **named)  # type: ignore[arg-type, return-value]

    monkeypatch.setattr(Session, "run", counted)
    yield found


def test_a_late_change_starts_late(runs: list[str]) -> None:
    r = recipe("residual", "ort_cpu")
    measure, batches = r.make(), -(-70 // 8)
    list(measure([r.space.start]))
    first = len(runs)
    assert first == batches * len(measure._parts) >= batches * 4
    keys = [c.key for c in r.space]
    late = keys.index(f"bits:{r.topology.weights[-1].tensor}")
    early = keys.index(f"bits:{r.topology.weights[0].tensor}")
    for choice, sections_run in ((late, 1), (early, len(measure._parts))):
        before = len(runs)
        list(measure([tuple(int(i == choice) for i in range(len(keys)))]))
        assert len(runs) - before == batches * sections_run
    before = len(runs)
    list(measure([r.space.start]))
    assert len(runs) - before == batches, "a known point runs its last section only"


@pytest.mark.sliced(3)
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("kind", [SIMULATED, INTEGER])
def test_threads_change_no_bit(threads: int, kind: EvaluatorKind) -> None:
    r = replace(recipe("residual", "ort_cpu"), kind=kind)
    asked = points(r, 4)
    assert list(r.make(threads, 2)(asked)) == list(recipe("residual", "ort_cpu").make(1)(asked))


@pytest.mark.parametrize("threads", [2, 4])
def test_candidates_are_given_up_after_the_same_batch_however_many_run_at_once(threads: int) -> None:
    r = replace(recipe("residual", "ort_cpu"), kind=SIMULATED)
    asked = points(r, 6)
    exact = [score.value for score in r.make(1)(asked)]

    def should_prune(best: Score) -> bool:
        return best.value < sorted(exact)[-2]

    alone, at_once = (list(r.make(count)(asked, should_prune)) for count in (1, threads))
    assert at_once == alone
    assert {score.pruned for score in alone} == {True, False}
    early = [score.value > value for score, value in zip(alone, exact, strict=True) if score.pruned]
    assert any(early), "some were given up before their last batch"


@pytest.mark.parametrize("spec", ["ort_cpu", "vta"])
@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("count", [1, 3, 8, 100])
def test_cuts_pass_stored_integers_only(net: str, spec: str, count: int) -> None:
    made_line = made(net, spec)
    parts = sections(made_line.graph, made_line.topology, made_line.graph.outputs[0].name, count=count)
    names = [n.name for p in parts for n in p.graph.nodes]
    assert len(names) == len(set(names))
    stored = {k.output for k in made_line.topology.kernels if k.form is Form.QUANTIZED}
    known: set[str] = set()
    for part in parts[:-1]:
        assert stored.issuperset(part.live) and part.live
        assert set(part.reads) <= known
        known = set(part.live)
        assert known == {*part.makes, *(t for t in part.live if t in part.reads or t not in part.makes)}
    assert set(parts[-1].reads) <= known and not parts[-1].integer
    if net == "residual":
        assert names == [n.name for n in made_line.graph.nodes], "every node is needed"
    else:
        assert "sigmoid1" not in names, "what the first output does not need is not run"
        assert any(not p.integer for p in parts[:-1]) or count == 1, "the island is no integer section"


@pytest.mark.sliced(4)
@pytest.mark.parametrize("metric", ["kl", "mse", "accuracy"])
def test_a_measurement_that_cannot_win_is_given_up(metric: str, runs: list[str]) -> None:
    r = replace(recipe("residual", "ort_cpu"), metric=metric)
    asked = points(r, 8, seed=5)
    exact = list(r.make()(asked))
    limit = sorted(s.value for s in exact)[len(exact) // 2]
    measure = r.make()
    before = len(runs)
    found = list(measure(asked, lambda best: best.value < limit))
    assert any(s.pruned for s in found) and not all(s.pruned for s in found)
    for now, then in zip(found, exact, strict=True):
        assert now.cost == then.cost
        if now.pruned:
            assert then.value <= now.value < limit
        else:
            assert now == then  # better than the limit, or known to be worse only behind the last samples
    assert len(runs) - before < len(asked) * 5 * len(measure._parts)
    again = r.make()
    assert list(again(asked, lambda best: best.value < limit)) == found
    assert list(measure(asked)) == exact, "what was left of a pruned candidate is no obstacle"


def test_a_cost_that_cannot_win_runs_nothing(runs: list[str]) -> None:
    r = recipe("residual", "ort_cpu")
    (score,) = r.make()([r.space.start], lambda best: best.cost > 0)
    assert score.pruned and score.value == 0.0 and not runs


@pytest.mark.grid
@requires_zoo
def test_resnet20_in_integers_has_the_simulated_scores() -> None:
    from tests.ops.test_zoo_agreement import graph_of

    with np.load(zoo("data/cifar10_val.npz")) as archive:
        images = next(archive[k] for k in archive.files if archive[k].ndim == 4)[:48]
    graph = replace(graph_of("cifar10_resnet20"))
    graph.__dict__["batch_size"] = 16
    pixels = (images / np.float32(255) - np.float32([0.485, 0.456, 0.406])) / np.float32([0.229, 0.224, 0.225])
    samples = ArraySamples({graph.inputs[0].name: pixels.transpose(0, 3, 1, 2).astype(np.float32)})
    made_line = line(graph, "ort_cpu", samples=samples)
    space = choice_space(made_line.topology, AnnotateOptions())
    reference = reference_of(Session(graph.model), samples, 16)
    r = CandidateRecipe(
        graph,
        made_line.topology,
        made_line.spec,
        made_line.schema,
        space,
        made_line.table,
        samples,
        reference,
        "kl",
        "bits",
        "qdq",
        INTEGER,
    )
    asked = points(r, 5)
    found = list(r.make()(asked))
    assert found == list(replace(r, kind=SIMULATED).make()(asked))
    assert found[0] == whole(r, asked[0])


@pytest.mark.grid
def test_recovered_weights_score_alike_in_both_forms_and_in_another_process() -> None:
    """Scores of candidates whose weights are recovered: the whole simulated model's with these weights, in any form."""
    plain = recipe("residual", "ort_cpu")
    moments = float_moments(plain.graph, plain.topology, plain.samples, 2048, memory_mb=256, seed=0)
    r = replace(plain, moments=moments, layer=LayerOptions(propagate=False))
    asked = points(r, 6)
    planner = Planner(r.graph, r.topology, r.spec, r.schema)
    variants = Variants(r.graph, r.topology, r.schema, planner, moments=moments, options=r.layer)
    expected = []
    for point in asked:
        strategy = r.table.strategy(r.space.decode(point))
        session, parameters = Simulator(r.graph, r.topology).prepare(
            planner.plan(strategy, variants.overrides(strategy))
        )
        outputs = outputs_of(session, r.samples, 16, parameters)
        expected.append(tuple(output_metrics(r.reference, outputs).items()))
    for kind in (SIMULATED, INTEGER):
        travelled = pickle.loads(pickle.dumps(replace(r, kind=kind)))
        assert [s.metrics for s in travelled.make()(asked)] == expected
    assert expected != [s.metrics for s in plain.make()(asked)]


def test_weights_that_the_device_cannot_express_are_worth_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = recipe("residual", "ort_cpu")
    moments = float_moments(plain.graph, plain.topology, plain.samples, 2048, memory_mb=256, seed=0)
    made = replace(plain, moments=moments).make()
    whole = Planner.plan

    def refuse(self: Planner, strategy: Strategy, overrides: Overrides = NO_OVERRIDES) -> QuantPlan:
        if overrides.weights:
            raise HardwareError("its sums do not fit", stage="plan", where="conv")
        return whole(self, strategy, overrides)

    monkeypatch.setattr(Planner, "plan", refuse)
    (score,) = made([plain.space.start])
    assert np.isnan(score.value)
    assert score.cost == made.cost(plain.space.start)
