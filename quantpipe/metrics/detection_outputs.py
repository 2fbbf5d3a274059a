"""Find a model's outputs of boxes, scores and classes: by the user's settings, or by shapes and structure.

A result without the user's settings is a guess, so it comes with a sentence that names the guess and the keys that
change it. A model that may be no detector is only taken for one if the structure leaves no doubt. That is a box of four
numbers joined with scores that another op makes, or an output of boxes and an output of scores for the same places.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from quantpipe.errors import ConfigError, nearest
from quantpipe.graph.view import Graph
from quantpipe.metrics.boxes import BoxLayout
from quantpipe.metrics.detections import DetectionLayout, Slice, places_and_values
from quantpipe.oprules.chosen import is_chosen
from quantpipe.oprules.parts import parts_of
from quantpipe.option_checks import illegal, is_integer, is_number, one_of

AUTO, NONE = "auto", "none"

SAME_OBJECT = 0.6
"""Boxes of a grid that overlap by more are one object, where the user says nothing else."""

_SLICE = re.compile(r"(?P<output>.+?)(?:@(?P<first>\d*)(?P<colon>:?)(?P<last>\d*))?", re.DOTALL)

_BOX = 4


@dataclass(frozen=True)
class DetectionOptions:
    """Hold the section `detections` of the configuration as it was read; conf/config.yaml describes each key."""

    boxes: str = AUTO
    scores: str | None = None
    classes: str | None = None
    objectness: str | None = None
    background: int | None = None
    layout: str = AUTO
    nms_iou: float | str | None = AUTO
    score_above: float = 0.25

    def __post_init__(self) -> None:
        layouts = [AUTO, *(layout.value for layout in BoxLayout)]
        one_of("detections.layout", self.layout, layouts)
        for name in ("boxes", "scores", "classes", "objectness"):
            value = getattr(self, name)
            if not isinstance(value, str) and (value is not None or name == "boxes"):
                raise illegal(f"detections.{name}", value, "an output, or some entries of it such as output0@0:4")
        if self.background is not None and not is_integer(self.background):
            raise illegal("detections.background", self.background, "null, or the number of a score")
        if not _share(self.score_above):
            raise illegal("detections.score_above", self.score_above, "a number from 0 to 1")
        if self.nms_iou not in (AUTO, None) and not _share(self.nms_iou):
            raise illegal("detections.nms_iou", self.nms_iou, "auto, null, or a number from 0 to 1")
        told = [name for name in ("scores", "classes", "objectness", "background") if getattr(self, name) is not None]
        if told and self.boxes in (AUTO, NONE):
            raise ConfigError(
                f"is given, and detections.boxes is {self.boxes}; give the output that holds the boxes, too",
                where=f"detections.{told[0]}",
            )


def layout_by(
    options: DetectionOptions, graph: Graph, *, decides: bool, states: Iterable[str] = ()
) -> DetectionLayout | None:
    """Return where a model's outputs hold detections; None if its structure shows no detector.

    `decides`: the objective needs detections, so shapes alone may identify them too. `states`: outputs that are carried
    to the next sample, as caches of four tokens are, which look like boxes. Raises ConfigError for an output
    that the model does not have, and where the objective needs detections but no layout is found.
    """
    if options.boxes == NONE and not decides:
        return None
    given = options.boxes not in (AUTO, NONE)
    found = _given(options, graph) if given else _guessed(graph, set(states), loosely=decides)
    if found is None:
        if decides:
            raise ConfigError(
                "is auto, and no output looks like boxes and scores: the model gives "
                + ", ".join(f"{o.name} {list(graph.shapes.get(o.name, ()))}" for o in graph.outputs)
                + ". Give the output that holds the boxes, or entries of it such as output0@0:4, and "
                "detections.scores",
                where="detections.boxes",
            )
        return None
    layout = None if options.layout == AUTO else BoxLayout(options.layout)
    layout = layout or found.layout
    iou = found.nms_iou if options.nms_iou == AUTO else options.nms_iou
    whole = replace(
        found,
        layout=layout,
        nms_iou=None if iou is None else float(iou),
        score_above=options.score_above,
        decides=decides,
    )
    return whole if given else replace(whole, note=_said(whole))


def _said(layout: DetectionLayout) -> str:
    classes = "" if layout.classes is None else f", classes from {layout.classes.text}"
    chance = "" if layout.objectness is None else f", times {layout.objectness.text}"
    chosen = "as the model chose them" if layout.nms_iou is None else f"suppressed at an overlap of {layout.nms_iou:g}"
    return (
        f"boxes are read from {layout.boxes.text}, scores from {layout.scores.text}{chance}{classes}, {chosen}. "
        "This follows from shapes; detections.boxes and related keys override it, and detections.boxes=none disables it"
    )


def _given(options: DetectionOptions, graph: Graph) -> DetectionLayout:
    """Return the layout of the user's settings; unnamed scores are the values after the boxes in their output."""
    rows = options.classes is not None
    boxes = _slice(options.boxes, "boxes", graph, rows=rows)
    if options.scores is None and boxes.last is None:
        raise ConfigError(
            "is null, and detections.boxes takes a whole output; give the output that holds the scores, or name the "
            f"entries of both, such as {boxes.output}@0:4 and {boxes.output}@4:",
            where="detections.scores",
        )
    scores = _slice(options.scores or f"{boxes.output}@{boxes.last}:", "scores", graph, rows=rows)
    classes, objectness = (
        None if (text := getattr(options, name)) is None else _slice(text, name, graph, rows=rows)
        for name in ("classes", "objectness")
    )
    chosen = classes is not None or is_chosen(graph, boxes.output)
    return DetectionLayout(
        boxes, scores, classes, objectness, options.background, nms_iou=None if chosen else SAME_OBJECT
    )


