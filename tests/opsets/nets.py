"""Two nets with every form in which an opset writes an op: attributes that became inputs, ops that got new names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]


class Writer:
    """Nodes of one opset."""

    def __init__(self, opset: int, shape: Sequence[int]) -> None:
        self.opset, self._shape = opset, list(shape)
        self.rng = np.random.default_rng(0)
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, Array] = {}

    def node(self, op: str, *inputs: str, count: int = 1, **attributes: Any) -> str:
        name = f"{op.lower()}{len(self._nodes)}"
        outputs = [f"{name}_{n}" for n in range(count)]
        self._nodes.append(helper.make_node(op, list(inputs), outputs, name=name, **attributes))
        return outputs[0]

    def constant(self, values: Any, kind: Any = np.float32) -> str:
        name = f"c{len(self._constants)}"
        self._constants[name] = np.asarray(values, kind)
        return name

    def drawn(self, *shape: int, scale: float = 1.0) -> str:
        return self.constant(self.rng.standard_normal(shape) * scale)

    def listed(self, op: str, x: str, since: int, key: str, values: Sequence[int], **attributes: Any) -> str:
        """An op whose list of whole numbers is an input from an opset on, and an attribute before."""
        if self.opset >= since:
            return self.node(op, x, self.constant(values, np.int64), **attributes)
        return self.node(op, x, **{key: list(values)}, **attributes)

    def model(self, output: str) -> onnx.ModelProto:
        graph = helper.make_graph(
            self._nodes,
            "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", *self._shape])],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
            [numpy_helper.from_array(v, k) for k, v in self._constants.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)

    # --- ops whose form changes -------------------------------------------------------------------------------------

    def clip(self, x: str, low: float, high: float) -> str:
        if self.opset >= 11:
            return self.node("Clip", x, self.constant(low), self.constant(high))
        return self.node("Clip", x, min=low, max=high)

    def slice(self, x: str, axis: int, first: int, last: int) -> str:
        if self.opset >= 10:
            return self.node("Slice", x, *(self.constant([v], np.int64) for v in (first, last, axis)))
        return self.node("Slice", x, starts=[first], ends=[last], axes=[axis])

    def twice(self, x: str) -> str:
        """A map of double size, nearest neighbours."""
        scales = [1.0, 1.0, 2.0, 2.0]
        if self.opset < 9:
            return self.node("Upsample", x, scales=scales, mode="nearest")
        given = self.constant(scales)
        if self.opset == 9:
            return self.node("Upsample", x, given, mode="nearest")
        if self.opset == 10:
            return self.node("Resize", x, given, mode="nearest")
        region = self.constant([]) if self.opset < 13 else ""
        how = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return self.node("Resize", x, region, given, mode="nearest", **how)

    def halves(self, x: str, axis: int, size: int) -> tuple[str, str]:
        if self.opset >= 13:
            first = self.node("Split", x, self.constant([size, size], np.int64), count=2, axis=axis)
        else:
            first = self.node("Split", x, count=2, axis=axis, split=[size, size])
        return first, f"{first[:-1]}1"

    def mean(self, x: str, axes: Sequence[int]) -> str:
        return self.listed("ReduceMean", x, 18, "axes", axes, keepdims=1)


def maps(opset: int) -> onnx.ModelProto:
    """Convolutions, pools and what is done to maps."""
    w = Writer(opset, (4, 8, 8))
    padded = w.listed("Pad", "x", 11, "pads", [0, 0, 1, 1, 0, 0, 1, 1])
    x = w.node("Conv", padded, w.drawn(8, 4, 3, 3, scale=0.3), w.drawn(8, scale=0.2))
    numbers = [w.constant(w.rng.random(8) + 0.5), w.drawn(8), w.drawn(8, scale=0.1), w.constant(w.rng.random(8) + 0.5)]
    x = w.clip(w.node("BatchNormalization", x, *numbers), 0.0, 6.0)
    x = w.twice(w.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]))
    x = w.node("Concat", w.slice(x, 1, 0, 4), w.node("LeakyRelu", w.slice(x, 1, 4, 8), alpha=0.1), axis=1)
    x = w.node("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
    a, b = w.halves(x, 1, 4)
    x = w.node("Mul", w.node("Add", a, b), w.node("Sigmoid", b))
    x = w.node("PRelu", w.node("Transpose", x, perm=[0, 1, 3, 2]), w.constant(np.full((4, 1, 1), 0.2)))
    x = w.node("Conv", x, w.drawn(4, 1, 3, 3, scale=0.4), group=4, pads=[1, 1, 1, 1])
    x = w.node("Flatten", w.node("GlobalAveragePool", w.node("Relu", x)))
    return w.model(w.node("Gemm", x, w.drawn(5, 4), w.drawn(5), transB=1))


def rows(opset: int) -> onnx.ModelProto:
    """Dense layers and what is done to rows."""
    w = Writer(opset, (6, 8))
    x = w.node("Add", w.node("MatMul", "x", w.drawn(8, 12, scale=0.4)), w.drawn(12, scale=0.2))
    x = w.node("Dropout", w.node("Tanh", x))
    x = w.listed("Squeeze", w.listed("Unsqueeze", x, 13, "axes", [1]), 13, "axes", [1])
    x = w.node("Sub", x, w.drawn(12, scale=0.2))
    scores = w.node("MatMul", x, w.node("Transpose", x, perm=[0, 2, 1]))
    scores = w.node("Softmax", w.node("Div", scores, w.constant(3.0)), axis=2)
    x = w.node("Add", x, w.node("MatMul", scores, x))
    centred = w.node("Sub", x, w.mean(x, [2]))
    spread = w.node("Sqrt", w.node("Add", w.mean(w.node("Mul", centred, centred), [2]), w.constant(1e-5)))
    x = w.node("Mul", w.node("Div", centred, spread), w.constant(w.rng.random(12) + 0.5))
    x = w.node("HardSigmoid", w.node("Elu", x), alpha=0.25, beta=0.4)
    x = w.node("Reshape", w.node("Gather", x, w.constant([0, 2, 5], np.int64), axis=1), w.constant([0, 36], np.int64))
    # Of the first opset, onnxruntime's kernel broadcasts nothing.
    x = w.node("Max", x, w.constant(0.1)) if opset > 7 else w.node("Clip", x, min=0.1)
    return w.model(w.node("Gemm", x, w.drawn(36, 5, scale=0.3), w.drawn(5)))


NETS = {"maps": maps, "rows": rows}
