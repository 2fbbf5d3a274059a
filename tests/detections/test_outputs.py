"""Where boxes and scores are: told by structure, or by the user; what is read is what was planted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from quantpipe.errors import ConfigError
from quantpipe.graph.view import Graph
from quantpipe.metrics.boxes import BoxLayout
from quantpipe.metrics.detection_outputs import DetectionOptions, layout_by
from quantpipe.metrics.detections import DetectionLayout
from tests.ops.line import Net, load

PLANTED = np.array([[8.0, 8, 24, 24], [30, 4, 60, 40], [40, 44, 52, 62]])
CLASSES = np.array([2, 0, 1])


def grid(layout: BoxLayout, *, places_first: bool) -> np.ndarray:
    """One sample of a detector's raw output: three objects, one of them twice, among 20 places."""
    rng = np.random.default_rng(0)
    first = rng.uniform(0, 40, (20, 2))
    boxes = np.concatenate([first, first + rng.uniform(4, 20, (20, 2))], axis=1)
    scores = np.full((20, 3), 0.002)
    for place, (box, kind) in enumerate(zip(PLANTED, CLASSES, strict=True)):
        boxes[3 * place], scores[3 * place, kind] = box, 0.9 - 0.1 * place
    boxes[1], scores[1, 2] = PLANTED[0] + 1, 0.5
    if layout is BoxLayout.CXCYWH:
        boxes = np.concatenate([(boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]], axis=1)
    rows = np.concatenate([boxes, scores], axis=1)
    return (rows if places_first else rows.T)[None].astype(np.float32)


def graph_of(shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, str] = MappingProxyType({})) -> Graph:
    """A model whose outputs have these shapes, behind nothing."""
    net = Net()
    x = net.input(None, 1, name="x")
    for name, shape in shapes.items():
        whole = net.node("MatMul", x, net.floats(1, int(np.prod(shape[1:]))), name=f"{name}_values")
        view = net.node("Reshape", whole, net.constant(np.int64([-1, *shape[1:]])), name=f"{name}_view")
        net.output(net.node("Cast", view, to=7, name=name) if dtypes.get(name) else view)
    graph = load(net)
    assert [graph.shapes[o.name][1:] for o in graph.outputs] == [shape[1:] for shape in shapes.values()]
    return graph


def layout(graph: Graph, decides: bool = False, **given: Any) -> DetectionLayout | None:
    return layout_by(DetectionOptions(**given), graph, decides=decides)


@pytest.mark.parametrize("written", [BoxLayout.XYXY, BoxLayout.CXCYWH])
@pytest.mark.parametrize("places_first", [False, True])
def test_what_is_planted_in_a_raw_output_is_found(written: BoxLayout, places_first: bool) -> None:
    rows = grid(written, places_first=places_first)
    graph = graph_of({"out": rows.shape})
    found = layout(graph, boxes=f"{graph.outputs[0].name}@0:4")
    assert found is not None and found.note is None
    outputs = {graph.outputs[0].name: np.repeat(rows, 2, axis=0)}
    found = found.resolved(outputs)
    assert found.layout is written and found.logits is False and not found.relative
    for one in found.found(outputs):
        assert np.allclose(one.boxes, PLANTED, atol=1e-4) and list(one.classes) == list(CLASSES)
        assert np.allclose(one.scores, [0.9, 0.8, 0.7]), "the box beside the first one is the same object"
    assert [len(one) for one in replace(found, nms_iou=None).found(outputs)] == [4, 4]
    assert [len(one) for one in replace(found, score_above=0.75).objects(found.found(outputs))] == [2, 2]


