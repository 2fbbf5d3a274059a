"""The metric that fits an output: equal pixels and mIoU of class maps, keypoints in pixels, boxes, selected rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper, save

import quantpipe
from quantpipe.evaluate.detected import Judge, box_warnings
from quantpipe.evaluate.lossy import map_warnings
from quantpipe.evaluate.nearness import nearness_of
from quantpipe.metrics.answers import ClassCounts
from quantpipe.metrics.average_precision import Detections
from quantpipe.metrics.boxes import BoxLayout
from quantpipe.metrics.detections import DetectionLayout, Slice
from quantpipe.metrics.reference import Reference
from quantpipe.report import text

QUICK: Any = {"evaluate": {"latency_runs": 1, "baseline": "none", "explain": "none"}}
SIDE = 24


def heat(places: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    """Heat maps `[N, K, 24, 24]` with a peak at each of the places `[N, K, 2]`."""
    grid = np.stack(np.meshgrid(np.arange(SIDE), np.arange(SIDE), indexing="ij"), -1)
    squares = ((grid[None, None] - places[:, :, None, None]) ** 2).sum(-1)
    return np.exp(-squares / 4) + 0.01 * rng.standard_normal(squares.shape)


def test_keypoints_are_compared_in_pixels() -> None:
    rng = np.random.default_rng(0)
    places = rng.integers(4, 20, (6, 5, 2))
    own = heat(places, rng)
    row = nearness_of("heat", own, heat(places + np.array([3, 4]) * (np.arange(6) < 3)[:, None, None], rng))
    assert row["keypoints"] == 30 and row["pixels"] == pytest.approx(2.5, abs=0.3)
    assert row["pixels_95"] == pytest.approx(5.0, abs=1.0) and "miou" not in row
    assert "keypoints 2.5" in text.nearness(dict(row))
    shapes = type("G", (), {"shapes": {"heat": own.shape}})()
    assert "moves by" in map_warnings([row], shapes)[0]
    assert not map_warnings([nearness_of("heat", own, own + 0.001)], shapes)


def blocks(rng: np.random.Generator, classes: int = 6) -> NDArray[Any]:
    """Scores `[N, C, 24, 24]` of classes in blocks of 6 x 6 pixels."""
    kinds = np.kron(rng.integers(0, classes, (8, 4, 4)), np.ones((6, 6), np.int64))
    return np.moveaxis(np.eye(classes)[kinds], -1, 1) * 4 + 0.3 * rng.standard_normal((8, classes, SIDE, SIDE))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_class_maps_have_equal_pixels_and_miou(layout: str) -> None:
    rng = np.random.default_rng(1)
    own = blocks(rng)
    found = own.copy()
    found[:, :, :6] = np.roll(found[:, :, :6], 1, axis=1)  # a quarter of the rows gets another class
    pair = (own, found) if layout == "NCHW" else (np.moveaxis(own, 1, 3), np.moveaxis(found, 1, 3))
    row = nearness_of("scores", *pair)
    assert row["equal"] == pytest.approx(0.75) and "keypoints" not in row
    a, b = own.argmax(1).ravel(), found.argmax(1).ravel()
    expected = np.mean([np.sum((a == k) & (b == k)) / np.sum((a == k) | (b == k)) for k in range(6)])
    assert row["miou"] == pytest.approx(expected)


def test_pictures_and_features_are_numbers_alone() -> None:
    rng = np.random.default_rng(2)
    for own in map(rng.standard_normal, ((4, 3, SIDE, SIDE), (4, 32, SIDE, SIDE), (4, 8, 4, 4))):
        row = nearness_of("y", own, own + 0.1)
        assert "miou" not in row and "keypoints" not in row and text.map_figures(row) is None


def test_classes_of_a_few_pixels_do_not_count() -> None:
    counts = ClassCounts({0: 10_000, 1: 3}, {0: 10_000}, {0: 10_003})
    assert counts.mean_iou == pytest.approx(10_000 / 10_003)


def detector() -> tuple[DetectionLayout, NDArray[Any]]:
    layout = DetectionLayout(Slice("o", 1, 0, 4), Slice("o", 1, 4), layout=BoxLayout.XYXY, logits=False, relative=False)
    corners = np.array([[10, 10, 30, 30], [50, 50, 90, 90], [5, 60, 25, 80]], np.float64)
    return layout, np.concatenate([corners, np.eye(3) * 0.9], axis=1)[None]


def test_boxes_that_move_and_boxes_that_are_lost_are_counted() -> None:
    layout, own = detector()
    reference = Reference(own, None, output="o", detections=layout)
    judge = Judge(reference, None, (1.0, 1.0), (100.0, 100.0))
    assert isinstance(reference.objects[0], Detections)
    found = own.copy()
    found[0, 0, :4] += 3  # moves by three pixels
    found[0, 1, :4] += 60  # is elsewhere
    part = judge.part(found)
    assert part is not None and part["lost"] == pytest.approx(1 / 3)
    assert part["pixels"] == pytest.approx(1.5) and part["pixels_95"] == pytest.approx(2.85)
    assert "33 % of the 3 objects" in box_warnings(part)[0]
    assert not box_warnings(judge.part(own)) and not box_warnings(None)


def selecting(path: Path) -> Path:
    """A model that gives the boxes that it selects itself: another number of rows for each sample."""
    rng = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> Any:
        return numpy_helper.from_array((rng.standard_normal(shape) * (2 / np.prod(shape[1:])) ** 0.5).astype("f"), name)

    def held(name: str, value: Any, kind: str = "f") -> Any:
        return numpy_helper.from_array(np.asarray(value, kind), name)

    n = helper.make_node
    nodes = [
        n("Conv", ["x", "w1"], ["a"], strides=[2, 2], pads=[1] * 4),
        n("Relu", ["a"], ["r"]),
        n("Conv", ["r", "wb"], ["bm"]),
        n("Conv", ["r", "ws"], ["sm"]),
        n("Reshape", ["bm", "shb"], ["b0"]),
        n("Transpose", ["b0"], ["b1"], perm=[0, 2, 1]),
        n("Sigmoid", ["b1"], ["boxes"]),
        n("Reshape", ["sm", "shs"], ["s0"]),
        n("Sigmoid", ["s0"], ["scores"]),
        n("NonMaxSuppression", ["boxes", "scores", "most", "iou", "least"], ["chosen"]),
        n("Gather", ["chosen", "columns"], ["places"], axis=1),
        n("GatherND", ["boxes", "places"], ["picked"]),
    ]
    constants = [
        weight("w1", 8, 3, 3, 3), weight("wb", 4, 8, 1, 1), weight("ws", 2, 8, 1, 1),
        held("shb", [0, 4, -1], "i8"), held("shs", [0, 2, -1], "i8"), held("most", 40, "i8"),
        held("iou", 0.5), held("least", 0.9), held("columns", [0, 2], "i8"),
    ]  # fmt: skip
    ports = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 16, 16])]
    out = [helper.make_tensor_value_info("picked", TensorProto.FLOAT, ["k", 4])]
    graph = helper.make_graph(nodes, "selecting", ports, out, constants)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)
    return path


@pytest.mark.program
def test_a_model_that_selects_boxes_is_judged_by_samples(tmp_path: Path) -> None:
    x = np.random.default_rng(3).standard_normal((80, 3, 16, 16)).astype("f")
    found = quantpipe.quantize(selecting(tmp_path / "m.onnx"), x, folder=tmp_path / "run", **QUICK).report
    (row,) = found["outputs"]
    average = next(one for one in found["groups"]["rows"] if one["by"] == "all")
    assert average["samples"] == found["run"]["samples"] == 40 and row.get("other_shape", 0) < 40
    assert found["agreement"]["differing"] == 0


def argmax(path: Path) -> Path:
    rng = np.random.default_rng(0)
    weight = numpy_helper.from_array((rng.standard_normal((6, 3, 5, 5)) * 0.2).astype("f"), "w")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["s"], pads=[2] * 4),
        helper.make_node("ArgMax", ["s"], ["y"], axis=1, keepdims=0),
    ]
    ports = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, SIDE, SIDE])]
    out = [helper.make_tensor_value_info("y", TensorProto.INT64, ["n", SIDE, SIDE])]
    graph = helper.make_graph(nodes, "argmax", ports, out, [weight])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)
    return path


def test_class_numbers_have_no_divergence(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    x = np.kron(rng.standard_normal((80, 3, 4, 4)), np.ones((6, 6))).astype("f")
    found = quantpipe.quantize(argmax(tmp_path / "m.onnx"), x, folder=tmp_path / "run", **QUICK).report
    (row,) = found["outputs"]
    assert row["equal"] > 0.95 and row["miou"] is not None and row["miou"] > 0.9
    assert found["metrics"]["realized"]["kl"] is None
    assert text.main_map(found) == text.nearness(dict(row))
    classes = [one for one in found["groups"]["rows"] if one["by"] == "class"]
    assert len(classes) >= 5
