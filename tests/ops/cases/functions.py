"""Nets of transposed convolutions, products of two activations, tables, and ops that move values."""

from __future__ import annotations

import numpy as np

from tests.ops.cases.base import CASES, Build, back_of, between, case, front_of
from tests.ops.line import Net


def _transposed(
    name: str, into: int, out: int, kernel: tuple[int, ...], side: tuple[int, ...], bias: bool = True, **attrs: object
) -> None:
    def build(net: Net) -> None:
        x = net.conv(net.input(None, 3, *side), 3, into, *(1 for _ in side), name="front")
        weight = net.floats(into, out, *kernel, scale=1.0 / np.sqrt(into))
        net._constants[weight][:, 0] *= 0.25
        more = [net.floats(out, scale=0.3)] if bias else []
        up = net.node("ConvTranspose", x, weight, *more, name="mid", kernel_shape=list(kernel), **attrs)
        net.output(net.conv(net.node("Relu", up), out, 4, *(1 for _ in side)))

    CASES[name] = build


_transposed("transposed_plain", 5, 4, (3, 3), (5, 6))
_transposed("transposed_no_bias", 5, 4, (2, 2), (5, 6), bias=False, strides=[2, 2])
_transposed("transposed_strides", 5, 4, (4, 3), (5, 6), strides=[2, 3], pads=[1, 0, 1, 2], output_padding=[1, 0])
_transposed("transposed_dilations", 5, 4, (3, 3), (5, 6), dilations=[2, 1], strides=[2, 1])
_transposed("transposed_1d", 5, 4, (4,), (9,), strides=[2], pads=[1, 1])


@case
def transposed_wide(net: Net) -> None:
    """Sums beyond 2^24: in parts."""
    x = net.conv(net.input(None, 3, 3, 3), 3, 700, 1, 1, name="front")
    weight = net.signs(700, 4, 2, 2, scale=0.02)
    up = net.node("ConvTranspose", x, weight, net.floats(4), name="mid", kernel_shape=[2, 2])
    net.output(net.conv(up, 4, 4, 1, 1))


@case
def matmul_activations(net: Net) -> None:
    """Attention scores: queries times transposed keys, both computed."""
    x = net.input(None, 6, 16)
    q = net.node("MatMul", x, net.floats(16, 12, scale=0.3), name="query")
    k = net.node("MatMul", x, net.floats(16, 12, scale=0.3), name="key")
    scores = net.node("MatMul", q, net.node("Transpose", k, perm=[0, 2, 1]), name="mid")
    net.output(net.node("MatMul", scores, net.floats(6, 5, scale=0.3), name="last"))


@case
def matmul_activations_deep(net: Net) -> None:
    """A sum over more than 258 products of bytes may leave float32."""
    x = net.input(None, 4, 300)
    q = net.node("MatMul", x, net.floats(300, 300, scale=0.06), name="query")
    scores = net.node("MatMul", q, net.node("Transpose", q, perm=[0, 2, 1]), name="mid")
    net.output(net.node("MatMul", scores, net.floats(4, 5, scale=0.3), name="last"))


@case
def attention(net: Net) -> None:
    """Scores, softmax in float, weighted sum: the second product has an operand that comes from a float node."""
    x = net.input(None, 6, 16)
    q, k, v = (net.node("MatMul", x, net.floats(16, 8, scale=0.3), name=n) for n in ("query", "key", "value"))
    scores = net.node("MatMul", q, net.node("Transpose", k, perm=[0, 2, 1]), name="scores")
    weights = net.node("Softmax", scores, axis=-1)
    mixed = net.node("MatMul", weights, v, name="mid")
    net.output(net.node("MatMul", mixed, net.floats(8, 5, scale=0.3), name="last"))


def _function(op: str, positive: bool = False, opset: int = 17, **attrs: object) -> None:
    """A function of one value; `positive`: the input is kept above zero, where it is defined."""

    def build(net: Net) -> None:
        net._opset = opset
        x = front_of(net)
        if positive:
            x = net.node("Clip", x, net.constant(np.float32(0.25)), net.constant(np.float32(4)))
        back_of(net, net.node(op, x, name="mid", **attrs))

    CASES[f"function_{op.lower()}"] = build


