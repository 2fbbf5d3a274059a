"""Boxes, what overlaps, and average precision, beside plain loops and COCO's own package."""

from __future__ import annotations

import numpy as np
import pytest

from quantpipe.evaluate.coco import precision_by_labels
from quantpipe.metrics.average_precision import OVERLAPS, Detections, matched, mean_average_precision
from quantpipe.metrics.boxes import BoxLayout, corners, layout_of, overlaps, suppressed
from quantpipe.metrics.detections import matches
from quantpipe.types import Objects

Array = np.ndarray


def boxes(rng: np.random.Generator, count: int) -> Array:
    first = rng.uniform(0, 0.7, (count, 2))
    return np.concatenate([first, first + rng.uniform(0.05, 0.3, (count, 2))], axis=1)


def test_layouts_name_the_same_box() -> None:
    box = np.array([[10.0, 20.0, 40.0, 80.0]])
    written = {
        BoxLayout.XYXY: box,
        BoxLayout.CXCYWH: [[25, 50, 30, 60]],
        BoxLayout.XYWH: [[10, 20, 30, 60]],
        BoxLayout.YXYX: [[20, 10, 80, 40]],
    }
    for layout in BoxLayout:
        assert np.array_equal(corners(np.asarray(written[layout], float), layout), box), layout


def test_the_layout_is_told_by_the_order_of_corners() -> None:
    found = 64 * boxes(np.random.default_rng(0), 200)
    centres = np.concatenate([(found[:, :2] + found[:, 2:]) / 2, found[:, 2:] - found[:, :2]], axis=1)
    assert layout_of(found) is BoxLayout.XYXY and layout_of(centres) is BoxLayout.CXCYWH


def test_overlaps_are_shared_over_covered_area() -> None:
    rng = np.random.default_rng(1)
    one, other = (np.rint(20 * boxes(rng, 12)) for _ in range(2))
    found = overlaps(one, other)

    def cells(box: Array) -> set[tuple[int, int]]:
        left, top, right, bottom = (int(side) for side in box)
        return {(x, y) for x in range(left, right) for y in range(top, bottom)}

    for i, j in np.ndindex(found.shape):
        a, b = cells(one[i]), cells(other[j])
        assert found[i, j] == pytest.approx(len(a & b) / len(a | b) if a | b else 0.0)


def test_suppression_is_the_greedy_one_within_a_class() -> None:
    rng = np.random.default_rng(2)
    given, scores, classes = boxes(rng, 60) * [0.3, 0.3, 1, 1], rng.choice([0.2, 0.5, 0.9], 60), rng.integers(0, 2, 60)
    kept: list[int] = []
    for index in sorted(range(60), key=lambda i: (-scores[i], i)):
        near = [k for k in kept if classes[k] == classes[index]]
        if all(overlaps(given[[k]], given[[index]])[0, 0] <= 0.5 for k in near):
            kept.append(index)
    assert list(suppressed(given, scores, classes, 0.5)) == kept and 5 < len(kept) < 55


def found_near(rng: np.random.Generator, objects: Objects, extra: int) -> Detections:
    """Most objects a little beside, some of another class, and boxes where nothing is."""
    moved = np.clip(objects.boxes + rng.normal(0, 0.02, objects.boxes.shape), 0, 1)
    moved[:, 2:] = np.maximum(moved[:, 2:], moved[:, :2] + 1e-3)
    kinds = np.where(rng.random(len(objects)) < 0.15, rng.integers(0, 4, len(objects)), objects.classes)
    every, classes = np.concatenate([moved, boxes(rng, extra)]), np.concatenate([kinds, rng.integers(0, 4, extra)])
    scores = np.sort(rng.permutation(np.linspace(0.1, 0.99, len(every))))[::-1]
    order = rng.permutation(len(every))
    return Detections(every[order], scores, classes[order])


@pytest.mark.parametrize("seed", range(3))
def test_average_precision_is_what_coco_counts(seed: int) -> None:
    pytest.importorskip("pycocotools")
    rng = np.random.default_rng(seed)
    shown = [Objects(boxes(rng, n), rng.integers(0, 4, n)) for n in rng.integers(0, 8, 30)]
    found = [found_near(rng, one, int(rng.integers(0, 6))) for one in shown]
    objects = [Detections(one.boxes, np.ones(len(one)), one.classes) for one in shown]
    coco = precision_by_labels(shown, found)
    own = mean_average_precision(matches(objects, found))
    assert coco is not None and own == pytest.approx(coco[0], abs=1e-9) and 0.1 < coco[0] < coco[1] < 1


def test_each_object_is_found_once_and_nothing_is_no_figure() -> None:
    box = np.array([[0.1, 0.1, 0.5, 0.5]])
    one = Detections(box, np.ones(1), np.zeros(1, np.int64))
    twice = Detections(np.repeat(box, 2, axis=0), np.array([0.9, 0.8]), np.zeros(2, np.int64))
    right = matched(one, twice).right
    assert right[:, 0].all() and not right[:, 1].any() and len(right) == len(OVERLAPS)
    nothing = one.where(np.zeros(1, bool))
    assert mean_average_precision(matches([nothing], [twice])) is None
    assert mean_average_precision(matches([one], [nothing])) == 0.0
    assert precision_by_labels([Objects(box[:0], np.zeros(0, np.int64))], [twice]) is None


def test_a_crowd_is_neither_right_nor_wrong() -> None:
    pytest.importorskip("pycocotools")
    shown = Objects(
        np.array([[0.1, 0.1, 0.3, 0.3], [0.5, 0.5, 0.9, 0.9]]), np.zeros(2, np.int64), np.array([0, 1], bool)
    )
    inside = Detections(
        np.array([[0.6, 0.6, 0.7, 0.7], [0.1, 0.1, 0.3, 0.3]]), np.array([0.9, 0.8]), np.zeros(2, np.int64)
    )
    assert precision_by_labels([shown], [inside]) == (pytest.approx(1.0), pytest.approx(1.0))
