"""Single nodes: `CASES` has each op in the forms that its row supports, `REJECTED` forms that rows reject."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
NEWEST = 23
"""The opset of the cases, unless they have another one."""


@dataclass(frozen=True, eq=False)
class Case:
    """One node. Operands are arrays; None: absent."""

    op: str
    operands: Sequence[Array | None]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    opset: int = NEWEST
    outputs: int = 1
    domain: str = ""

    def proto(self, constants: bool) -> onnx.ModelProto:
        """The model of the node; its operands but the first are constants, or inputs."""
        names = [f"x{port}" if array is not None else "" for port, array in enumerate(self.operands)]
        arrays = {name: a for name, a in zip(names, self.operands, strict=True) if a is not None}
        kept = names[:1] if constants else list(arrays)
        results = [f"y{n}" for n in range(self.outputs)]
        node = helper.make_node(self.op, names, results, name="mid", domain=self.domain, **self.attributes)
        inputs = [helper.make_tensor_value_info(n, kind(arrays[n]), arrays[n].shape) for n in kept if n]
        tensors = [numpy_helper.from_array(a, n) for n, a in arrays.items() if n not in kept]
        outputs = [helper.make_empty_tensor_value_info(name) for name in results]
        opsets = [helper.make_opsetid("", self.opset)] + [helper.make_opsetid(d, 1) for d in [self.domain] if d]
        graph = helper.make_graph([node], "one", inputs, outputs, tensors)
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        return onnx.shape_inference.infer_shapes(model) if not self.domain else model

    def feeds(self, constants: bool) -> dict[str, Array]:
        count = 1 if constants else len(self.operands)
        return {f"x{port}": a for port, a in enumerate(self.operands[:count]) if a is not None}


def kind(array: Array) -> int:
    return int(helper.np_dtype_to_tensor_dtype(array.dtype))


RNG = np.random.default_rng(11)


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def positive(*shape: int) -> Array:
    return np.abs(normal(*shape)) + np.float32(0.1)


def f(*values: float) -> Array:
    return np.float32(values)


def i(*values: int) -> Array:
    return np.int64(values)


def scalar(value: float) -> Array:
    return np.asarray(value, np.float32)


MAP, ROWS, DEEP, LINE = normal(2, 4, 9, 7), normal(3, 5, 6), normal(2, 4, 5, 6, 4), normal(2, 4, 11)
BOOLS = RNG.random((3, 5, 6)) < 0.5
INTEGERS = RNG.integers(-9, 9, (3, 5, 6))


def convolutions() -> Iterator[Case]:
    weight = normal(6, 4, 3, 2)
    yield Case("Conv", [MAP, weight, normal(6)])
    yield Case("Conv", [MAP, weight], {"strides": [2, 1], "dilations": [2, 3], "pads": [1, 2, 1, 2]})
    yield Case("Conv", [MAP, weight, normal(6)], {"pads": [0, 2, 3, 1], "kernel_shape": [3, 2]})
    yield Case("Conv", [MAP, normal(8, 1, 3, 3), normal(8)], {"group": 4, "pads": [1, 1, 1, 1]})
    for mode in ("SAME_UPPER", "SAME_LOWER", "VALID"):
        yield Case("Conv", [MAP, normal(6, 4, 4, 3), normal(6)], {"auto_pad": mode, "strides": [2, 3]})
    yield Case("Conv", [LINE, normal(6, 2, 4), normal(6)], {"group": 2, "pads": [3, 1], "strides": [2]})
    yield Case("Conv", [DEEP, normal(3, 4, 2, 3, 2), normal(3)], {"pads": [1, 0, 1, 0, 1, 1], "strides": [1, 2, 1]})
    up = normal(4, 3, 3, 2)
    yield Case("ConvTranspose", [MAP, up, normal(3)])
    yield Case("ConvTranspose", [MAP, up], {"strides": [2, 3], "pads": [1, 0, 2, 1], "output_padding": [1, 2]})
    yield Case("ConvTranspose", [MAP, up, normal(6)], {"group": 2, "dilations": [2, 1], "kernel_shape": [3, 2]})
    yield Case("ConvTranspose", [MAP, up, normal(3)], {"strides": [2, 2], "output_shape": [18, 15]})
    for mode in ("SAME_UPPER", "SAME_LOWER", "VALID"):
        yield Case("ConvTranspose", [MAP, up, normal(3)], {"strides": [2, 1], "auto_pad": mode})
    yield Case("ConvTranspose", [LINE, normal(4, 3, 4), normal(3)], {"strides": [3], "output_padding": [2]})
    yield Case("ConvTranspose", [DEEP, normal(4, 2, 2, 2, 3), normal(2)], {"strides": [2, 1, 1]})


def products() -> Iterator[Case]:
    for a, b in product((0, 1), repeat=2):
        left, right = normal(*((5, 3) if a else (3, 5))), normal(*((4, 5) if b else (5, 4)))
        yield Case("Gemm", [left, right, normal(4)], {"transA": a, "transB": b})
        yield Case("Gemm", [left, right, normal(3, 1)], {"transA": a, "transB": b, "alpha": 0.5, "beta": -2.0})
    yield Case("Gemm", [normal(3, 5), normal(4, 5)], {"transB": 1})
    yield Case("Gemm", [normal(3, 5), normal(4, 5), normal(4)], {"transB": 1, "beta": 0.5})
    yield Case("Gemm", [normal(3, 5), normal(4, 5), normal(3, 4)], {"transB": 1})
    yield Case("Gemm", [normal(3, 5), normal(4, 5), scalar(2.0)], {"transB": 1, "alpha": 2.0})
    for left, right in (
        ((3, 5), (5, 4)),
        ((2, 3, 5), (5, 4)),
        ((2, 1, 3, 5), (4, 5, 2)),
        ((5,), (5, 4)),
        ((3, 5), (5,)),
    ):
        yield Case("MatMul", [normal(*left), normal(*right)])


def elements() -> Iterator[Case]:
    for op in ("Add", "Sub", "Mul", "Div"):
        yield Case(op, [ROWS, positive(5, 1)])
        yield Case(op, [INTEGERS, np.where(INTEGERS == 0, 4, INTEGERS)[:1] + 20])
    yield Case("Div", [i(-7, 7, -7, 8), i(2, -2, -3, 3)])
    yield Case("Pow", [positive(3, 4), normal(4)])
    yield Case("Pow", [ROWS, scalar(2.0)])
    yield Case("Pow", [ROWS, i(3)])
    yield Case("Pow", [INTEGERS, scalar(2.0)])
    for op in ("Neg", "Abs", "Sign", "Exp", "Erf", "Sin", "Cos", "Relu", "Sigmoid", "HardSwish", "Mish", "Tanh",
               "Softplus", "Softsign"):  # fmt: skip
        yield Case(op, [4 * ROWS])
    halves = f(-2.5, -1.5, -0.5, 0.0, 0.5, 1.5, 2.5, 0.3)
    yield from (Case(op, [halves]) for op in ("Floor", "Ceil", "Round"))
    yield from (Case(op, [positive(3, 4)]) for op in ("Sqrt", "Reciprocal", "Log"))
    for op, attributes in {"LeakyRelu": {"alpha": 0.2}, "HardSigmoid": {"alpha": 0.3, "beta": 0.4},
                           "Elu": {"alpha": 1.7}, "Selu": {"alpha": 1.5, "gamma": 1.2}, "Celu": {"alpha": 1.7},
                           "ThresholdedRelu": {"alpha": 0.7}}.items():  # fmt: skip
        yield Case(op, [3 * ROWS])
        yield Case(op, [3 * ROWS], attributes)
    yield Case("Swish", [3 * ROWS], opset=24)
    yield Case("Swish", [3 * ROWS], {"alpha": 1.5}, opset=24)
    yield from (Case("Gelu", [3 * ROWS], {"approximate": how}) for how in ("none", "tanh"))
    yield Case("PRelu", [MAP, normal(4, 1, 1)])
    yield Case("Clip", [ROWS, scalar(-0.5), scalar(0.5)])
    yield Case("Clip", [ROWS, None, scalar(0.5)])
    yield Case("Clip", [ROWS, scalar(0.0)])
    yield Case("Clip", [ROWS])
    yield Case("Clip", [INTEGERS, np.asarray(-2), np.asarray(3)])
    yield Case("Max", [ROWS, normal(5, 1), normal(6)])
    yield Case("Min", [ROWS, normal(5, 1)])
    yield Case("Sum", [ROWS, normal(5, 1), normal(6)])
    yield Case("Where", [BOOLS, ROWS, normal(6)])
    yield Case("Where", [BOOLS, INTEGERS, i(7)])
    for op in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"):
        yield Case(op, [INTEGERS, INTEGERS[:, :1]])
        yield Case(op, [ROWS, normal(6)])
    yield Case("Not", [BOOLS])
    yield from (Case(op, [BOOLS, BOOLS[:, :1]]) for op in ("And", "Or"))


def rows() -> Iterator[Case]:
    for op, axis in product(("Softmax", "LogSoftmax"), (None, 1, -2)):
        yield Case(op, [ROWS], {} if axis is None else {"axis": axis})
    yield Case("LayerNormalization", [ROWS, normal(6), normal(6)], {"epsilon": 0.01})
    yield Case("LayerNormalization", [ROWS, normal(5, 6)], {"axis": 1, "stash_type": 1})
    yield Case("LayerNormalization", [ROWS, normal(6), normal(5, 1)], {"axis": -2})
    yield Case("RMSNormalization", [ROWS, normal(6)], {"epsilon": 0.01})
    yield Case("RMSNormalization", [ROWS, normal(5, 6)], {"axis": 1, "stash_type": 1})
    yield Case("InstanceNormalization", [MAP, normal(4), normal(4)], {"epsilon": 0.01})
    yield Case("InstanceNormalization", [LINE, normal(4), normal(4)])
    yield Case("BatchNormalization", [MAP, normal(4), normal(4), normal(4), positive(4)])
    yield Case("BatchNormalization", [MAP, normal(4), normal(4), normal(4), positive(4)],
               {"epsilon": 0.01, "momentum": 0.5, "training_mode": 0})  # fmt: skip
    yield Case("LRN", [MAP], {"size": 3, "alpha": 0.5, "beta": 0.6, "bias": 2.0})
    yield Case("LRN", [MAP], {"size": 5})
    zeros = np.concatenate([ROWS, np.zeros((1, 5, 6), np.float32)])
    yield from (Case("LpNormalization", [zeros], {"p": p, "axis": axis}) for p, axis in ((1, 1), (2, -1)))
    yield Case("LpNormalization", [ROWS])
    for op in ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2"):
        yield Case(op, [ROWS])
        yield Case(op, [ROWS, i(1, -1)], {"keepdims": 0})
        yield Case(op, [ROWS, i(0)], {"keepdims": 1, "noop_with_empty_axes": 1})
        yield Case(op, [ROWS, i()])
        if op == "ReduceSum":
            yield Case(op, [ROWS, i()], {"noop_with_empty_axes": 1})
        else:
            yield Case(op, [ROWS], {"axes": [-2], "keepdims": 0}, opset=17)


def pools() -> Iterator[Case]:
    for op in ("MaxPool", "AveragePool"):
        counted: tuple[dict[str, int], ...] = ({},) if op == "MaxPool" else ({}, {"count_include_pad": 1})
        for more in counted:
            yield Case(op, [MAP], {"kernel_shape": [3, 2], **more})
            yield Case(op, [MAP], {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 1, 1, 1], **more})
            yield Case(op, [MAP], {"kernel_shape": [3, 3], "strides": [2, 3], "pads": [0, 1, 2, 0], **more})
            for mode in ("SAME_UPPER", "SAME_LOWER", "VALID"):
                yield Case(op, [MAP], {"kernel_shape": [4, 3], "strides": [2, 3], "auto_pad": mode, **more})
            for strides in ([2, 2], [3, 4], [4, 3]):
                yield Case(op, [MAP], {"kernel_shape": [3, 2], "strides": strides, "ceil_mode": 1, **more})
                yield Case(op, [MAP], {"kernel_shape": [3, 2], "strides": strides, "ceil_mode": 1, "pads": [1, 0, 1, 1],
                                       **more})  # fmt: skip
            yield Case(op, [LINE], {"kernel_shape": [4], "strides": [3], "pads": [1, 2], **more})
            yield Case(op, [DEEP], {"kernel_shape": [2, 3, 2], "pads": [0, 1, 1, 1, 1, 0], **more})
    yield Case(
        "MaxPool", [MAP], {"kernel_shape": [3, 2], "dilations": [2, 3], "pads": [2, 0, 1, 1], "storage_order": 0}
    )
    yield Case("MaxPool", [MAP], {"kernel_shape": [2, 2], "dilations": [3, 2], "strides": [3, 2], "ceil_mode": 1})
    yield Case("AveragePool", [MAP], {"kernel_shape": [3, 2], "dilations": [1, 1]})
    yield from (Case(op, [x]) for op in ("GlobalAveragePool", "GlobalMaxPool") for x in (MAP, LINE, DEEP))


def moves() -> Iterator[Case]:
    yield Case("Concat", [ROWS, normal(3, 2, 6), normal(3, 1, 6)], {"axis": -2})
    yield Case("Split", [ROWS, i(1, 3, 2)], {"axis": 2}, outputs=3)
    yield Case("Split", [ROWS], {"axis": -1, "num_outputs": 4}, outputs=4)
    yield Case("Split", [ROWS], {"num_outputs": 3}, outputs=3)
    yield Case("Split", [ROWS], {"axis": 2}, opset=17, outputs=2)
    yield Case("Slice", [ROWS, i(1, 0), i(3, 4)])
    yield Case("Slice", [ROWS, i(1, -4), i(99, -1), i(-1, 1)])
    yield Case("Slice", [ROWS, i(0, 5), i(6, 0), i(2, 1), i(2, -3)])
    yield Case("Slice", [ROWS, i(-1), i(-99), i(1), i(-1)])
    yield Case("Slice", [ROWS, i(4), i(2), i(1)])
    yield Case("Gather", [ROWS, i(2, -1, 0)])
    yield Case("Gather", [ROWS, np.int64([[0, 3], [-5, 4]])], {"axis": 1})
    yield Case("Gather", [ROWS, np.asarray(-2)], {"axis": -1})
    yield Case("Gather", [ROWS, np.int32([1, 1])])
    yield Case("ScatterND", [ROWS, np.int64([[1], [0]]), normal(2, *ROWS.shape[1:])], {"reduction": "none"})
    yield Case("ScatterND", [ROWS, np.int64([[[1, -1]], [[0, 2]]]), normal(2, 1, *ROWS.shape[2:])])
    yield Case(
        "ScatterElements", [ROWS, np.zeros((1, *ROWS.shape[1:]), np.int64), ROWS[1:2] + 1], {"reduction": "none"}
    )
    yield Case("ScatterElements", [ROWS, np.full((*ROWS.shape[:2], 1), -1), ROWS[:, :, :1] + 1], {"axis": -1})
    yield Case("TensorScatter", [MAP, MAP[:, :, :2] + 1, np.arange(len(MAP)) % 3], opset=24)
    yield Case("TensorScatter", [MAP, MAP[..., :3] + 1, i(*[MAP.shape[3] - 1] * len(MAP))],
               {"axis": 3, "mode": "circular"}, opset=24)  # fmt: skip
    yield Case("TensorScatter", [MAP, MAP[:, :, 1:] + 1], {"mode": "linear"}, opset=24)
    yield Case("Reshape", [ROWS, i(0, -1)])
    yield Case("Reshape", [ROWS, i(5, 18)], {"allowzero": 0})
    yield Case("Reshape", [np.zeros((0, 3), np.float32), i(3, 0)], {"allowzero": 1})
    yield from (Case("Flatten", [ROWS], {} if axis is None else {"axis": axis}) for axis in (None, 0, 2, 3, -1))
    ones = normal(1, 3, 1, 5)
    yield Case("Squeeze", [ones])
    yield Case("Squeeze", [ones, i(-2)])
    yield Case("Unsqueeze", [ROWS, i(-1, 0)])
    yield Case("Unsqueeze", [ROWS, i(3, 0)])
    yield Case("Transpose", [ROWS])
    yield Case("Transpose", [ROWS], {"perm": [1, 2, 0]})
    yield Case("Expand", [normal(3, 1), i(2, 1, 4)])
    yield Case("Expand", [ROWS, i(1)])
    yield Case("Tile", [normal(2, 3), i(2, 3)])
    yield Case("Identity", [ROWS])
    yield Case("DepthToSpace", [normal(2, 12, 3, 2)], {"blocksize": 2})
    yield Case("DepthToSpace", [normal(2, 18, 3, 2)], {"blocksize": 3, "mode": "CRD"})
    yield Case("SpaceToDepth", [normal(2, 3, 4, 6)], {"blocksize": 2})
    yield Case("Pad", [ROWS, i(1, 0, 2, 0, 3, 1)])
    yield Case("Pad", [ROWS, i(1, -2, 2, 0, 3, -1), scalar(1.5)], {"mode": "constant"})
    yield Case("Pad", [ROWS, i(1, 2), scalar(0.5), i(-1)])
    for mode in ("reflect", "edge", "wrap"):
        yield Case("Pad", [ROWS, i(1, 4, 0, 2, 2, 5)], {"mode": mode})
        yield Case("Pad", [ROWS, i(2, 3), None, i(1)], {"mode": mode})
    for to, x in product(
        ("FLOAT", "INT64", "INT32", "INT8", "UINT8", "BOOL", "DOUBLE"), (90 * np.abs(ROWS), INTEGERS, BOOLS)
    ):
        if (to, x.dtype) not in (("INT8", np.float32), ("UINT8", np.float32)):  # what is beyond the type is undefined
            yield Case("Cast", [x], {"to": TensorProto.DataType.Value(to)})
    yield Case("Cast", [40 * INTEGERS], {"to": TensorProto.INT8, "saturate": 1})
    yield Case("Cast", [70000 * INTEGERS], {"to": TensorProto.UINT16, "round_mode": "up"}, opset=24)
    yield Case("Cast", [70000 * INTEGERS], {"to": TensorProto.INT16})
    yield Case("Shape", [ROWS])
    yield Case("Shape", [ROWS], {"start": 1, "end": -1})
    yield Case("ConstantOfShape", [i(2, 3)])
    yield Case("ConstantOfShape", [i(2, 3)], {"value": helper.make_tensor("v", TensorProto.INT64, [1], [7])})
    yield Case("ConstantOfShape", [i(2, 3)], {"value": helper.make_tensor("v", TensorProto.BOOL, [1], [True])})
    for more in ({}, {"largest": 0, "axis": 1}, {"sorted": 1, "axis": 0}):
        yield Case("TopK", [ROWS, i(3)], more, outputs=2)


def resizes() -> Iterator[Case]:
    coordinates = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric")
    scales = (f(1, 1, 2, 2), f(1, 1, 0.6, 1.7), f(1, 1, 3, 0.5))
    for how, scale in product(coordinates, scales):
        for rule in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
            yield Case("Resize", [MAP, None, scale], {"coordinate_transformation_mode": how, "nearest_mode": rule})
        yield Case("Resize", [MAP, None, scale], {"coordinate_transformation_mode": how, "mode": "linear"})
    for sizes in (i(2, 4, 18, 3), i(2, 4, 1, 13), i(2, 4, 5, 20)):
        yield Case("Resize", [MAP, None, None, sizes])
        yield Case("Resize", [MAP, None, None, sizes], {"mode": "linear", "antialias": 0, "exclude_outside": 0})
        for how in ("align_corners", "pytorch_half_pixel"):
            yield Case("Resize", [MAP, None, None, sizes], {"mode": "linear", "coordinate_transformation_mode": how})
    yield Case("Resize", [MAP, None, f(3, 1.5)], {"axes": [2, 3], "keep_aspect_ratio_policy": "stretch"})
    yield Case("Resize", [MAP, None, None, i(12, 20)], {"axes": [-2, -1], "mode": "linear"})
    yield Case("Resize", [MAP, f(), f(1, 1, 2, 2)])
    old = {"coordinate_transformation_mode": "tf_half_pixel_for_nn", "nearest_mode": "floor"}
    yield Case("Resize", [MAP, None, f(1, 1, 2, 1.7)], old, opset=17)
    yield Case("Resize", [MAP, None, f(1, 1, 1, 3)], old | {"nearest_mode": "round_prefer_ceil"}, opset=17)
    yield Case("Resize", [MAP, None, f(1, 1, 2, 2)], {"extrapolation_value": 3.0, "cubic_coeff_a": -0.5})


CASES = [*convolutions(), *products(), *elements(), *rows(), *pools(), *moves(), *resizes()]

REJECTED = {
    "no row": (Case("CumSum", [ROWS, np.asarray(1)]), "torch has no form"),
    "old opset": (Case("Softmax", [ROWS], opset=12), "opset is 12, and the table follows opset 17"),
    "another domain": (Case("Gelu", [ROWS], domain="com.microsoft"), "torch has no form"),
    "dilated average": (Case("AveragePool", [MAP], {"kernel_shape": [2, 2], "dilations": [2, 1]}), "dilations"),
    "statistics": (Case("BatchNormalization", [MAP, *[positive(4)] * 4], {"training_mode": 1}, outputs=3), "output 1"),
    "batch statistics": (Case("BatchNormalization", [MAP, *[positive(4)] * 4], {"training_mode": 1}), "training_mode"),
    "positions": (Case("MaxPool", [MAP], {"kernel_shape": [2, 2]}, outputs=2), "output 1"),
    "mean as output": (Case("LayerNormalization", [ROWS, normal(6)], outputs=2), "output 1"),
    "half statistics": (Case("LayerNormalization", [ROWS, normal(6)], {"stash_type": 16}), "stash_type is 16"),
    "cubic": (Case("Resize", [MAP, None, f(1, 1, 2, 2)], {"mode": "cubic"}), "mode is cubic"),
    "antialias": (Case("Resize", [MAP, None, f(1, 1, 2, 2)], {"antialias": 1, "mode": "linear"}), "antialias is 1"),
    "sums in places": (Case("ScatterND", [ROWS, np.int64([[1]]), ROWS[:1]], {"reduction": "add"}), "reduction is add"),
    "half precision": (Case("Cast", [ROWS], {"to": TensorProto.FLOAT16}), "FLOAT16"),
    "text": (Case("Equal", [np.array(["a"], object), np.array(["b"], object)]), "STRING"),
    "crop": (Case("Resize", [MAP, f(), f(1, 1, 2, 2)], {"coordinate_transformation_mode": "tf_crop_and_resize"}),
             "tf_crop_and_resize"),
    "unknown attribute": (Case("Relu", [ROWS], {"alpha": 2.0}), "attribute alpha"),
    "one operand too many": (Case("Relu", [ROWS, ROWS]), "operand 1"),
    "flat window": (Case("MaxPool", [normal(1, 1, 2, 2, 2, 2)], {"kernel_shape": [2, 2, 2, 2]}), "more than three"),
    "unknown padding": (Case("Pad", [ROWS, i(1, 0, 2, 0, 3, 1)], {"mode": "mirror"}), "mode is mirror"),
}  # fmt: skip
"""Name -> node, and words of the reason."""