_function("Sigmoid")
_function("Tanh")
_function("LeakyRelu", alpha=0.1)
_function("HardSigmoid", alpha=0.25, beta=0.4)
_function("HardSwish")
_function("Elu")
for _op in ("Selu", "Celu", "ThresholdedRelu", "Softplus", "Softsign", "Erf", "Exp", "Abs", "Neg", "Sign", "Floor",
            "Ceil", "Round", "Sin", "Cos"):  # fmt: skip
    _function(_op)
for _op in ("Log", "Sqrt", "Reciprocal"):
    _function(_op, positive=True)
_function("Mish", opset=18)
_function("Gelu", opset=20)
_function("Swish", opset=24, alpha=1.5)


def _normalization(name: str, op: str, *parameters: bool, opset: int = 17, **attrs: object) -> None:
    """A normalization of 12 features behind a dense layer, with gain and offset as said."""

    def build(net: Net) -> None:
        net._opset = opset
        x = net.node("MatMul", net.input(None, 5, 16), net.floats(16, 12, scale=0.2), name="first")
        more = [net.floats(12, scale=s) for s, given in zip((0.8, 0.3), parameters, strict=False) if given]
        x = net.node(op, x, *more, name="mid", **attrs)
        net.output(net.node("MatMul", x, net.floats(12, 7, scale=0.3), name="second"))

    CASES[name] = build


_normalization("layer_norm", "LayerNormalization", True, True, axis=-1)
_normalization("layer_norm_no_offset", "LayerNormalization", True, axis=-1, epsilon=1e-3)
_normalization("rms_norm", "RMSNormalization", True, opset=23, axis=-1)


@case
def instance_norm(net: Net) -> None:
    between(net, "InstanceNormalization", net.floats(6, scale=0.8), net.floats(6, scale=0.3))


@case
def local_response(net: Net) -> None:
    """Channels divided by a power of the squares around them: AlexNet's, with a divisor of 1 to 3."""
    between(net, "LRN", size=5, alpha=3.0, beta=0.75, bias=2.0)


@case
def divide(net: Net) -> None:
    """A mean of weighted tokens: their sum, divided by that of the weights."""
    x = net.input(None, 5, 16)
    weights = net.node("Clip", net.node("MatMul", x, net.floats(16, 1, scale=0.3), name="weights"),
                       net.constant(np.float32(0.5)), net.constant(np.float32(3)))  # fmt: skip
    x = net.node("MatMul", x, net.floats(16, 12, scale=0.2), name="first")
    x = net.node("Div", x, weights, name="mid")
    net.output(net.node("MatMul", x, net.floats(12, 7, scale=0.3), name="second"))


@case
def reduce_mean(net: Net) -> None:
    """The mean of all tokens, without their axis."""
    x = net.node("MatMul", net.input(None, 5, 16), net.floats(16, 12, scale=0.2), name="first")
    x = net.node("ReduceMean", x, name="mid", axes=[1], keepdims=0)
    net.output(net.node("MatMul", x, net.floats(12, 7, scale=0.3), name="second"))


@case
def reduce_sum(net: Net) -> None:
    x = net.node("MatMul", net.input(None, 5, 16), net.floats(16, 12, scale=0.2), name="first")
    x = net.node("ReduceSum", x, net.constant(np.int64([-1])), name="mid", keepdims=1)
    net.output(net.node("Mul", x, net.node("MatMul", net.input(None, 5, 16, name="y"), net.floats(16, 12, scale=0.3))))


@case
def softmax_last(net: Net) -> None:
    x = net.node("MatMul", net.input(None, 5, 16), net.floats(16, 12, scale=0.6), name="first")
    net.output(net.node("MatMul", net.node("Softmax", x, name="mid"), net.floats(12, 7, scale=0.3), name="second"))


@case
def function_pow(net: Net) -> None:
    between(net, "Pow", net.constant(np.float32(2)))


@case
def function_prelu(net: Net) -> None:
    between(net, "PRelu", net.floats(1, scale=0.3))


