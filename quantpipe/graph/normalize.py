"""Facts about a graph's tensors on real samples, and models with more of them as outputs.

Takes a `Graph` and samples; gives the shape and dtype of every tensor, and which shapes follow the sample. Cleaning is
done before (`cleanup`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantpipe.arrays import Feeds
from quantpipe.graph.execute import Kernels, Session
from quantpipe.graph.external_weights import copied, row_blocks
from quantpipe.graph.view import Graph

SEQUENCE = "object"
"""The dtype of what is no tensor: a sequence of tensors, of any shapes, or nothing."""


@dataclass(frozen=True)
class MeasuredTensors:
    """Hold shape and dtype of every tensor, and the maximum absolute value of each that is computed in float32."""

    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]
    largest: dict[str, float]


def measure(graph: Graph, feeds: Feeds) -> MeasuredTensors:
    """Return the facts about every tensor in a run with one sample (or the model's own, fixed batch)."""
    values = _tensors(graph, feeds)
    shapes = {name: _shape(value) for name, value in values.items()}
    dtypes = {name: value.dtype.name if isinstance(value, np.ndarray) else SEQUENCE for name, value in values.items()}
    for name in graph.constant_names():
        tensor = graph.constant_tensor(name)
        shapes[name] = tuple(tensor.shape.numpy())
        dtypes[name] = tensor.dtype.numpy().name
    real = {t: v for t, v in values.items() if isinstance(v, np.ndarray) and v.dtype == np.float32}
    return MeasuredTensors(shapes, dtypes, {t: largest_of(v) for t, v in real.items()})


def largest_of(values: NDArray[Any]) -> float:
    """Return the maximum absolute value of the finite elements, a few rows at a time; 0 if there are no such."""
    found = 0.0
    for rows in row_blocks(values) if values.ndim else [...]:
        finite = values[rows][np.isfinite(values[rows])]
        found = max(found, float(np.max(np.abs(finite), initial=0.0)))
    return found


def with_varying(graph: Graph, feeds: Feeds) -> Graph:
    """Return the graph that also knows which tensors are of another shape for another sample (`feeds` `[N, ...]`)."""
    values = _tensors(graph, feeds)
    varying = {name for name, value in values.items() if _shape(value)[1:] != graph.shapes[name][1:]}
    axes = {name: _differing_axes(_shape(values[name]), graph.shapes[name]) for name in varying}
    known = {name: found | graph.open_axes.get(name, frozenset()) for name, found in axes.items()}
    return replace(graph, varying=graph.varying | varying, open_axes={**graph.open_axes, **known})


def _differing_axes(shape: tuple[int, ...], other: tuple[int, ...]) -> frozenset[int]:
    """Return the axes whose sizes differ, without the axis of samples; all axes where their numbers differ."""
    if len(shape) != len(other):
        return frozenset(range(len(other)))
    return frozenset(a for a, (own, old) in enumerate(zip(shape, other, strict=True)) if a and own != old)


def _shape(value: object) -> tuple[int, ...]:
    """Return the shape of a tensor; `()` for anything else."""
    return tuple(int(size) for size in value.shape) if isinstance(value, np.ndarray) else ()


def _tensors(graph: Graph, feeds: Feeds) -> dict[str, NDArray[Any]]:
    """Return every tensor that is computed, and the inputs, for one sample (or the model's own, fixed batch)."""
    fixed = {i.name: i.shape[0] for i in graph.inputs if i.shape}
    whole = {name for name, array in feeds.items() if not np.ndim(array)} | graph.counting
    one = {name: array if name in whole else array[: fixed.get(name) or 1] for name, array in feeds.items()}
    model = expose(graph.model, [t for n in graph.nodes for t in n.outputs if t])
    return {**one, **Session(model, where=graph.source, kernels=Kernels.AS_WRITTEN).run(one)}


def expose(model: ir.Model, tensors: list[str]) -> ir.Model:
    """Return a copy of the model, weights shared, with more tensors as graph outputs (those that already are stay)."""
    copy = copied(model)
    values = {v.name: v for v in (*copy.graph.inputs, *copy.graph.initializers.values())}
    values |= {v.name: v for node in copy.graph for v in node.outputs}
    known = {o.name for o in copy.graph.outputs}
    for tensor in tensors:
        if tensor not in known:
            copy.graph.outputs.append(values[tensor])
            known.add(tensor)
    return copy