def _slice(text: str, key: str, graph: Graph, *, rows: bool) -> Slice:
    """Return the slice that a text names; `rows`: the model gives a row for each object, of which there may be few."""
    read = _SLICE.fullmatch(text)
    names = [o.name for o in graph.outputs]
    output = text if text in names else (read["output"] if read else text)
    if output not in names:
        raise ConfigError(
            f"is {text!r}, and the model has no such output{nearest(output, names)}; legal are {', '.join(names)}, or "
            f"entries of one such as {names[0]}@0:4",
            where=f"detections.{key}",
        )
    axis = 1 if rows or is_chosen(graph, output) else _axis(graph, output)
    if text in names or read is None or read["first"] is None:
        return Slice(output, axis)
    first, last = int(read["first"] or 0), int(read["last"]) if read["last"] else None
    return Slice(output, axis, first, last if read["colon"] else first + 1)


def _axis(graph: Graph, output: str) -> int:
    """Return the axis of a sample along which a place has its values: the one of four, else the shorter one."""
    places, values = _row(graph, output)
    if (places == _BOX) != (values == _BOX):
        return 0 if places == _BOX else 1
    return 0 if places < values else 1


def _row(graph: Graph, output: str) -> tuple[int, int]:
    shape = [int(size or 0) for size in graph.shapes.get(output, ())[1:]]
    return places_and_values(shape)


def _guessed(graph: Graph, states: Collection[str], *, loosely: bool) -> DetectionLayout | None:
    names = [o.name for o in graph.outputs if o.name in graph.producers and o.name not in states]
    names = [name for name in names if 2 <= len(graph.shapes.get(name, ())) <= 4]
    return _apart(graph, names) or next(
        (found for name in names if (found := _together(graph, name, loosely=loosely)) is not None), None
    )


def _apart(graph: Graph, names: Sequence[str]) -> DetectionLayout | None:
    """Return the layout of boxes in one output, scores in another one, and perhaps classes in a third."""
    for boxes in (name for name in names if _BOX in _row(graph, name)):
        axis = _axis(graph, boxes)
        places = _row(graph, boxes)[1 - axis]
        beside = [name for name in names if name != boxes and places > 1 and places in _row(graph, name)]
        several = [name for name in beside if 1 not in _row(graph, name)]
        if several:
            scores = Slice(several[0], 1 if _row(graph, several[0])[0] == places else 0)
            chosen = is_chosen(graph, boxes)
            return DetectionLayout(Slice(boxes, axis), scores, nms_iou=None if chosen else SAME_OBJECT)
        classes = [name for name in beside if _is_class(graph, name)]
        single = [name for name in beside if name not in classes]
        if single and classes:
            return DetectionLayout(Slice(boxes, axis), Slice(single[0]), Slice(classes[0]))
    return None


def _is_class(graph: Graph, output: str) -> bool:
    word = output.lower()
    return graph.dtypes.get(output, "float32").startswith("int") or "class" in word or "label" in word


def _together(graph: Graph, output: str, *, loosely: bool) -> DetectionLayout | None:
    """Return the layout of one output with boxes and scores: a row per selected object, or per place of a grid."""
    places, values = _row(graph, output)
    if values == _BOX + 2 and is_chosen(graph, output):
        boxes, score, kind = (Slice(output, 1, first, last) for first, last in ((0, 4), (4, 5), (5, 6)))
        return DetectionLayout(boxes, score, kind, layout=BoxLayout.XYXY)
    axis = _axis(graph, output)
    wide, count = (values, places) if axis == 1 else (places, values)
    ends = {part.last for part in parts_of(graph, output) if part.axis == axis + 1}
    if wide <= _BOX or count <= wide or not (loosely or _BOX in ends):
        return None
    boxes = Slice(output, axis, 0, _BOX)
    if axis == 1 and wide > _BOX + 1:  # exporters that put places first write a chance of any object in front
        return DetectionLayout(
            boxes, Slice(output, axis, _BOX + 1), objectness=Slice(output, axis, 4, 5), nms_iou=SAME_OBJECT
        )
    return DetectionLayout(boxes, Slice(output, axis, _BOX), nms_iou=SAME_OBJECT)


def _share(value: object) -> bool:
    return is_number(value) and 0 <= value <= 1
