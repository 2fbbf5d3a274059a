"""Python expressions that make one sample of a model's inputs, for the code in SHIP.md, with zeros as raw values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from quantpipe.graph.stored_ports import StoredPort
from quantpipe.graph.view import Graph
from quantpipe.types import QuantPlan, TensorInfo

IDENTITY: Mapping[str, Any] = MappingProxyType({"scale": 1.0, "mean": (0.0,), "std": (1.0,), "size": None})
"""Preprocessing that changes nothing."""
BATCH = 1
RAW = "  # zeros in place of a raw sample"


def feeds(graph: Graph, given: Mapping[str, Any], caches: Sequence[StoredPort] = ()) -> str:
    """Return the line `feeds = {…}` that makes the feeds of a model with float inputs, and integer `caches`."""
    zeros = {cache.input: cache for cache in caches}
    texts = {
        i.name: _zeros(i, graph, zeros[i.name]) if i.name in zeros else real(i, graph, given) for i in graph.inputs
    }
    made = ", ".join(f'"{name}": {text}' for name, text in texts.items())
    return f"feeds = {{{made}}}{RAW}"


def _zeros(port: TensorInfo, graph: Graph, cache: StoredPort) -> str:
    """Return an expression for a cache whose every element is the integer of 0."""
    sizes = tuple(size or graph.shapes[port.name][axis] for axis, size in enumerate(port.shape))
    return f"np.full({sizes}, {cache.zero_point}, np.{cache.stored})"


def real(port: TensorInfo, graph: Graph, given: Mapping[str, Any]) -> str:
    """Return an expression for one prepared sample of an input, in the model's own layout and type."""
    measured = graph.shapes.get(port.name, (1,) * len(port.shape))
    sizes = [size or (measured[axis] if axis else BATCH) for axis, size in enumerate(port.shape)]
    kind = port.given or port.dtype
    plain = f"np.zeros({tuple(sizes)}, np.{kind})"
    changed = any(given.get(key, value) != value for key, value in IDENTITY.items() if key != "size")
    if not changed or not kind.startswith("float"):
        return plain
    axis = 1 if len(sizes) == 4 and given.get("layout", "NCHW") == "NCHW" else len(sizes) - 1
    mean, std = (_array(given[name], len(sizes) - 1 - axis) for name in ("mean", "std"))
    return f"((np.zeros({tuple(sizes)}) * {given['scale']:.17g} - {mean}) / {std}).astype(np.{kind})"


def stored(port: TensorInfo, graph: Graph, given: Mapping[str, Any], plan: QuantPlan) -> str:
    """Return an expression for the integers of one prepared sample; for its real values if it has no integers."""
    expression, q = real(port, graph, given), plan.quantizers.get(port.name)
    if q is None:
        return expression
    steps = f"np.rint({expression} / np.float32({float(q.scale):.17g})) + {q.zero_point}"
    return f"np.clip({steps}, {q.qmin}, {q.qmax}).astype(np.{q.dtype})"


def _array(values: Sequence[Any], behind: int) -> str:
    """Return numbers per channel, shaped to broadcast before `behind` further axes."""
    found = [float(v) for v in values]
    if len(set(found)) == 1:
        return f"{found[0]:.17g}"
    return f"np.reshape([{', '.join(f'{v:.17g}' for v in found)}], {(-1, *[1] * behind)})"
