"""Parts of an output that are quantities of their own, and what a detector loses that a squared error does not see."""

from __future__ import annotations

import math

import numpy as np
import pytest

from quantpipe.evaluate.nearness import below, nearness_of
from quantpipe.metrics.kinds import automatic
from quantpipe.metrics.losses import LossKind, OutputLoss
from quantpipe.oprules.parts import Part, parts_of
from tests.ops.line import Net, load


def pyramid(net: Net, x: str, joined_last: bool) -> str:
    """Boxes and scores of two levels, joined per level and then over the levels, or the other way round."""
    levels = []
    for level, wide in enumerate((1, 2)):
        maps = net.conv(x, 3, 7, 3, 3, strides=[wide, wide], pads=[1, 1, 1, 1], name=f"head{level}")
        rows = net.node("Reshape", maps, net.constant(np.int64([0, 7, -1])))
        both = net.node("Transpose", rows, perm=[0, 2, 1])
        cut = [net.constant(np.int64([n])) for n in (0, 4, 7, 2)]
        boxes = net.node("Mul", net.node("Slice", both, cut[0], cut[1], cut[3]), net.constant(np.float32(400)))
        scores = net.node("Sigmoid", net.node("Slice", both, cut[1], cut[2], cut[3]))
        levels.append((boxes, scores))
    if joined_last:
        sides = (net.node("Concat", *kind, axis=1) for kind in zip(*levels, strict=True))
        return net.node("Concat", *sides, axis=-1, name="out")
    return net.node("Concat", *(net.node("Concat", *pair, axis=2) for pair in levels), axis=1, name="out")


@pytest.mark.parametrize("joined_last", [False, True])
def test_boxes_and_scores_are_parts_and_levels_are_not(joined_last: bool) -> None:
    net = Net()
    net.output(pyramid(net, net.input(None, 3, 8, 8), joined_last))
    graph = load(net)
    found = parts_of(graph, graph.outputs[0].name)
    assert [(p.axis, p.first, p.last, p.size) for p in found] == [(2, 0, 4, 7), (2, 4, 7, 7)]
    makers = [graph.producers[p.tensor].op for p in found]
    assert makers == (["Concat", "Concat"] if joined_last else ["Mul", "Sigmoid"])


def test_what_is_moved_behind_the_joint_keeps_its_parts() -> None:
    net = Net()
    out = net.node("Transpose", pyramid(net, net.input(None, 3, 8, 8), True), perm=[0, 2, 1])
    net.output(net.node("Reshape", out, net.constant(np.int64([0, 7, 8, -1]))))
    graph = load(net)
    assert [(p.axis, p.first, p.last) for p in parts_of(graph, graph.outputs[0].name)] == [(1, 0, 4), (1, 4, 7)]


def test_levels_alone_and_plain_outputs_have_no_parts() -> None:
    net = Net()
    x = net.input(None, 3, 8, 8)
    net.output(net.node("Concat", *(net.conv(x, 3, 2, name=n) for n in "ab"), axis=1), net.conv(x, 3, 2, name="c"))
    graph = load(net)
    assert [parts_of(graph, o.name) for o in graph.outputs] == [(), ()]


PARTS = (Part("boxes", 1, 0, 4, 7), Part("scores", 1, 4, 7, 7))


def test_the_loss_is_that_of_the_worst_part() -> None:
    """All scores are gone, and the whole is 60 dB from the float model's."""
    rng = np.random.default_rng(1)
    real = np.concatenate([rng.uniform(0, 640, (20, 4, 5)), rng.uniform(0, 1, (20, 3, 5))], axis=1)
    found = real.copy()
    found[:, 4:] = 0.0
    assert OutputLoss("o", LossKind.MSE).of(real, found) < 1e-3
    lost = OutputLoss("o", LossKind.MSE, 1.0, PARTS).of(real, found)
    assert lost == pytest.approx(2 * np.mean(real[:, 4:] ** 2) / np.var(real[:, 4:]))
    ragged = tuple(real), tuple(found)
    assert OutputLoss("o", LossKind.MSE, 1.0, PARTS).of(*ragged) == pytest.approx(lost)
    other = Part("scores", 1, 4, 8, 8)
    assert OutputLoss("o", LossKind.MSE, 1.0, (PARTS[0], other)).of(real, found) < 1e-3, (
        "another size than was measured"
    )
    row = nearness_of("o", real, found, PARTS)
    assert row["sqnr_db"] is not None and row["sqnr_db"] > 50
    assert [part["sqnr_db"] for part in row["parts"]] == [None, pytest.approx(0.0)]
    (short,) = below([row], 10.0)
    assert (short.output, short.part) == ("o", "scores") and math.isclose(short.sqnr_db, 0.0, abs_tol=1e-9)
    assert [p["sqnr_db"] for p in nearness_of("o", *ragged, PARTS)["parts"]] == [None, pytest.approx(0.0)]


def test_automatic_losses_know_the_parts() -> None:
    net = Net()
    net.output(pyramid(net, net.input(None, 3, 8, 8), False))
    graph = load(net)
    name = graph.outputs[0].name
    (loss,) = automatic(graph, name, alone=False, labelled=False)
    assert loss.kind is LossKind.MSE and loss.parts == parts_of(graph, name) != ()
