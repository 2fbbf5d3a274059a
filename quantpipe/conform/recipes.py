"""Small models that probe one op of a device each: what they multiply, and at which scales.

A table: each row is an op at ties, at general scales, in saturation, in overflow, or at its pads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from quantpipe.arrays import Array

NODE = "probe"
"""The name of the node that a probe is about."""
RESULT = "y"
"""The tensor that it makes."""
OPSET = 17
GENERAL, TIES = "general", "ties"
"""Scales: any real numbers, or powers of two, so that many accumulators lie half-way between two integers."""


@dataclass(frozen=True, eq=False)
class ProbeDraft:
    """Hold a probe before its scales are chosen: the model without its biases, and how its operands are filled.

    `inputs`: Input -> shape of one sample. `output`: The shape of the result of one sample. `weight`: Integers of the
    weight in units of its largest code, `[-1, 1]`; None without weight. `bias`: Whether the op takes a bias.
    `attributes`: Attributes of the node. `extreme`: Whether inputs are at the ends of their range, instead of anywhere.
    """

    op: str
    inputs: Mapping[str, tuple[int, ...]]
    output: tuple[int, ...]
    weight: Array | None = field(default=None, repr=False)
    bias: bool = False
    attributes: Mapping[str, Any] = field(default_factory=dict)
    extreme: bool = False

    @property
    def channels(self) -> int:
        """Return the number of channels of the result of an op with a weight."""
        assert self.weight is not None  # noqa: S101  (asked for where there is one)
        return int(self.weight.shape[1 if self.weight.ndim == 2 else 0])

    def model(self, weight: Array | None, bias: Array | None, *, tail: bool) -> onnx.ModelProto:
        """Return the model.

        An op without a weight reads copies of the inputs, made by convolutions with a weight of one: a device runs it
        in integers if its inputs are integers. `tail`: another layer reads the result, since many devices store a last
        one as float values.
        """
        constants = {name: values for name, values in (("w", weight), ("b", bias)) if values is not None}
        nodes, reads = [], list(self.inputs)
        if weight is None:
            for n, (name, shape) in enumerate(self.inputs.items()):
                constants[f"one{n}"] = np.eye(shape[0]).reshape(shape[0], shape[0], 1, 1)
                front = helper.make_node(
                    "Conv", [name, f"one{n}"], [f"{name}_copy"], name=f"copy{n}", kernel_shape=[1, 1]
                )
                nodes.append(front)
                reads[n] = f"{name}_copy"
        names = [name for name in ("w", "b") if name in constants]
        nodes.append(helper.make_node(self.op, [*reads, *names], [RESULT], name=NODE, **self.attributes))
        last, shape = RESULT, self.output
        if tail:
            last, channels = "z", self.output[0]
            ones = np.sign(np.sin(1.0 + np.arange(channels)))
            dense = len(shape) == 1
            constants["t"] = ones.reshape((channels, 1) if dense else (1, channels, 1, 1))
            more: dict[str, Any] = {} if dense else {"kernel_shape": [1, 1]}
            nodes.append(helper.make_node("Gemm" if dense else "Conv", [RESULT, "t"], [last], name="reader", **more))
            shape = (1, *shape[1:])
        graph = helper.make_graph(
            nodes,
            "probe",
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", *s]) for n, s in self.inputs.items()],
            [helper.make_tensor_value_info(last, TensorProto.FLOAT, ["N", *shape])],
            [numpy_helper.from_array(values.astype(np.float32), name) for name, values in constants.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)


@dataclass(frozen=True, eq=False)
class Recipe:
    """Describe how a probe is made.

    `draft`: Makes the draft, from a random generator. `scales`: `general` or `ties`. `fill`: The largest accumulator,
    in units of the largest stored result; above 1 it saturates. `separating`: Whether biases are chosen so that ways to
    narrow differ. `twin`: The probe that is the same where all scales are powers of two.
    """

    name: str
    purpose: str
    draft: Callable[[np.random.Generator], ProbeDraft]
    scales: str = GENERAL
    fill: float = 1.0
    separating: bool = False
    twin: str = ""


def _conv(rng: np.random.Generator, *, inputs: int = 8, outputs: int = 16, bias: bool = True) -> ProbeDraft:
    weight = rng.uniform(-1, 1, (outputs, inputs, 1, 1)) * np.geomspace(0.2, 1.0, outputs).reshape(-1, 1, 1, 1)
    return ProbeDraft("Conv", {"x": (inputs, 4, 4)}, (outputs, 4, 4), weight, bias, {"kernel_shape": [1, 1]})


def _dense(rng: np.random.Generator, *, inputs: int = 16, outputs: int = 64, bias: bool = True) -> ProbeDraft:
    return ProbeDraft("Gemm", {"x": (inputs,)}, (outputs,), rng.uniform(-1, 1, (inputs, outputs)), bias)


def _separating(op: str) -> Callable[[np.random.Generator], ProbeDraft]:
    """Return a draft with weights of one step, so that the bias alone is narrowed where x is 0."""

    def draft(rng: np.random.Generator) -> ProbeDraft:
        if op == "Gemm":
            return ProbeDraft(op, {"x": (4,)}, (256,), rng.choice([-1.0, 1.0], (4, 256)) / 127.0, bias=True)
        weight = rng.choice([-1.0, 1.0], (256, 4, 1, 1)) / 127.0
        return ProbeDraft(op, {"x": (4, 2, 2)}, (256, 2, 2), weight, True, {"kernel_shape": [1, 1]})

    return draft


def _padded(rng: np.random.Generator) -> ProbeDraft:
    weight = rng.uniform(-1, 1, (6, 3, 3, 3))
    attributes = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    return ProbeDraft("Conv", {"x": (3, 6, 5)}, (6, 6, 5), weight, True, attributes)


def _strided(rng: np.random.Generator) -> ProbeDraft:
    weight = rng.uniform(-1, 1, (6, 3, 3, 3))
    attributes = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}
    return ProbeDraft("Conv", {"x": (3, 7, 7)}, (6, 4, 4), weight, True, attributes)


def _depthwise(rng: np.random.Generator) -> ProbeDraft:
    weight = rng.uniform(-1, 1, (8, 1, 3, 3))
    attributes = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "group": 8}
    return ProbeDraft("Conv", {"x": (8, 6, 6)}, (8, 6, 6), weight, True, attributes)


def _pairs(rng: np.random.Generator) -> ProbeDraft:
    weight = np.sign(rng.uniform(-1, 3, (6, 8, 1, 1)))
    return ProbeDraft("Conv", {"x": (8, 4, 4)}, (6, 4, 4), weight, False, {"kernel_shape": [1, 1]}, extreme=True)


def _overflow(width: int) -> Callable[[np.random.Generator], ProbeDraft]:
    """Return sums of as many largest products as exceed an accumulator of so many bits."""
    count = int(1.5 * (1 << (width - 1)) / (127 * 127))

    def draft(rng: np.random.Generator) -> ProbeDraft:
        if width > 16:
            return ProbeDraft("Gemm", {"x": (count,)}, (2,), np.ones((count, 2)) * [1.0, -1.0], extreme=True)
        weight = np.sign(rng.uniform(-0.2, 1, (8, 4 * count, 1, 1)))
        attributes = {"kernel_shape": [1, 1]}
        return ProbeDraft("Conv", {"x": (4 * count, 4, 4)}, (8, 4, 4), weight, False, attributes, extreme=True)

    return draft


def _two(op: str) -> Callable[[np.random.Generator], ProbeDraft]:
    return lambda rng: ProbeDraft(op, {"x": (8, 6, 6), "v": (8, 6, 6)}, (8, 6, 6))


def _pool(op: str, taps: int) -> Callable[[np.random.Generator], ProbeDraft]:
    if op == "AveragePool":
        attributes = {"kernel_shape": [taps, taps], "strides": [taps, taps]}
        return lambda rng: ProbeDraft(op, {"x": (16, 4 * taps, 4 * taps)}, (16, 4, 4), attributes=attributes)
    return lambda rng: ProbeDraft(op, {"x": (64, taps, taps)}, (64, 1, 1))


RECIPES: tuple[Recipe, ...] = (
    Recipe("conv_narrowing", "accumulators of which two ways to narrow make different integers", _separating("Conv"),
           separating=True, twin="conv_narrowing_ties"),
    Recipe("conv_narrowing_ties", "the same with multipliers that are powers of two", _separating("Conv"), TIES,
           separating=True),
    Recipe("conv_general", "a convolution with general scales, per channel if the device has them", _conv,
           twin="conv_ties"),
    Recipe("conv_ties", "a convolution of which many sums lie half-way between two integers", _conv, TIES),
    Recipe("conv_saturation", "a convolution whose results are beyond what is stored", _conv, fill=16.0),
    Recipe("conv_padding", "the values of pads, and the places of windows", _padded),
    Recipe("conv_strides", "the places of windows with strides", _strided),
    Recipe("conv_depthwise", "a depthwise convolution with pads", _depthwise),
    Recipe("conv_pairs", "pairs of products beyond int16", _pairs),
    Recipe("conv_overflow16", "sums beyond 16 bits", _overflow(16)),
    Recipe("dense_narrowing", "accumulators of which two ways to narrow make different integers", _separating("Gemm"),
           separating=True, twin="dense_narrowing_ties"),
    Recipe("dense_narrowing_ties", "the same with multipliers that are powers of two", _separating("Gemm"), TIES,
           separating=True),
    Recipe("dense_general", "a dense layer with general scales", _dense),
    Recipe("dense_overflow32", "sums beyond 32 bits", _overflow(32)),
    Recipe("add_general", "an addition of operands at scales of their own", _two("Add"), twin="add_ties"),
    Recipe("add_ties", "an addition of which many sums lie half-way between two integers", _two("Add"), TIES),
    Recipe("add_saturation", "an addition whose results are beyond what is stored", _two("Add"), fill=4.0),
    Recipe("mul_general", "a product of two activations", _two("Mul"), twin="mul_ties"),
    Recipe("mul_ties", "products that lie half-way between two integers", _two("Mul"), TIES),
    Recipe("mean_general", "the mean of a map", _pool("GlobalAveragePool", 4), twin="mean_ties"),
    Recipe("mean_ties", "means that lie half-way between two integers", _pool("GlobalAveragePool", 4), TIES),
    Recipe("average_general", "the mean of a window", _pool("AveragePool", 2), twin="average_ties"),
    Recipe("average_ties", "means of a window that lie half-way between two integers", _pool("AveragePool", 2), TIES),
)  # fmt: skip
"""Every probe that there is; a device gets those whose op it runs in integers."""
