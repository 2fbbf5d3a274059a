"""The embedded detector through the line: its labels, its figures, and the objective that is about what it finds."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest

import quantpipe
from quantpipe import assets
from quantpipe.annotate.tail import tail_of
from quantpipe.data import DigitsDetectDataset
from quantpipe.data.sources.digits_detect import SIDE
from quantpipe.data.splits import Splits
from quantpipe.data.subset import First
from quantpipe.evaluate.detected import Judge
from quantpipe.evaluate.generalization import generalization
from quantpipe.graph.execute import Session
from quantpipe.graph.view import Graph
from quantpipe.intake.load import load_graph
from quantpipe.metrics.detection_outputs import DetectionOptions, layout_by
from quantpipe.metrics.reference import Compared, Reference, metric_of, output_metrics, reference_of
from quantpipe.types import ModelMetrics, TensorInfo, objects_of

PATH = Path(assets.__file__).parent / "digits_detect.onnx"
NO_METRICS: ModelMetrics = {"top1": None, "kl": 0.0, "sqnr_db": None, "cosine": None}


@cache
def splits() -> Splits:
    return DigitsDetectDataset(samples={"calibrate": 16, "search": 48, "evaluate": 96}).splits(
        [TensorInfo("image", (None, 1, SIDE, SIDE), "float32")], None, 0
    )


@cache
def graph() -> Graph:
    images = next(iter(splits().calibrate.batches(4))).inputs
    return load_graph(PATH, lambda _: images, isolate=False)


@cache
def reference(decides: bool = True) -> Reference:
    found = layout_by(DetectionOptions(), graph(), decides=decides)
    return reference_of(Session(graph().model), splits().evaluate, 32, Compared("detections", detections=found))


def test_the_scenes_are_as_they_were_and_their_boxes_hold_ink() -> None:
    ports = [TensorInfo("image", (None, 1, SIDE, SIDE), "float32")]
    found = DigitsDetectDataset().splits(ports, None, 7)
    shown = objects_of(found.evaluate)
    assert shown is not None and (len(found.calibrate), len(found.evaluate)) == (128, 256)
    assert Counter(len(one) for one in shown) == COUNTS
    images = next(iter(found.evaluate.batches(64))).inputs["image"]
    for image, one in zip(images, shown, strict=False):
        assert len(one) and np.all(one.boxes >= 0) and np.all(one.boxes <= 1)
        for left, top, right, bottom in np.rint(one.boxes * SIDE).astype(int):
            inside = image[0, top:bottom, left:right]
            assert inside.max() > 0.45 and inside.max() > image.mean() + 0.1
    assert objects_of(First(found.evaluate, 3)) == shown[:3]
    few = splits()
    for own, first in zip(objects_of(few.evaluate) or (), shown, strict=False):
        assert np.array_equal(own.boxes, first.boxes) and np.array_equal(own.classes, first.classes)


COUNTS = {1: 123, 2: 104, 3: 28, 4: 1}
"""Objects in a scene -> how many of the evaluation scenes have so many."""


def test_the_file_is_what_the_script_writes() -> None:
    pytest.importorskip("torch")
    from embedded_models.train_digits_detect import build, to_onnx

    own, other = onnx.load(PATH), to_onnx(build().eval())
    plain = ("Identity", "Constant")  # which later versions of the exporter add
    ops = [[n.op_type for n in model.graph.node if n.op_type not in plain] for model in (own, other)]
    assert ops[0] == ops[1]
    kernels = [sorted(list(i.dims) for i in m.graph.initializer if len(i.dims) == 4) for m in (own, other)]
    assert kernels[0] == kernels[1]


@pytest.mark.program
def test_the_float_detector_finds_most_digits_by_labels() -> None:
    pytest.importorskip("pycocotools")
    judge = Judge.of(graph(), reference(), objects_of(splits().evaluate))
    found = judge.with_figures(NO_METRICS, reference().found)
    assert found["detections"] == 1.0
    assert 0.7 < (found["map"] or 0) < (found["map50"] or 0) and (found["map50"] or 0) > 0.95
    part = judge.part(reference().found)
    assert part is not None and part["layout"] == "cxcywh" and part["boxes"] == "detections@0:4"
    assert part["labelled"] == sum(len(one) for one in objects_of(splits().evaluate) or ())
    assert abs(part["objects"] - part["labelled"]) < 0.2 * part["labelled"]


def test_labels_without_the_package_say_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quantpipe.evaluate.detected.is_installed", lambda: False)
    judge = Judge.of(graph(), reference(), objects_of(splits().evaluate))
    found = judge.with_figures(NO_METRICS, reference().found)
    assert found["map"] is None and found["detections"] == 1.0
    assert "[coco]" in str((judge.part(reference().found) or {}).get("note"))


def test_agreement_falls_with_what_is_lost_and_is_measured_only_where_it_decides() -> None:
    own = np.asarray(reference().outputs)
    values = []
    for noise in (0.0, 0.5, 2.0, 8.0):
        moved = own.copy()
        moved[:, :4] += np.random.default_rng(0).normal(0, noise, moved[:, :4].shape)
        values.append(metric_of("detections", reference(), moved))
    assert values[0] == 1.0 and all(a > b for a, b in pairwise(values)) and values[-1] < 0.3
    silent = own.copy()
    silent[:, 4:] = 0
    assert output_metrics(reference(), silent)["detections"] == 0.0
    assert "detections" not in output_metrics(reference(decides=False), silent)


def test_the_standard_error_is_that_of_leaving_groups_out() -> None:
    moved = np.asarray(reference().outputs).copy()
    moved[:, :4] += np.random.default_rng(1).normal(0, 1.0, moved[:, :4].shape)
    found = generalization("detections", (reference(), moved), (reference(), moved))
    assert found is not None and found["search"] == pytest.approx(1 - metric_of("detections", reference(), moved))
    assert found["difference"] == 0.0 and 0.0 < found["standard_error"] < 0.2 and not found["parted"]


def test_the_decode_is_the_tail() -> None:
    ops = Counter(graph().by_name[name].op for name in tail_of(graph()))
    assert ops["Softmax"] == ops["Sigmoid"] == 1 and ops["Conv"] == 1, "the expectation of the distances"
    assert {"Concat", "Mul", "Sub", "Add"} <= set(ops)


@pytest.mark.program
def test_the_objective_about_detections_is_searched_and_reported(tmp_path: Path) -> None:
    found = quantpipe.quantize(
        PATH,
        DigitsDetectDataset(samples={"calibrate": 32, "search": 48, "evaluate": 96}),
        "ort_cpu",
        objective={"option": "detections", "tolerance": 0.2},
        evaluate={"latency_runs": 1, "agreement_samples": 8, "layer_samples": 4},
        folder=tmp_path,
    )
    search, realized = found.report["search"], found.report["metrics"]["realized"]
    assert search["metric"] == "detections" and search["least_value"] == pytest.approx(0.8)
    assert search["best_value"] == pytest.approx(search["metrics"]["detections"]) and search["best_value"] > 0.8
    assert 0.8 < (realized["detections"] or 0) < 1 and found.report["metrics"]["float"]["detections"] == 1.0
    assert found.report["detections"]["layout"] == "cxcywh" and found.report["agreement"]["differing"] == 0
    assert (found.report["generalization"] or {})["metric"] == "detections"