@case
def function_prelu_channels(net: Net) -> None:
    between(net, "PRelu", net.floats(6, 1, 1, scale=0.3))


@case
def function_prelu_last(net: Net) -> None:
    x = net.node("MatMul", net.input(None, 5, 16), net.floats(16, 10, scale=0.2), name="first")
    x = net.node("PRelu", x, net.floats(10, scale=0.4), name="mid")
    net.output(net.node("MatMul", x, net.floats(10, 7, scale=0.3), name="second"))


@case
def function_clamped(net: Net) -> None:
    front = front_of(net)
    t = net.node("LeakyRelu", front, alpha=0.3, name="mid")
    back_of(net, net.node("Clip", t, net.constant(np.float32(-0.2)), net.constant(np.float32(0.9))))


@case
def gate_of_silu(net: Net) -> None:
    front = front_of(net)
    back_of(net, net.node("Mul", front, net.node("Sigmoid", front, name="mid")))


@case
def max_activations(net: Net) -> None:
    x = net.input(None, 3, 8, 8)
    back_of(net, net.node("Max", net.conv(x, 3, 6, 3, 3), net.conv(x, 3, 6, 3, 3), name="mid"))


@case
def min_activations(net: Net) -> None:
    x = net.input(None, 3, 8, 8)
    back_of(net, net.node("Min", net.conv(x, 3, 6, 3, 3), net.conv(x, 3, 6, 3, 3), name="mid"))


@case
def where_activations(net: Net) -> None:
    x = net.input(None, 3, 8, 8)
    chosen = net.constant(net.rng.random((6, 1, 1)) < 0.5)
    a, b = net.conv(x, 3, 6, 3, 3), net.conv(x, 3, 6, 3, 3)
    back_of(net, net.node("Where", chosen, a, b, name="mid"))


@case
def sub_activations(net: Net) -> None:
    x = net.input(None, 3, 8, 8)
    a, b = net.conv(x, 3, 6, 3, 3), net.conv(x, 3, 6, 3, 3)
    back_of(net, net.node("Sub", a, b, name="mid"))


@case
def resize_nearest(net: Net) -> None:
    region = net.constant(np.zeros(0, np.float32))  # empty, as PyTorch writes it at opset 11
    between(net, "Resize", region, net.constant(np.float32([1, 1, 2, 2])), mode="nearest", nearest_mode="floor",
            coordinate_transformation_mode="asymmetric")  # fmt: skip


@case
def resize_linear(net: Net) -> None:
    between(net, "Resize", "", net.constant(np.float32([1, 1, 2, 2])), mode="linear")


@case
def expand(net: Net) -> None:
    pooled = net.node("GlobalAveragePool", front_of(net))
    net.output(net.conv(net.node("Expand", pooled, net.constant(np.int64([1, 6, 3, 2])), name="mid"), 6, 4, 2, 2))


@case
def tile(net: Net) -> None:
    between(net, "Tile", net.constant(np.int64([1, 2, 1, 3])), channels=12)


@case
def reduce_max(net: Net) -> None:
    between(net, "ReduceMax", axes=[2, 3], keepdims=1)


@case
def reduce_min(net: Net) -> None:
    between(net, "ReduceMin", axes=[3], keepdims=1)


@case
def top_k(net: Net) -> None:
    net.output(net.conv(net.top(front_of(net), 2, axis=3), 6, 4, 1, 1))


@case
def top_k_smallest(net: Net) -> None:
    net.output(net.conv(net.top(front_of(net), 3, axis=2, largest=0), 6, 4, 1, 1))


def _split(name: str, *sizes: int, axis: int = 1) -> None:
    def build(net: Net) -> None:
        front = front_of(net, channels=7)
        parts = [f"part{n}" for n in range(len(sizes))]
        net.split(front, parts, sizes, axis)
        net.output(*(net.conv(p, s, 3, 1, 1) for p, s in zip(parts, sizes, strict=True)))

    CASES[name] = build


_split("split_even_and_odd", 3, 4)
_split("split_three", 1, 4, 2)


__all__ = ["CASES", "Build"]
