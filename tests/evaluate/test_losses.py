"""What the outputs of a model lose: each by its kind, all in one unit, the greatest decides."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from quantpipe.errors import ConfigError, DataError
from quantpipe.graph.execute import Session
from quantpipe.metrics.kinds import automatic, kind_of
from quantpipe.metrics.losses import LossKind, OutputLoss, differing, joint_loss, only_kl, squared_error
from quantpipe.metrics.reference import Compared, checked_reference, loss_of, metric_of, output_metrics, reference_of
from quantpipe.scoring.holdout import HoldoutScorer
from quantpipe.scoring.sections import sections
from tests.ops.line import ArraySamples, Line, Net, line, load, normal_samples

KL, MSE, DIFFERING = LossKind.KL, LossKind.MSE, LossKind.DIFFERING


def softmax(x: np.ndarray) -> np.ndarray:
    grown = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(grown / grown.sum(-1, keepdims=True))


def test_each_kind_has_the_loss_of_its_formula() -> None:
    rng = np.random.default_rng(0)
    own, other = rng.standard_normal((2, 6, 5))
    p, q = softmax(own), softmax(other)
    divergence = float(np.mean(np.sum(p * np.log(p / q), -1)))
    relative = float(np.mean((own - other) ** 2) / np.var(own))
    assert OutputLoss("o", KL).of(own, other) == pytest.approx(divergence, rel=1e-6)
    assert OutputLoss("o", MSE).of(own, other) == pytest.approx(2 * relative, rel=1e-6)
    assert OutputLoss("o", MSE, 0.25).of(own, other) == pytest.approx(0.5 * relative, rel=1e-6)
    whole = np.array([[1, 2], [3, 4]]), np.array([[1, 2], [3, 5]])
    assert OutputLoss("o", DIFFERING).of(*whole) == 0.25
    assert OutputLoss("o", MSE).of(own, np.full_like(own, np.nan)) == math.inf


def test_masked_elements_and_lost_shapes_of_a_squared_error() -> None:
    own, other = np.array([[1.0, -np.inf], [3.0, 5.0]]), np.array([[2.0, 0.0], [3.0, 5.0]])
    assert squared_error(own, other) == pytest.approx(1 / 3 / np.var([1.0, 3.0, 5.0]))
    rows = (np.array([1.0, 3.0]), np.array([2.0, 6.0, 4.0])), (np.array([1.0, 3.0]), np.array([2.0]))
    lost = np.sum((rows[0][1] - 3.2) ** 2)  # the second sample is lost: the mean of all in its place
    assert squared_error(*rows) == pytest.approx(lost / 5 / np.var([1.0, 3.0, 2.0, 6.0, 4.0]))
    assert differing(*rows) == 3 / 5 and differing(own, other[:1]) == 1.0
    masked = np.array([[1.0, -np.inf], [3.0, 5.0]])
    assert squared_error(masked, np.zeros((2, 3))) == pytest.approx(1.0), "all are lost: the variance of what is known"


def test_the_greatest_loss_decides() -> None:
    losses = (OutputLoss("a", MSE), OutputLoss("b", MSE, 0.5))
    own = {"a": np.array([[0.0], [2.0]]), "b": np.array([[0.0], [200.0]])}
    found = {"a": own["a"] + 0.1, "b": own["b"] + 20}
    assert joint_loss(losses, own, found) == (pytest.approx(0.04), {"a": pytest.approx(0.02), "b": pytest.approx(0.04)})
    assert only_kl((OutputLoss("a", KL),)) == "a"
    for several in (losses, (OutputLoss("a", MSE),), (OutputLoss("a", KL, 2.0),)):
        assert only_kl(several) is None


Wire = Callable[[Net, str], str]
BEHIND: Mapping[str, tuple[Wire, LossKind]] = {
    "nothing": (lambda net, x: x, MSE),
    "softmax": (lambda net, x: net.node("Softmax", x, axis=-1), KL),
    "log_softmax": (lambda net, x: net.node("LogSoftmax", x, axis=-1), KL),
    "softmax, then a cast": (lambda net, x: net.node("Identity", net.node("Softmax", x, axis=-1)), KL),
    "softmax of another axis": (lambda net, x: net.node("Softmax", x, axis=1), MSE),
    "softmax, transposed away": (
        lambda net, x: net.node("Transpose", net.node("Softmax", x, axis=-1), perm=[0, 2, 1]),
        MSE,
    ),
    "softmax of what becomes the last axis": (
        lambda net, x: net.node("Transpose", net.node("Softmax", x, axis=1), perm=[0, 2, 1]),
        KL,
    ),
    "a softmax further up": (lambda net, x: net.node("Relu", net.node("Softmax", x, axis=-1)), MSE),
    "class indices": (lambda net, x: net.node("ArgMax", x, axis=-1), DIFFERING),
}


@pytest.mark.parametrize("case", BEHIND)
def test_class_scores_are_found_by_structure(case: str) -> None:
    wire, kind = BEHIND[case]
    net = Net(0)
    x = net.node("Relu", net.input(None, 4, 6))
    net.output(wire(net, x))
    graph = line(net, "ort_cpu").graph
    assert kind_of(graph, graph.outputs[0].name, labelled=False) is kind


@pytest.mark.parametrize("op", ["Softmax", "ArgMax"])
def test_what_a_softmax_or_argmax_reads_holds_class_scores(op: str) -> None:
    net = Net(0)
    x = net.node("Relu", net.input(None, 6))
    net.output(x, net.node(op, net.node("Identity", x), axis=-1))
    graph = line(net, "ort_cpu").graph
    assert kind_of(graph, graph.outputs[0].name, labelled=False) is KL


def test_labels_make_class_scores_of_rank_two_only() -> None:
    net = Net(0)
    x = net.node("Relu", net.input(None, 4, 6))
    net.output(net.node("Flatten", x), x)
    graph = line(net, "ort_cpu").graph
    flat, deep = (o.name for o in graph.outputs)
    assert kind_of(graph, flat, labelled=True) is KL and kind_of(graph, flat, labelled=False) is MSE
    assert kind_of(graph, deep, labelled=True) is MSE


def two_headed() -> Net:
    """Class scores behind a Softmax, and an embedding a thousand times as large."""
    net = Net(4)
    x = net.input(None, 3, 10, 10)
    a = net.node("Relu", net.conv(x, 3, 8, 3, 3))
    b = net.node("Relu", net.conv(a, 8, 8, 3, 3))
    pooled = net.node("Flatten", net.node("GlobalAveragePool", b))
    scores = net.node("Softmax", net.dense(pooled, 8, 5), axis=-1)
    net.output(scores, net.node("Mul", net.dense(pooled, 8, 6), net.constant(np.float32(1000))))
    return net


def made() -> Line:
    found = line(two_headed(), "ort_cpu")
    rng = np.random.default_rng(5)
    name = found.graph.inputs[0].name
    return replace(found, samples=ArraySamples({name: rng.standard_normal((24, 3, 10, 10)).astype(np.float32)}, None))


def test_all_outputs_count_each_by_its_own_kind() -> None:
    graph = made().graph
    scores, embedding = (o.name for o in graph.outputs)
    found = automatic(graph, scores, alone=False, labelled=False)
    assert found == (OutputLoss(scores, KL), OutputLoss(embedding, MSE))
    assert automatic(graph, scores, alone=True, labelled=False) == (OutputLoss(scores, KL),)
    assert automatic(graph, scores, alone=True, labelled=False, weights={embedding: 3}) == (
        OutputLoss(scores, KL), OutputLoss(embedding, MSE, 3.0),
    )  # fmt: skip
    assert automatic(graph, scores, alone=False, labelled=False, states=frozenset({embedding})) == found[:1]
    with pytest.raises(ConfigError, match=r"no such output.*legal are"):
        automatic(graph, scores, alone=False, labelled=False, weights={"x" + scores: 1})
    with pytest.raises(ConfigError, match="leaves no output that counts"):
        automatic(graph, scores, alone=False, labelled=False, weights={scores: 0, embedding: 0})


def test_a_plan_is_judged_by_the_worse_of_its_outputs() -> None:
    """Beside plain onnxruntime on the whole simulated model; and each output alone can be the worse one."""
    found = made()
    scores, embedding = (o.name for o in found.graph.outputs)
    session = Session(found.graph.model)
    for weights in ({}, {scores: 1e6}, {embedding: 1e6}):
        losses = automatic(found.graph, scores, alone=False, labelled=False, weights=weights)
        reference = reference_of(session, found.samples, 8, Compared(scores, losses))
        judge = HoldoutScorer(reference, found.samples)
        outputs = judge.outputs(found.graph, found.topology, found.plan())
        assert isinstance(outputs, Mapping) and list(outputs) == [scores, embedding]
        _, each = joint_loss(losses, reference.every(reference.found), outputs)
        assert min(each.values()) > 0
        worst = max(each, key=lambda name: each[name])
        assert not weights or worst == next(iter(weights))
        metrics = output_metrics(reference, outputs)
        assert judge.loss_of(outputs) == loss_of(reference, outputs) == metrics["loss"] == each[worst]
        assert metric_of("auto", reference, outputs) == -metrics["loss"]
        assert metrics[f"loss.{embedding}"] == each[embedding] and metrics[f"cosine.{embedding}"] > 0.9


def test_sections_give_every_output_that_is_compared() -> None:
    found = made()
    names = [o.name for o in found.graph.outputs]
    parts = sections(found.graph, found.topology, *names)
    assert parts[-1].ends == tuple(names)
    assert sections(found.graph, found.topology, names[1])[-1].ends == (names[1],)


def test_outputs_that_cannot_be_compared_are_named() -> None:
    compared = Compared("a", (OutputLoss("a", KL), OutputLoss("b", MSE)))
    rows = np.zeros((4, 2), np.float32)
    with pytest.raises(DataError, match=r"output b has no row per sample.*objective.outputs=\{b: 0\}"):
        checked_reference({"a": rows, "b": rows[:1]}, None, compared, samples=4)
    bad = rows.copy()
    bad[2, 0] = np.inf
    assert checked_reference({"a": rows, "b": bad}, None, compared, samples=4).names == ("a", "b")
    with pytest.raises(DataError, match="not finite for sample 2"):
        checked_reference({"a": bad, "b": rows}, None, compared, samples=4)


@pytest.mark.parametrize(("op", "attributes"), [("ArgMax", {"axis": 0}), ("ReduceSum", {"keepdims": 0})])
def test_an_output_without_an_axis_of_samples_is_named(op: str, attributes: dict[str, int]) -> None:
    """A model that reduces over its samples: rows of a batch, or a single number, cannot be told apart by sample."""
    net = Net()
    net.output(net.node(op, net.dense(net.input(None, 6), 6, 4), **attributes))
    graph = load(net)
    samples = normal_samples(graph, 12)
    with pytest.raises(DataError, match=rf"{op.lower()}1_out has no row per sample \(\d+ rows for 12 samples\)"):
        reference_of(Session(graph.model), samples, 4)
    alone = reference_of(Session(graph.model), samples, 1)  # each a batch of its own: a row for each
    assert len(alone.outputs) == 12


def test_a_function_gets_every_output_by_name() -> None:
    seen: list[Any] = []

    def both(own: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray], labels: object) -> float:
        seen.append((list(own), list(other), labels))
        return float(np.mean(own["b"]) - np.mean(other["b"]))

    rows = np.ones((3, 2), np.float32)
    reference = checked_reference({"a": rows, "b": 2 * rows}, None, Compared("a", (), both, named=True), samples=3)
    assert metric_of("callable", reference, {"a": rows, "b": rows}) == 1.0
    assert seen == [(["a", "b"], ["a", "b"], None)]
