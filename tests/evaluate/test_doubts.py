"""Samples that do not reach the model as in training are noticed before anything else, and others are not accused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from quantpipe.data import DigitsDataset, NpzDataset
from quantpipe.evaluate.preprocessing_checks import doubts
from quantpipe.graph.view import Graph
from quantpipe.intake.load import load_as_written
from quantpipe.metrics.interval import chance_of, wilson
from quantpipe.types import TensorInfo
from tests.e2e.models import DIGITS

IMAGE = [TensorInfo("image", (None, 1, 8, 8), "float32")]


def test_wilson_against_known_values() -> None:
    low, high = wilson(0.5, 10) or (0, 0)
    assert (round(low, 4), round(high, 4)) == (0.2366, 0.7634)
    low, high = wilson(1.0, 3) or (0, 0)
    assert round(low, 4) == 0.4385 and high == 1.0
    assert wilson(None, 3) is None and wilson(0.5, 0) is None
    for share in (0.0, 0.01, 0.5, 0.99, 1.0):
        for count in (1, 7, 1000):
            low, high = wilson(share, count) or (2, 2)
            assert 0 <= low <= share <= high <= 1


def test_the_probability_of_guessing_is_that_of_the_binomial_distribution() -> None:
    for right, count, classes in ((0, 5, 10), (3, 5, 2), (5, 64, 10), (64, 64, 1000), (1, 3, 3)):
        p = 1 / classes
        terms = (math.comb(count, k) * p**k * (1 - p) ** (count - k) for k in range(right, count + 1))
        assert chance_of(right, count, classes) == pytest.approx(sum(terms), rel=1e-9)
    assert chance_of(3, 5, 1) == 1.0


def graph_of(path: Path, samples: Any) -> Graph:
    return load_as_written(path, lambda raw: next(iter(samples.batches(4))).inputs)


def said(path: Path, dataset: Any, ports: list[TensorInfo], classes: int | None) -> tuple[str, ...]:
    samples = dataset.splits(ports, classes, 0).search
    graph = graph_of(path, samples)
    return doubts(graph, samples, graph.outputs[0].name, None).said


@pytest.mark.parametrize("scale", [1, 16])
def test_digits_that_are_scaled_wrong_are_noticed_and_right_ones_are_not(scale: int) -> None:
    port = [TensorInfo("image", (None, 1, 8, 8), "float32")]
    assert said(DIGITS, DigitsDataset(), port, 10) == ()
    found = said(DIGITS, DigitsDataset(preprocess={"scale": 16 * scale, "mean": 99}), port, 10)
    assert found and "dataset.preprocess" in found[0] and "the float model itself is right on" in found[0]


@pytest.mark.parametrize(
    ("preprocess", "wrong"),
    [({"scale": "1/16"}, False), ({"scale": 16, "mean": 99}, True), ({"scale": "1/16", "mean": 6}, False)],
)
def test_only_guessing_on_inputs_far_outside_is_called_wrong(preprocess: dict[str, Any], wrong: bool) -> None:
    """Inputs from -6 to -5 give guesses, and are within what prepared inputs may be: a warning is enough."""
    samples = DigitsDataset(preprocess=preprocess).splits(IMAGE, 10, 0).search
    graph = graph_of(DIGITS, samples)
    found = doubts(graph, samples, graph.outputs[0].name, None)
    assert found.wrong is wrong and (found.said != () or not wrong)


def with_norm(path: Path, mean: float, deviation: float) -> Path:
    """Normalization, then a dense layer: what it remembers is what its inputs should be like."""
    rng = np.random.default_rng(0)
    tensors = {
        "scale": np.ones(4), "shift": np.zeros(4), "mean": np.full(4, mean), "var": np.full(4, deviation**2),
        "w": rng.standard_normal((4, 3)),
    }  # fmt: skip
    graph = helper.make_graph(
        [
            helper.make_node("BatchNormalization", ["x", "scale", "shift", "mean", "var"], ["n"], name="norm"),
            helper.make_node("MatMul", ["n", "w"], ["y"], name="dense"),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in tensors.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.mark.parametrize(
    ("scale", "offset", "noticed"),
    [(1, 0, False), (3, 0, False), (1 / 3, 0, False), (255, 0, True), (1 / 255, 0, True), (1, 40, True)],
)
def test_without_labels_the_first_normalization_knows(
    tmp_path: Path, scale: float, offset: float, noticed: bool
) -> None:
    images = np.random.default_rng(1).standard_normal((64, 4)).astype(np.float32) * scale + offset
    np.savez(tmp_path / "d.npz", images=images)
    dataset = NpzDataset(path=str(tmp_path / "d.npz"))
    found = said(with_norm(tmp_path / "m.onnx", 0.0, 1.0), dataset, [TensorInfo("x", (None, 4), "float32")], None)
    assert bool(found) == noticed
    assert all("before the first BatchNormalization (norm)" in text for text in found)


def test_without_normalization_a_clip_that_cuts_most_off_is_noticed(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Clip", ["x", "low", "high"], ["y"], name="clip")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])],
        [numpy_helper.from_array(np.float32(value), name) for name, value in (("low", 0), ("high", 6))],
    )
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    for scale, noticed in ((1, False), (255, True)):
        images = np.random.default_rng(1).random((64, 4)).astype(np.float32) * scale
        np.savez(tmp_path / "d.npz", images=images)
        found = said(path, NpzDataset(path=str(tmp_path / "d.npz")), [TensorInfo("x", (None, 4), "float32")], None)
        assert bool(found) == noticed and all("cut off by the first Clip (clip)" in text for text in found)


def classifier(path: Path) -> Path:
    """Scores of three classes of which one wins where the inputs are large."""
    weight = np.asarray([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]], np.float32)
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w", "b"], ["s"], name="dense"), helper.make_node("Softmax", ["s"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3])],
        [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(np.float32([0, 0, 1]), "b")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.mark.parametrize(("scale", "count", "noticed"), [(8, 64, False), (1 / 255, 64, True), (1 / 255, 15, False)])
def test_without_labels_one_answer_to_all_samples_is_noticed(
    tmp_path: Path, scale: float, count: int, noticed: bool
) -> None:
    images = np.random.default_rng(1).standard_normal((4 * count, 4)).astype(np.float32) * scale
    np.savez(tmp_path / "d.npz", images=images)
    dataset = NpzDataset(path=str(tmp_path / "d.npz"), samples={"search": count})
    found = said(classifier(tmp_path / "m.onnx"), dataset, [TensorInfo("x", (None, 4), "float32")], None)
    assert bool(found) == noticed
    assert all(
        f"gives all of {count} samples the same answer, class 2 of 3" in text
        and "unless they are all of that class" in text
        for text in found
    )


def test_what_is_little_better_than_guessing_is_noticed() -> None:
    """The vision transformer makes something of inputs that are sixteen times too small: 1 in 5 is right."""
    path = DIGITS.with_name("digits_vit.onnx")
    assert said(path, DigitsDataset(), IMAGE, 10) == ()
    (found,) = said(path, DigitsDataset(preprocess={"scale": "1/16", "mean": 40}), IMAGE, 10)
    assert "little better than guessing among 10 classes" in found


def test_little_better_than_guessing_on_inputs_far_outside_is_called_wrong() -> None:
    """The doubt calls all later results meaningless, so the run stops; the model makes something of such inputs."""
    path = DIGITS.with_name("digits_vit.onnx")
    samples = DigitsDataset(preprocess={"scale": "1/16", "mean": 40}).splits(IMAGE, 10, 0).search
    graph = graph_of(path, samples)
    found = doubts(graph, samples, graph.outputs[0].name, None)
    assert "little better" in found.said[0] and found.wrong
