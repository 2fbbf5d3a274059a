"""A detector through the whole line: scores that go under beside boxes are seen, and the decode tail mends that."""

from __future__ import annotations

import numpy as np
import pytest

import quantpipe
from tests.ops.line import Net

pytestmark = pytest.mark.program


def detector(scale: float) -> Net:
    """Boxes of a layer, `scale` times some tens of units large, joined with scores and chances between 0 and 1."""
    net = Net()
    x = net.node("Relu", net.conv(net.input(None, 3, 8, 8), 3, 8, 3, 3, name="back"))
    boxes = net.node("Conv", x, net.floats(4, 8, 1, 1, scale=scale), kernel_shape=[1, 1], name="boxes")
    scores = net.node("Sigmoid", net.conv(x, 8, 5, name="classes"), name="scores")
    chances = net.node("Sigmoid", net.conv(x, 8, 1, name="objects"), name="chances")
    net.output(net.node("Concat", boxes, scores, chances, axis=1, name="joined"))
    return net


def both(scale: float) -> dict[str, quantpipe.Result]:
    """Mode of precision -> the result."""
    images = np.random.default_rng(0).standard_normal((160, 3, 8, 8)).astype(np.float32)
    model = detector(scale).proto()
    modes = ("none", "auto")
    return {m: quantpipe.quantize(model, images, "ort_cpu", precision=m, recover="none") for m in modes}


def test_scores_that_go_under_beside_boxes_are_seen_and_kept() -> None:
    found = both(4.0)
    lost, kept = (found[mode].report["outputs"][0] for mode in ("none", "auto"))
    parts = {part["tensor"]: part["sqnr_db"] for part in lost["parts"]}
    assert lost["sqnr_db"] > 25 and parts["boxes_out"] > 25, "the whole looks well"
    assert parts["scores_out"] < 15
    assert any("the part scores_out of the output joined_out" in text for text in found["none"].warnings)
    assert all(part["sqnr_db"] > 25 for part in kept["parts"])
    assert not [text for text in found["auto"].warnings if "calibration samples" not in text]
    assert found["auto"].report["precision"]["float"] == ["joined"]


def test_a_tail_that_loses_is_float_as_one_and_shown() -> None:
    """Ranges that are not far enough apart to be doubted: it is the measurement that tells."""
    found = both(0.8)
    precision = found["auto"].report["precision"]
    role = precision["roles"][0]
    assert role["role"].startswith("float:tail: everything after the last layers") and role["why"].startswith(
        "measured; annotate.float_tail=never"
    )
    assert {"scores", "joined"} <= set(precision["float"]) and "classes" not in precision["float"]
    assert role["nodes"] == len(precision["float"]) and found["auto"].report["agreement"]["differing"] == 0
    assert precision["loss_after"] < 0.5 * precision["loss_before"]
