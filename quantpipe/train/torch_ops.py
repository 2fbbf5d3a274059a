"""FLOAT_ROWS: one row per op that torch computes in training, with the attributes and operands it supports.

A node in another form is rejected (`FloatOp.reason`). Definitions are ONNX's from opset 17 on, the clean-up's
smallest; an op whose axes became an operand later accepts both forms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce

import torch
from torch import Tensor
from torch.nn import functional

from quantpipe.graph.view import Node
from quantpipe.train import torch_moves as m
from quantpipe.train import torch_windows as w
from quantpipe.train.float_op import Call, FloatOp

MANY = 1 << 16
"""Operands, or outputs, of ops that take any number."""


def _plain(function: Callable[..., Tensor], inputs: int = 1) -> FloatOp:
    """Return the row of an op that is a torch function of all its operands."""
    return FloatOp(lambda call: function(*call.operands), inputs=inputs)


def _with(function: Callable[..., Tensor], **defaults: float) -> FloatOp:
    """Return the row of a function of one operand, and of attributes with these defaults."""

    def compute(call: Call) -> Tensor:
        return function(call[0], *(call.attr(name, value) for name, value in defaults.items()))

    return FloatOp(compute, frozenset(defaults))


def _over_axes(function: Callable[..., Tensor], *, listed: bool = True) -> FloatOp:
    """Return the row of a reduction: `function(x, axes, keepdim)`; `listed`: before opset 18, axes are an attribute."""

    def compute(call: Call) -> Tensor:
        x, axes = call[0], call.integers(1) or call.attr("axes")
        if not axes and call.attr("noop_with_empty_axes", 0):
            return x
        return function(x, tuple(axes or range(x.dim())), bool(call.attr("keepdims", 1)))

    known = {"keepdims", "noop_with_empty_axes"} | ({"axes"} if listed else set())
    return FloatOp(compute, frozenset(known), numbers=_FIRST, inputs=2)


def _folded(function: Callable[[Tensor, Tensor], Tensor]) -> FloatOp:
    """Return the row of an op of any number of operands, taken two by two."""
    return FloatOp(lambda call: reduce(function, call.operands), inputs=MANY)


def _gemm(call: Call) -> Tensor:
    a, b, c = call[0], call[1], call.get(2)
    alpha, beta = call.attr("alpha", 1.0), call.attr("beta", 1.0)
    a = a.T if call.attr("transA", 0) else a
    if alpha == beta == 1.0 and call.attr("transB", 0) and (c is None or c.dim() == 1):
        return functional.linear(a, b, c)
    product = alpha * (a @ (b.T if call.attr("transB", 0) else b))
    return product if c is None else product + beta * c


def _divided(a: Tensor, b: Tensor) -> Tensor:
    return a / b if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc")


def _clip(call: Call) -> Tensor:
    """Return the operand between two limits; constant limits are numbers, which is faster."""
    ports = [port for port in (1, 2) if call.has(port)]
    if not ports:
        return call[0]
    numbers = all(port in call.known for port in ports)
    low, high = ((call.known[p][0] if numbers else call[p]) if p in ports else None for p in (1, 2))
    return torch.clamp(call[0], low, high)


def _normalized(x: Tensor, p: int, axis: int) -> Tensor:
    """Return `x` divided by its norm along an axis; 0 where the norm is 0."""
    return functional.normalize(x, float(p), axis, torch.finfo(x.dtype).tiny)


def _stash_refuses(node: Node) -> str | None:
    stash = node.attr("stash_type", 1)
    return None if stash == 1 else f"its stash_type is {stash}"


def _layer_norm(call: Call) -> Tensor:
    x, bias = call[0], call.get(2)
    sizes = x.shape[call.attr("axis", -1) :]
    scale = call[1].expand(sizes)
    shift = None if bias is None else bias.expand(sizes)
    return functional.layer_norm(x, sizes, scale, shift, call.attr("epsilon", 1e-5))


def _rms_norm(call: Call) -> Tensor:
    """Return x / √(mean(x²) + ε) · scale over the axes from `axis` on."""
    x, axis = call[0], call.attr("axis", -1)
    axes = tuple(range(axis % x.dim(), x.dim()))
    mean = x.square().mean(axes, keepdim=True)
    return x * torch.rsqrt(mean + call.attr("epsilon", 1e-5)) * call[1]


def _instance_norm(call: Call) -> Tensor:
    """Return each map of each sample with mean 0 and variance 1, then scaled and shifted by channel."""
    x = call[0]
    axes, channels = tuple(range(2, x.dim())), (-1, *[1] * (x.dim() - 2))
    variance, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
    normal = (x - mean) * torch.rsqrt(variance + call.attr("epsilon", 1e-5))
    return normal * call[1].reshape(channels) + call[2].reshape(channels)


def _batch_norm(call: Call) -> Tensor:
    return functional.batch_norm(call[0], call[3], call[4], call[1], call[2], eps=call.attr("epsilon", 1e-5))


def _even_refuses(node: Node) -> str | None:
    """Return why torch has no window as ONNX's: of an even size, it has its extra channel before the middle."""
    return None if node.attr("size", 1) % 2 else "its window has an even number of channels"


