"""The models of the golden plans, made by seeded code.

Weights and inputs of the *dyadic* nets are small multiples of a power of two. So are then all values in the float
model, and float32 holds every partial sum of its layers: whatever the order in which a processor adds, ranges come out
the same to the last bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from tests.ops.line import Net

Array = np.ndarray[Any, np.dtype[np.float32]]

SAMPLES = 64


def dyadic_samples(*shape: int, seed: int = 3) -> Array:
    """Multiples of 1/16 in [-1, 1], `[SAMPLES, *shape]`; positive values are the more frequent."""
    values = np.random.default_rng(seed).integers(-12, 17, (SAMPLES, *shape))
    return (values / 16).astype(np.float32)


class DyadicNet(Net):
    """A net whose weights are multiples of 1/8."""

    def weight(self, *shape: int, most: int = 5) -> str:
        """Integers up to `most` in eighths; the first output channel has half of that, so that scales differ."""
        values = self.rng.integers(-most, most + 1, shape)
        values[0] = values[0] // 2
        return self.constant((values / 8).astype(np.float32))

    def dyadic_conv(self, x: str, into: int, out: int, kernel: int, group: int = 1, **attrs: Any) -> str:
        """A convolution that keeps height and width where its stride is 1."""
        weight, bias = self.weight(out, into // group, kernel, kernel), self.weight(out)
        pads = [kernel // 2] * 4
        return self.node("Conv", x, weight, bias, kernel_shape=[kernel] * 2, pads=pads, group=group, **attrs)

    def clip6(self, x: str) -> str:
        """ReLU6."""
        return self.node("Clip", x, self.constant(np.float32(0)), self.constant(np.float32(6)))


def residual() -> onnx.ModelProto:
    """Two residual additions, one of them without a clamp behind it, a concat, a pool. Dyadic."""
    net = DyadicNet(seed=11)
    x = net.node("Relu", net.dyadic_conv(net.input(None, 3, 8, 8), 3, 6, 3))
    x = net.node("Relu", net.node("Add", net.dyadic_conv(x, 6, 6, 3), x))
    y = net.node("MaxPool", net.dyadic_conv(x, 6, 4, 1), kernel_shape=[2, 2], strides=[2, 2])
    z = net.dyadic_conv(x, 6, 4, 3, strides=[2, 2])
    joined = net.node("Concat", net.node("Add", y, z), z, axis=1)
    pooled = net.node("Flatten", net.node("GlobalAveragePool", joined))
    net.output(net.node("Gemm", pooled, net.weight(5, 8), net.weight(5), transB=1))
    return net.proto()


def mobile() -> onnx.ModelProto:
    """An inverted residual: pointwise, depthwise with stride 1, ReLU6 behind both, a linear bottleneck. Dyadic."""
    net = DyadicNet(seed=12)
    x = net.clip6(net.dyadic_conv(net.input(None, 3, 8, 8), 3, 4, 3, strides=[2, 2]))
    y = net.clip6(net.dyadic_conv(x, 4, 8, 1))
    y = net.clip6(net.dyadic_conv(y, 8, 8, 3, group=8))
    x = net.node("Add", x, net.dyadic_conv(y, 8, 4, 1))
    x = net.node("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
    net.output(net.node("Gemm", net.node("Flatten", x), net.weight(5, 16), net.weight(5), transB=1))
    return net.proto()


def dense() -> onnx.ModelProto:
    """MatMul with rows of each sample, its bias as an addition, then Gemm in both layouts. Dyadic."""
    net = DyadicNet(seed=13)
    x = net.node("MatMul", net.input(None, 4, 12), net.weight(12, 8))
    x = net.node("Relu", net.node("Add", x, net.weight(8)))
    x = net.node("Flatten", net.node("Transpose", x, perm=[0, 2, 1]))
    x = net.node("Relu", net.node("Gemm", x, net.weight(32, 10), net.weight(10)))
    net.output(net.node("Gemm", x, net.weight(5, 10), transB=1))
    return net.proto()


def attention() -> onnx.ModelProto:
    """One head of attention over four tokens, with a normalization, a residual addition and a Gelu layer."""
    net = Net(seed=14, opset=20)
    x = net.input(None, 4, 8)
    normed = net.node("LayerNormalization", x, net.floats(8, scale=0.5), net.floats(8, scale=0.1), axis=-1)
    q, k, v = (net.node("MatMul", normed, net.floats(8, 8, scale=0.4)) for _ in range(3))
    scores = net.node("MatMul", q, net.node("Transpose", k, perm=[0, 2, 1]))
    weights = net.node("Softmax", net.node("Mul", scores, net.constant(np.float32(0.35))), axis=-1)
    x = net.node("Add", x, net.node("MatMul", net.node("MatMul", weights, v), net.floats(8, 8, scale=0.4)))
    hidden = net.node("Gelu", net.node("MatMul", x, net.floats(8, 16, scale=0.4)))
    x = net.node("Add", x, net.node("MatMul", hidden, net.floats(16, 8, scale=0.3)))
    net.output(net.dense(net.node("Flatten", x), 32, 5))
    return net.proto()


def recurrent() -> onnx.ModelProto:
    """A cell h = tanh(W x + U h) over three steps with one set of weights, and two outputs: classes and the state."""
    net = Net(seed=15)
    x = net.input(None, 3, 6)
    into, across, bias = net.floats(6, 8, scale=0.5), net.floats(8, 8, scale=0.3), net.floats(8, scale=0.2)
    steps = [f"step{i}" for i in range(3)]
    net.split(x, steps, [1, 1, 1], axis=1)
    flat = [net.node("Flatten", step) for step in steps]
    h = net.node("Tanh", net.node("Gemm", flat[0], into, bias))
    for step in flat[1:]:
        h = net.node("Tanh", net.node("Add", net.node("Gemm", step, into, bias), net.node("MatMul", h, across)))
    net.output(net.dense(h, 8, 5), net.node("Sigmoid", h))
    return net.proto()