def test_logits_background_and_objectness_are_read() -> None:
    rows = grid(BoxLayout.XYXY, places_first=True)
    scores = np.clip(rows[..., 4:], 1e-6, 1)
    beside = np.concatenate([np.full((1, 20, 1), 9.0), np.log(scores / (1 - scores))], axis=2)
    outputs = {"boxes": rows[..., :4], "scores": beside.astype(np.float32)}
    graph = graph_of({name: array.shape for name, array in outputs.items()})
    names = [o.name for o in graph.outputs]
    outputs = dict(zip(names, outputs.values(), strict=True))
    found = layout(graph, boxes=names[0], scores=names[1], background=0)
    assert found is not None
    (one,) = found.resolved(outputs).found(outputs)
    assert list(one.classes) == list(CLASSES + 1) and np.allclose(one.scores, [0.9, 0.8, 0.7], atol=1e-4)
    half = np.concatenate([rows[..., :4], np.full((1, 20, 1), 0.5, np.float32), rows[..., 4:]], axis=2)
    graph = graph_of({"out": half.shape})
    name = graph.outputs[0].name
    found = layout(graph, decides=True)
    assert found is not None and found.objectness is not None and found.objectness.text == f"{name}@4:5"
    (one,) = found.resolved({name: half}).found({name: half})
    assert np.allclose(one.scores, [0.45, 0.4, 0.35]) and list(one.classes) == list(CLASSES)


def test_rows_of_differing_number_and_their_own_classes_are_read() -> None:
    rows = np.concatenate([PLANTED / 64, np.array([[0.9], [0.8], [0.7]]), CLASSES[:, None]], axis=1)
    graph = graph_of({"out": (1, 3, 6)})
    name = graph.outputs[0].name
    given = {"boxes": f"{name}@0:4", "scores": f"{name}@4", "classes": f"{name}@5"}
    found = layout(graph, **given)
    assert found is not None and found.nms_iou is None
    outputs = {name: (rows.astype(np.float32), rows[:1].astype(np.float32))}
    found = found.resolved(outputs)
    assert found.relative and found.layout is BoxLayout.XYXY
    assert [list(one.classes) for one in found.found(outputs)] == [list(CLASSES), [2]]
    broken = {name: (rows * np.nan, rows[:1])}
    assert [len(one) for one in found.found(broken)] == [0, 1], "what is no number is no box"


def test_boxes_and_scores_in_two_outputs_are_told_by_their_shapes() -> None:
    graph = graph_of({"scores": (1, 30, 7), "boxes": (1, 30, 4), "mask": (1, 5, 5)})
    scores, boxes, _ = (o.name for o in graph.outputs)
    found = layout(graph)
    assert found is not None and (found.boxes.output, found.scores.output) == (boxes, scores)
    assert found.note is not None and "detections.boxes=none" in found.note
    assert layout(graph, boxes="none") is None
    graph = graph_of({"boxes": (1, 10, 4), "labels": (1, 10), "scores": (1, 10)}, {"labels": "int64"})
    found = layout(graph)
    assert found is not None and found.classes is not None and found.classes.output == graph.outputs[1].name
    assert found.nms_iou is None


@pytest.mark.parametrize("shape", [(1, 16, 40), (1, 10), (1, 8, 4, 4), (1, 12, 12)])
def test_what_may_be_something_else_is_taken_for_detections_only_on_request(shape: tuple[int, ...]) -> None:
    assert layout(graph_of({"out": shape})) is None


def test_nothing_to_be_found_is_said() -> None:
    with pytest.raises(ConfigError, match="no output looks like boxes and scores"):
        layout(graph_of({"out": (1, 3)}), decides=True)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"boxes": "nowhere"}, "no such output"),
        ({"layout": "polar"}, "legal are auto, xyxy"),
        ({"scores": "out"}, "give the output that holds the boxes"),
        ({"score_above": 2}, "from 0 to 1"),
        ({"nms_iou": "much"}, "auto, null"),
        ({"background": "none"}, "the number of a score"),
        ({"boxes": None}, "entries of it"),
    ],
)
def test_wrong_words_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        layout(graph_of({"out": (1, 20, 7)}), **given)


def test_a_whole_output_of_boxes_needs_scores() -> None:
    graph = graph_of({"out": (1, 20, 4)})
    with pytest.raises(ConfigError, match=r"detections\.scores"):
        layout(graph, boxes=graph.outputs[0].name)


def test_caches_of_four_tokens_are_no_boxes() -> None:
    """Of multi-query attention, where keys of all heads are one: [N, 1, 4, 16] next to logits of four tokens."""
    graph = graph_of({"logits": (1, 4, 96), "key": (1, 1, 4, 16), "value": (1, 1, 4, 16)})
    assert layout(graph) is not None, "by shapes alone"
    caches = [o.name for o in graph.outputs[1:]]
    assert layout_by(DetectionOptions(), graph, decides=False, states=caches) is None