def _training_refuses(node: Node) -> str | None:
    return "it computes statistics of its batch (training_mode)" if node.attr("training_mode", 0) else None


def _power(base: Tensor, exponent: Tensor) -> Tensor:
    return torch.pow(base, exponent).to(base.dtype)


_WINDOW_INPUTS = w.WINDOW | {"group"}
_NORM = frozenset({"axis", "epsilon", "stash_type"})
_AXIS = frozenset({"axis"})
_FIRST = frozenset({1})

FLOAT_ROWS: Mapping[str, FloatOp] = {
    "Conv": FloatOp(w.conv, _WINDOW_INPUTS, inputs=3),
    "ConvTranspose": FloatOp(w.conv_transpose, _WINDOW_INPUTS | {"output_padding", "output_shape"}, inputs=3),
    "Gemm": FloatOp(_gemm, frozenset({"alpha", "beta", "transA", "transB"}), inputs=3),
    "MatMul": _plain(torch.matmul, 2),
    "Add": _plain(torch.add, 2),
    "Sub": _plain(torch.sub, 2),
    "Mul": _plain(torch.mul, 2),
    "Div": _plain(_divided, 2),
    "Pow": _plain(_power, 2),
    "Neg": _plain(torch.neg),
    "Abs": _plain(torch.abs),
    "Sign": _plain(torch.sign),
    "Floor": _plain(torch.floor),
    "Ceil": _plain(torch.ceil),
    "Round": _plain(torch.round),
    "Sqrt": _plain(torch.sqrt),
    "Reciprocal": _plain(torch.reciprocal),
    "Exp": _plain(torch.exp),
    "Log": _plain(torch.log),
    "Erf": _plain(torch.erf),
    "Sin": _plain(torch.sin),
    "Cos": _plain(torch.cos),
    "Max": _folded(torch.maximum),
    "Min": _folded(torch.minimum),
    "Sum": _folded(torch.add),
    "Relu": _plain(torch.relu),
    "LeakyRelu": _with(functional.leaky_relu, alpha=0.01),
    "PRelu": _plain(lambda x, slope: torch.where(x < 0, slope * x, x), 2),
    "Clip": FloatOp(_clip, numbers=frozenset({1, 2}), inputs=3),
    "Sigmoid": _plain(torch.sigmoid),
    "HardSigmoid": _with(lambda x, a, b: torch.clamp(a * x + b, 0.0, 1.0), alpha=0.2, beta=0.5),
    "HardSwish": _plain(functional.hardswish),
    "Swish": _with(lambda x, a: x * torch.sigmoid(a * x), alpha=1.0),
    "Mish": _plain(functional.mish),
    "Tanh": _plain(torch.tanh),
    "Softplus": _plain(functional.softplus),
    "Softsign": _plain(functional.softsign),
    "Elu": _with(functional.elu, alpha=1.0),
    "Selu": _with(lambda x, a, g: g * functional.elu(x, a), alpha=1.6732632423543772, gamma=1.0507009873554805),
    "Celu": _with(functional.celu, alpha=1.0),
    "ThresholdedRelu": _with(lambda x, a: functional.threshold(x, a, 0.0), alpha=1.0),
    "Gelu": FloatOp(lambda c: functional.gelu(c[0], approximate=c.attr("approximate", "none")),
                    frozenset({"approximate"})),
    "Softmax": FloatOp(lambda c: torch.softmax(c[0], c.attr("axis", -1)), _AXIS),
    "LogSoftmax": FloatOp(lambda c: torch.log_softmax(c[0], c.attr("axis", -1)), _AXIS),
    "LayerNormalization": FloatOp(_layer_norm, _NORM, _stash_refuses, inputs=3),
    "RMSNormalization": FloatOp(_rms_norm, _NORM, _stash_refuses, inputs=2),
    "InstanceNormalization": FloatOp(_instance_norm, frozenset({"epsilon"}), inputs=3),
    "BatchNormalization": FloatOp(_batch_norm, frozenset({"epsilon", "momentum", "training_mode"}), _training_refuses,
                                  inputs=5),
    "LRN": FloatOp(lambda c: functional.local_response_norm(c[0], c.attr("size", 1), c.attr("alpha", 1e-4),
                                                            c.attr("beta", 0.75), c.attr("bias", 1.0)),
                   frozenset({"size", "alpha", "beta", "bias"}), _even_refuses),
    "LpNormalization": FloatOp(lambda c: _normalized(c[0], c.attr("p", 2), c.attr("axis", -1)),
                               frozenset({"axis", "p"})),
    "MaxPool": FloatOp(w.max_pool, w.WINDOW | {"ceil_mode", "storage_order"}, w.window_refuses),
    "AveragePool": FloatOp(w.average_pool, w.WINDOW | {"ceil_mode", "count_include_pad"}, w.average_refuses),
    "GlobalAveragePool": FloatOp(lambda c: c[0].mean(tuple(range(2, c[0].dim())), keepdim=True)),
    "GlobalMaxPool": FloatOp(lambda c: c[0].amax(tuple(range(2, c[0].dim())), keepdim=True)),
    "ReduceMean": _over_axes(torch.mean),
    "ReduceSum": _over_axes(torch.sum, listed=False),
    "ReduceMax": _over_axes(torch.amax),
    "ReduceMin": _over_axes(torch.amin),
    "ReduceL2": _over_axes(lambda x, axes, keep: torch.linalg.vector_norm(x, 2, axes, keep)),
    "Where": _plain(torch.where, 3),
    "Concat": FloatOp(m.concat, _AXIS, inputs=MANY),
    "Split": FloatOp(m.split, frozenset({"axis", "num_outputs"}), numbers=_FIRST, inputs=2, outputs=MANY),
    "Slice": FloatOp(m.slices, numbers=frozenset({1, 2, 3, 4}), inputs=5),
    "Gather": FloatOp(m.gather, _AXIS, inputs=2),
    "ScatterND": FloatOp(m.scatter, frozenset({"reduction"}), m.scatter_refuses, inputs=3),
    "ScatterElements": FloatOp(m.scatter_elements, frozenset({"axis", "reduction"}), m.scatter_refuses, inputs=3),
    "TensorScatter": FloatOp(m.tensor_scatter, frozenset({"axis", "mode"}), inputs=3),
    "Reshape": FloatOp(m.reshape, frozenset({"allowzero"}), numbers=_FIRST, inputs=2),
    "Flatten": FloatOp(m.flatten, _AXIS),
    "Squeeze": FloatOp(m.squeeze, numbers=_FIRST, inputs=2),
    "Unsqueeze": FloatOp(m.unsqueeze, numbers=_FIRST, inputs=2),
    "Transpose": FloatOp(m.transpose, frozenset({"perm"})),
    "Expand": FloatOp(m.expand, numbers=_FIRST, inputs=2),
    "Tile": FloatOp(m.tile, numbers=_FIRST, inputs=2),
    "Identity": _plain(lambda x: x),
    "Cast": FloatOp(m.cast, frozenset({"to", "saturate", "round_mode"}), m.cast_refuses),
    "Pad": FloatOp(m.pad, frozenset({"mode"}), m.pad_refuses, numbers=frozenset({1, 2, 3}), inputs=4),
    "Resize": FloatOp(w.resize, frozenset({"antialias", "axes", "coordinate_transformation_mode", "cubic_coeff_a",
                                           "exclude_outside", "extrapolation_value", "keep_aspect_ratio_policy",
                                           "mode", "nearest_mode"}),
                      w.resize_refuses, numbers=frozenset({2, 3}), inputs=4),
    "DepthToSpace": FloatOp(m.depth_to_space, frozenset({"blocksize", "mode"})),
    "SpaceToDepth": FloatOp(m.space_to_depth, frozenset({"blocksize"})),
    "Shape": FloatOp(m.shape, frozenset({"start", "end"})),
    "ConstantOfShape": FloatOp(m.constant_of_shape, frozenset({"value"}), numbers=frozenset({0})),
    "TopK": FloatOp(m.top, frozenset({"axis", "largest", "sorted"}), numbers=_FIRST, inputs=2, outputs=2),
    "Equal": _plain(torch.eq, 2),
    "Greater": _plain(torch.gt, 2),
    "GreaterOrEqual": _plain(torch.ge, 2),
    "Less": _plain(torch.lt, 2),
    "LessOrEqual": _plain(torch.le, 2),
    "Not": _plain(torch.logical_not),
    "And": _plain(torch.logical_and, 2),
    "Or": _plain(torch.logical_or, 2),
}  # fmt: skip
"""Op of ONNX's own domain -> its row."""
