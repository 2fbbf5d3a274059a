"""Element-wise functions of one activation as tables: what the op gives for each integer that its input can hold.

Between two stored tensors such an op is a function of the stored code alone, so a table represents it exactly. Its
entries are the float op's own results for the real values of the codes. It was measured that onnxruntime's float
kernels give equal results for equal values at any position in a tensor (docs/ops.md).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe import intmath
from quantpipe.graph.build import GraphBuilder
from quantpipe.graph.execute import Kernels, Session
from quantpipe.graph.view import Graph, Node
from quantpipe.types import Quantizer


class FunctionOf:
    """The float function of one node, `f(x)` for real codes `[codes]`, one row per channel where it has any."""

    def __init__(self, node: Node, graph: Graph) -> None:
        self.axis = parameter_axis(node, graph)
        shape: list[int | str | None] = [None] if self.axis is None else [None, None]
        builder = GraphBuilder("function", graph.opset, graph.model.ir_version)
        data = builder.input("x", "float32", shape)
        more = [None if not t else builder.constant(t, self._parameter(graph.constant(t))) for t in node.inputs[1:]]
        result = builder.copy(node, [data, *more], ["y"])[0]
        self._rows = 1 if self.axis is None else graph.shapes[node.inputs[0]][self.axis]
        self._session = Session(builder.build([result]), kernels=Kernels.AS_WRITTEN, threads=1, where=node.name)

    def __call__(self, real: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the function's values `[rows, codes]` for real values `[codes]`."""
        fed = real if self.axis is None else np.broadcast_to(real, (self._rows, len(real)))
        found = self._session.run({"x": np.ascontiguousarray(fed)})["y"]
        return np.asarray(found, np.float32).reshape(self._rows, len(real))

    def table(
        self, data: Quantizer, out: Quantizer, low: int, high: int
    ) -> tuple[NDArray[Any], int | None, int, int, bool]:
        """Return the fields of a `Lookup` that follow its node.

        They are the stored results `[rows, codes]`, the axis of the rows, `low`, `high` (the smallest and the largest
        entry), and whether each code has a value. A code for which the function has no value (the root of a negative
        number) gets the entry of zero.
        """
        codes = np.arange(data.dtype.qmin, data.dtype.qmax + 1, dtype=np.float32)
        real = self((codes - np.float32(data.zero_point)) * np.float32(data.scale))
        defined = ~np.isnan(real)
        finite = np.where(defined, real, np.float32(0))
        table = intmath.quantize(finite, out.scale, out.zero_point, qmin=low, qmax=high, dtype=out.dtype)
        return table, self.axis, low, high, bool(defined.all())

    def _parameter(self, value: NDArray[Any]) -> NDArray[Any]:
        """Return scalars as they are, one value per channel as a column."""
        if self.axis is None:
            return value.reshape(())
        return value.reshape(-1, 1)


class Functions(dict[str, FunctionOf]):
    """The functions of a graph's nodes by name, each made when it is asked for first."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self._graph = graph

    def __missing__(self, node: str) -> FunctionOf:
        self[node] = FunctionOf(self._graph.by_name[node], self._graph)
        return self[node]


def parameter_axis(node: Node, graph: Graph) -> int | None:
    """Return the axis of the data along which a constant operand varies; None where every operand is a single value.

    ValueError when one varies along several.
    """
    rank, found = len(graph.shapes[node.inputs[0]]), set()
    for tensor in node.inputs[1:]:
        if tensor:
            shape = graph.shapes[tensor]
            found |= {rank - len(shape) + i for i, d in enumerate(shape) if d > 1}
    if len(found) > 1 or any(a < 0 for a in found):
        raise ValueError("an operand varies along several axes")
    return next(iter(found), None)


FINER = 3
"""Bits by which what is cut off is finer than a step of the result: an eighth of a step."""


def sigmoid_reach(node: Node, bits: int) -> float:
    """Return where a Sigmoid is 2^-bits / 8 from its end: exp(-x) = 2^-(bits + 3)."""
    return (bits + FINER) * math.log(2.0)


def tanh_reach(node: Node, bits: int) -> float:
    """Return where a Tanh is as near to its end, in steps of 2^(1 - bits): 2·exp(-2·x) = 2^(1 - bits - 3)."""
    return sigmoid_reach(node, bits) / 2.0


def hard_sigmoid_reach(node: Node, bits: int) -> float:
    """Return the larger magnitude of both ends at which alpha·x + beta is 0 or 1."""
    alpha, beta = float(node.attr("alpha", 0.2)), float(node.attr("beta", 0.5))
    return max(abs(beta), abs(1.0 - beta)) / abs(alpha) if alpha else math.inf
