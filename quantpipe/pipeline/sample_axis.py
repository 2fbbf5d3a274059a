"""Which axis of a model's outputs is the samples', found before calibration.

Recurrent nets often give `[time, samples, classes]`. Such a model runs on one sample at a time here, so that its rows
are known to be of one sample; its file stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from quantpipe.errors import DataError
from quantpipe.graph.execute import Session
from quantpipe.graph.view import Graph

ONE = 1
NOTE = "an output has its samples on another axis than the first, so the model runs on one sample at a time"


def with_sample_axis(graph: Graph, feeds: Mapping[str, Any], output: str) -> Graph:
    """Return the graph, which runs on one sample at a time where an output has its samples on another axis.

    `feeds` are a few samples `[N, …]` by input; `output` is the one that metrics are about. Raises DataError where no
    axis of that output follows the samples, or several do.
    """
    if graph.alone or graph.fixed_batch is not None or graph.states or not graph.inputs or _begins_with_samples(graph):
        return graph
    count = len(np.asarray(next(iter(feeds.values()))))
    if count == ONE:
        return graph
    session = Session(graph.model, where=graph.source)
    names = list(session.outputs)
    one, several = (session.run({n: np.asarray(a)[:k] for n, a in feeds.items()}, names) for k in (ONE, count))
    elsewhere = False
    for name in names:
        axes = _following(np.shape(one[name]), np.shape(several[name]), count)
        if axes is None or axes == [0] or name in graph.selected:
            continue
        if name == output:
            _refuse(name, axes, np.shape(several[name]), count)
        elsewhere = elsewhere or bool(axes)
    if not elsewhere:
        return graph
    return replace(graph, alone=True, notes=(*graph.notes, NOTE))


def _begins_with_samples(graph: Graph) -> bool:
    """Return whether every output declares the name of the samples' axis for its first axis, and only for that."""
    ports = {value.name: value.shape for value in (*graph.model.graph.inputs, *graph.model.graph.outputs)}
    first = {_name_of(shape[0]) for port in graph.inputs if (shape := ports.get(port.name)) is not None and len(shape)}
    if len(first) != ONE or None in first:
        return False
    (samples,) = first
    for port in graph.outputs:
        shape = ports.get(port.name)
        if shape is None or [axis for axis, size in enumerate(shape) if _name_of(size) == samples] != [0]:
            return False
    return True


def _name_of(size: object) -> str | None:
    return None if isinstance(size, int) else getattr(size, "value", None)


def _following(one: tuple[int, ...], several: tuple[int, ...], count: int) -> list[int] | None:
    """Return the axes whose size is proportional to the samples; None where values decide about the shape."""
    if len(one) != len(several):
        return None
    found = [axis for axis, (a, b) in enumerate(zip(one, several, strict=True)) if a and b == a * count]
    other = [axis for axis, (a, b) in enumerate(zip(one, several, strict=True)) if a != b and axis not in found]
    return None if other else found


def _refuse(name: str, axes: list[int], shape: tuple[int, ...], count: int) -> None:
    """Raise DataError unless exactly one axis is the samples'."""
    if len(axes) == ONE:
        return
    text = f"has the shape {list(shape)} for {count} samples"
    if axes:
        places = " and ".join(str(axis) for axis in axes)
        raise DataError(
            f"the model's output {name} {text}: its axes {places} both follow the number of samples. Legal is one such "
            "axis, or a model whose batch is fixed at 1",
            stage="data",
        )
    raise DataError(
        f"the model's output {name} {text}, and no axis follows the number of samples, so samples cannot be "
        "compared one by one. Legal is a model that gives each sample values of its own, or another evaluate.output",
        stage="data",
    )
