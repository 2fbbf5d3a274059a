"""Small nets, one per way an op can be used: `CASES[name]` writes it. A Conv stands in front where an op needs an
integer producer, and another reads it where its result would otherwise leave in float."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.ops.line import Net

Build = Callable[[Net], None]
CASES: dict[str, Build] = {}
ISLANDS = frozenset(
    {"softmax_island", "log_softmax_island", "norm_island", "erf_island", "gather_table", "two_float_heads"}
)
"""Cases in which integers are fed by float nodes again."""


def case(function: Build) -> Build:
    CASES[function.__name__] = function
    return function


def _front(net: Net, channels: int = 6, side: int = 8, **attrs: object) -> str:
    x = net.input(None, 3, side, side)
    return net.conv(x, 3, channels, 3, 3, pads=[1, 1, 1, 1], name="front", **attrs)


def _back(net: Net, x: str, channels: int = 6, side: int = 8) -> None:
    net.output(net.conv(x, channels, 5, 1, 1, name="back"))


def between(net: Net, op: str, *more: str, channels: int = 6, **attrs: object) -> None:
    """Conv, the op, Conv of `channels`."""
    _back(net, net.node(op, _front(net), *more, name="mid", **attrs), channels)


# --- Conv -----------------------------------------------------------------------------------------------------------


def _conv(name: str, into: int, out: int, kernel: tuple[int, ...], shape: tuple[int, ...], **attrs: object) -> None:
    def build(net: Net) -> None:
        net.output(net.conv(net.input(None, into, *shape), into, out, *kernel, **attrs))

    CASES[name] = build


_conv("conv_plain", 3, 7, (3, 3), (8, 8))
_conv("conv_no_bias", 3, 7, (3, 3), (8, 8), bias=False)
_conv("conv_same_pads", 3, 7, (3, 3), (8, 8), pads=[1, 1, 1, 1])
_conv("conv_asymmetric_pads", 3, 7, (3, 2), (8, 7), pads=[0, 1, 2, 0])
_conv("conv_strides", 3, 7, (3, 3), (9, 8), strides=[2, 3], pads=[1, 0, 1, 1])
_conv("conv_dilations", 3, 7, (3, 3), (10, 11), dilations=[2, 3])
_conv("conv_grouped", 6, 9, (3, 3), (7, 7), group=3, pads=[1, 1, 1, 1])
_conv("conv_depthwise", 6, 6, (3, 3), (7, 7), group=6, pads=[1, 1, 1, 1])
_conv("conv_depthwise_no_bias", 6, 12, (3, 3), (7, 7), group=6, bias=False)
_conv("conv_same_upper", 3, 7, (3, 3), (8, 8), auto_pad="SAME_UPPER", strides=[2, 2])
_conv("conv_same_lower", 3, 7, (2, 2), (8, 8), auto_pad="SAME_LOWER")
_conv("conv_valid", 3, 7, (3, 3), (8, 8), auto_pad="VALID")
_conv("conv_1d", 4, 5, (3,), (17,), pads=[1, 1], strides=[2])
_conv("conv_1d_depthwise", 4, 4, (5,), (17,), group=4, dilations=[2])
_conv("conv_3d", 2, 4, (2, 2, 3), (4, 5, 5), pads=[0, 1, 0, 0, 1, 0])


@case
def conv_chain(net: Net) -> None:
    x = net.conv(net.input(None, 3, 8, 8), 3, 8, 3, 3, pads=[1, 1, 1, 1], strides=[2, 2])
    x = net.node("Relu", x)
    x = net.conv(x, 8, 8, 3, 3, group=8, pads=[1, 1, 1, 1])
    x = net.node("Clip", x, net.constant(np.float32(0)), net.constant(np.float32(6)))
    net.output(net.conv(x, 8, 4, 1, 1))


# --- Gemm, MatMul ---------------------------------------------------------------------------------------------------


def _gemm(name: str, **how: int | bool) -> None:
    def build(net: Net) -> None:
        x = net.dense(net.input(None, 24), 24, 10, **how)  # type: ignore[arg-type]
        net.output(net.dense(net.node("Relu", x), 10, 7, **how))  # type: ignore[arg-type]

    CASES[name] = build


_gemm("gemm_trans", trans=1)
_gemm("gemm_plain", trans=0)
_gemm("gemm_trans_no_bias", trans=1, bias=False)
_gemm("gemm_plain_no_bias", trans=0, bias=False)


@case
def gemm_row_bias(net: Net) -> None:
    """A bias of shape [1, N]."""
    x = net.node("Gemm", net.input(None, 12), net.floats(12, 9, scale=0.3), net.floats(1, 9), name="dense")
    net.output(net.dense(x, 9, 4))


@case
def matmul_matrix(net: Net) -> None:
    x = net.node("MatMul", net.input(None, 24), net.floats(24, 10, scale=0.2), name="first")
    net.output(net.node("MatMul", x, net.floats(10, 7, scale=0.3), name="second"))


@case
def matmul_rank3(net: Net) -> None:
    x = net.node("MatMul", net.input(None, 5, 16), net.floats(16, 10, scale=0.2), name="first")
    net.output(net.node("MatMul", x, net.floats(10, 7, scale=0.3), name="second"))


@case
def matmul_rank4(net: Net) -> None:
    x = net.node("MatMul", _front(net), net.floats(8, 5, scale=0.3), name="dense")
    net.output(net.conv(x, 6, 4, 3, 3))


@case
def matmul_add(net: Net) -> None:
    """Rank 2: becomes Gemm. The bias of the second one is on the left."""
    x = net.node("MatMul", net.input(None, 24), net.floats(24, 10, scale=0.2), name="first")
    x = net.node("Relu", net.node("Add", x, net.floats(10)))
    x = net.node("MatMul", x, net.floats(10, 7, scale=0.3), name="second")
    net.output(net.node("Add", net.floats(7), x))


@case
def matmul_rank3_add(net: Net) -> None:
    x = net.node("MatMul", net.input(None, 5, 16), net.floats(16, 10, scale=0.2), name="first")
    x = net.node("Add", x, net.floats(10))
    net.output(net.node("MatMul", x, net.floats(10, 7, scale=0.3), name="second"))


# --- Add, Mul -------------------------------------------------------------------------------------------------------


@case
def add_activations(net: Net) -> None:
    x = net.input(None, 3, 8, 8)
    a, b = net.conv(x, 3, 6, 3, 3), net.conv(x, 3, 6, 3, 3, bias=False)
    _back(net, net.node("Add", a, b, name="mid"))


@case
def add_activations_out(net: Net) -> None:
    """The sum is a graph output and is read by two convolutions."""
    x = net.input(None, 3, 8, 8)
    a, b = net.conv(x, 3, 6, 3, 3), net.conv(x, 3, 6, 3, 3)
    c = net.node("Add", a, b, name="mid")
    net.output(c, net.conv(c, 6, 5, 1, 1), net.conv(c, 6, 2, 3, 3))


@case
def add_same_twice(net: Net) -> None:
    front = _front(net)
    _back(net, net.node("Add", front, front, name="mid"))


@case
def add_broadcast_activation(net: Net) -> None:
    """A map and one value per channel, the smaller operand first."""
    front = _front(net)
    pooled = net.node("GlobalAveragePool", front)
    _back(net, net.node("Add", pooled, front, name="mid"))


@case
def add_input(net: Net) -> None:
    """One operand is the model's own input."""
    x = net.input(None, 3, 8, 8)
    a = net.conv(x, 3, 3, 3, 3, pads=[1, 1, 1, 1])
    _back(net, net.node("Add", x, a, name="mid"), 3)


def _constant_operand(op: str, name: str, shape: tuple[int, ...], first: bool = False) -> None:
    def build(net: Net) -> None:
        front = _front(net)
        net.output(front)  # else the clean-up would fold the constant into the convolution
        operands = (net.floats(*shape), front) if first else (front, net.floats(*shape))
        _back(net, net.node(op, *operands, name="mid"))

    CASES[f"{op.lower()}_{name}"] = build


for _op in ("Add", "Mul"):
    _constant_operand(_op, "scalar", ())
    _constant_operand(_op, "channel", (6, 1, 1))
    _constant_operand(_op, "full", (1, 6, 8, 8))
    _constant_operand(_op, "channel_first", (1, 6, 1, 1), first=True)


@case
def mul_activations(net: Net) -> None:
    x = net.input(None, 3, 8, 8)
    a, b = net.conv(x, 3, 6, 3, 3), net.conv(x, 3, 6, 3, 3)
    _back(net, net.node("Mul", a, b, name="mid"))


@case
def mul_gate(net: Net) -> None:
    """Squeeze and excite, with Clip for its gate."""
    front = _front(net)
    gate = net.conv(net.node("GlobalAveragePool", front), 6, 6, 1, 1)
    gate = net.node("Clip", gate, net.constant(np.float32(0)), net.constant(np.float32(1)))
    _back(net, net.node("Mul", front, gate, name="mid"))


@case
def mul_square(net: Net) -> None:
    front = _front(net)
    _back(net, net.node("Mul", front, front, name="mid"))


@case
def residual_block(net: Net) -> None:
    front = net.node("Relu", _front(net))
    arm = net.node("Relu", net.conv(front, 6, 6, 3, 3, pads=[1, 1, 1, 1]))
    arm = net.conv(arm, 6, 6, 3, 3, pads=[1, 1, 1, 1], name="last")
    joined = net.node("Relu", net.node("Add", arm, front, name="join"))
    _back(net, joined)


@case
def residual_projection(net: Net) -> None:
    """Both arms end in a convolution: only the later one may hand on its accumulator."""
    front = net.node("Relu", _front(net))
    arm = net.conv(front, 6, 8, 3, 3, pads=[1, 1, 1, 1], strides=[2, 2], name="arm")
    short = net.conv(front, 6, 8, 1, 1, strides=[2, 2], name="short")
    joined = net.node("Relu", net.node("Add", short, arm, name="join"))
    again = net.node("Add", net.conv(joined, 8, 8, 3, 3, pads=[1, 1, 1, 1]), joined, name="again")
    _back(net, again, 8, 4)


# --- pools ----------------------------------------------------------------------------------------------------------


@case
def max_pool(net: Net) -> None:
    between(net, "MaxPool", kernel_shape=[2, 2], strides=[2, 2])


@case
def max_pool_pads(net: Net) -> None:
    between(net, "MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])


@case
def max_pool_asymmetric_pads(net: Net) -> None:
    between(net, "MaxPool", kernel_shape=[3, 2], strides=[1, 2], pads=[0, 1, 2, 0])


@case
def max_pool_ceil(net: Net) -> None:
    between(net, "MaxPool", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)


@case
def max_pool_same(net: Net) -> None:
    between(net, "MaxPool", kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER")


@case
def max_pool_dilations(net: Net) -> None:
    between(net, "MaxPool", kernel_shape=[2, 2], dilations=[2, 2])


@case
def max_pool_1d(net: Net) -> None:
    x = net.conv(net.input(None, 3, 20), 3, 6, 3)
    net.output(net.conv(net.node("MaxPool", x, kernel_shape=[2], strides=[2], name="mid"), 6, 4, 3))


@case
def global_max_pool(net: Net) -> None:
    between(net, "GlobalMaxPool")


@case
def average_pool(net: Net) -> None:
    between(net, "AveragePool", kernel_shape=[2, 2], strides=[2, 2])


@case
def average_pool_odd(net: Net) -> None:
    """A window of nine: no power of two."""
    between(net, "AveragePool", kernel_shape=[3, 3], strides=[1, 2])


@case
def average_pool_pads_counted(net: Net) -> None:
    between(net, "AveragePool", kernel_shape=[4, 2], strides=[2, 2], pads=[1, 0, 2, 1], count_include_pad=1)


@case
def average_pool_pads_not_counted(net: Net) -> None:
    between(net, "AveragePool", kernel_shape=[2, 2], pads=[1, 1, 1, 1])


@case
def average_pool_ceil(net: Net) -> None:
    between(net, "AveragePool", kernel_shape=[2, 2], strides=[3, 3], ceil_mode=1)


@case
def average_pool_same(net: Net) -> None:
    between(net, "AveragePool", kernel_shape=[2, 2], auto_pad="SAME_UPPER")


@case
def average_pool_1d(net: Net) -> None:
    x = net.conv(net.input(None, 3, 20), 3, 6, 3)
    net.output(net.conv(net.node("AveragePool", x, kernel_shape=[4], strides=[2], name="mid"), 6, 4, 3))


@case
def average_pool_whole_map(net: Net) -> None:
    between(net, "AveragePool", kernel_shape=[8, 8])


@case
def global_average_pool(net: Net) -> None:
    between(net, "GlobalAveragePool")


@case
def global_average_pool_odd(net: Net) -> None:
    front = net.conv(net.input(None, 3, 9, 7), 3, 6, 3, 3)
    _back(net, net.node("GlobalAveragePool", front, name="mid"))


@case
def global_average_pool_1d(net: Net) -> None:
    x = net.conv(net.input(None, 3, 18), 3, 6, 3)
    net.output(net.conv(net.node("GlobalAveragePool", x, name="mid"), 6, 4, 1))


@case
def global_average_pool_clamped(net: Net) -> None:
    between(net, "GlobalAveragePool")
    # the classifier end of a net
    net._outputs.clear()
    x = net.node("Flatten", net.node("Relu", net.node("GlobalAveragePool", "front_out")))
    net.output(net.dense(x, 6, 4))


# --- data movement --------------------------------------------------------------------------------------------------


@case
def concat_two(net: Net) -> None:
    x = net.input(None, 3, 8, 8)
    a, b = net.conv(x, 3, 4, 3, 3), net.conv(x, 3, 2, 3, 3)
    scaled = net.node("Mul", b, net.constant(np.float32(0.125)))
    _back(net, net.node("Concat", a, scaled, axis=1, name="mid"))


@case
def concat_three(net: Net) -> None:
    x = net.input(None, 3, 8, 8)
    a, b = net.conv(x, 3, 4, 3, 3, pads=[1, 1, 1, 1]), net.node("Relu", net.conv(x, 3, 2, 1, 1))
    _back(net, net.node("Concat", a, x, b, axis=1, name="mid"), 9)


@case
def concat_twice(net: Net) -> None:
    """Dense connections: a tensor that is concatenated, read, and concatenated again."""
    front = _front(net)
    a = net.conv(front, 6, 4, 3, 3, pads=[1, 1, 1, 1])
    joined = net.node("Concat", front, a, axis=1)
    b = net.conv(joined, 10, 4, 3, 3, pads=[1, 1, 1, 1])
    _back(net, net.node("Concat", joined, b, axis=1), 14)


@case
def concat_constant(net: Net) -> None:
    _back(net, net.node("Concat", _front(net), net.floats(1, 2, 8, 8), axis=1, name="mid"), 8)
    # the constant has batch 1, so the samples must come one by one
    net.fix_batch(1)


@case
def concat_spatial(net: Net) -> None:
    front = _front(net)
    pooled = net.node("MaxPool", front, kernel_shape=[2, 2], strides=[2, 1])
    other = net.conv(front, 6, 6, 2, 2, strides=[2, 1])
    _back(net, net.node("Concat", pooled, other, axis=2, name="mid"))


def _pad(mode: str, amounts: list[int], value: float | None = None) -> Build:
    def build(net: Net) -> None:
        more = [net.constant(np.asarray(amounts, np.int64))]
        if value is not None:
            more.append(net.constant(np.float32(value)))
        between(net, "Pad", *more, mode=mode)

    return build


CASES["pad_constant"] = _pad("constant", [0, 0, 1, 2, 0, 0, 3, 0], 0.0)
CASES["pad_constant_default"] = _pad("constant", [0, 0, 1, 2, 0, 0, 3, 0])
CASES["pad_value"] = _pad("constant", [0, 0, 1, 2, 0, 0, 3, 0], 0.5)
CASES["pad_reflect"] = _pad("reflect", [0, 0, 1, 2, 0, 0, 3, 0])
CASES["pad_edge"] = _pad("edge", [0, 0, 1, 2, 0, 0, 3, 0])


@case
def slice_maps(net: Net) -> None:
    parts = (np.array([1, 0]), np.array([7, 6]), np.array([2, 3]), np.array([2, 1]))
    between(net, "Slice", *(net.constant(p.astype(np.int64)) for p in parts))


@case
def transpose(net: Net) -> None:
    moved = net.node("Transpose", _front(net), perm=[0, 2, 1, 3], name="mid")
    net.output(net.conv(moved, 8, 4, 3, 3))


@case
def reshape(net: Net) -> None:
    between(net, "Reshape", net.constant(np.array([0, 12, 4, 8], np.int64)), channels=12)


@case
def flatten(net: Net) -> None:
    net.output(net.dense(net.node("Flatten", _front(net), name="mid"), 384, 5))


@case
def squeeze_unsqueeze(net: Net) -> None:
    pooled = net.conv(_front(net), 6, 6, 8, 8)
    squeezed = net.node("Squeeze", pooled, net.constant(np.array([3], np.int64)), name="squeeze")
    x = net.conv(squeezed, 6, 5, 1)
    x = net.node("Unsqueeze", x, net.constant(np.array([3], np.int64)), name="unsqueeze")
    net.output(net.conv(x, 5, 4, 1, 1))


@case
def gather(net: Net) -> None:
    between(net, "Gather", net.constant(np.array([5, 0, 0, 3], np.int64)), axis=1, channels=4)


@case
def gather_table(net: Net) -> None:
    """A lookup in a constant table stays in float; its result is quantized for the dense layer behind."""
    x = net.input(None, 6)
    rows = net.node(
        "Cast", net.node("Abs", net.node("Clip", x, net.constant(np.float32(-3)), net.constant(np.float32(3)))), to=7
    )
    table = net.node("Gather", net.floats(8, 4, name="table"), rows, axis=0, name="mid")
    net.output(net.dense(net.node("Flatten", table), 24, 5))


@case
def depth_to_space(net: Net) -> None:
    front = net.conv(net.input(None, 3, 8, 8), 3, 8, 3, 3)
    net.output(net.conv(net.node("DepthToSpace", front, blocksize=2, mode="CRD", name="mid"), 2, 4, 3, 3))


@case
def space_to_depth(net: Net) -> None:
    between(net, "SpaceToDepth", blocksize=2, channels=24)


@case
def identity(net: Net) -> None:
    """Kept where it names a second output (elsewhere the clean-up drops it)."""
    front = _front(net)
    mid = net.node("Identity", front, name="mid")
    net.output(front, mid, net.conv(mid, 6, 3, 1, 1))


# --- clamps ---------------------------------------------------------------------------------------------------------


@case
def relu_swallowed(net: Net) -> None:
    between(net, "Relu")


@case
def relu_standalone(net: Net) -> None:
    """The convolution is read twice, so it cannot swallow the clamp."""
    front = _front(net)
    net.output(net.conv(net.node("Relu", front, name="mid"), 6, 4, 3, 3), net.conv(front, 6, 3, 1, 1))


@case
def relu_behind_pool(net: Net) -> None:
    pooled = net.node("MaxPool", _front(net), kernel_shape=[2, 2])
    _back(net, net.node("Relu", pooled, name="mid"))


def _clip(low: float | None, high: float | None, standalone: bool = False) -> Build:
    def build(net: Net) -> None:
        bounds = ["" if b is None else net.constant(np.float32(b)) for b in (low, high)]
        front = _front(net)
        if standalone:
            net.output(net.conv(front, 6, 3, 1, 1))
        _back(net, net.node("Clip", front, *bounds, name="mid"))

    return build


CASES["clip_relu6"] = _clip(0.0, 6.0)
CASES["clip_small"] = _clip(0.0, 0.7)
CASES["clip_both"] = _clip(-1.0, 1.0)
CASES["clip_below"] = _clip(None, 0.9)
CASES["clip_above"] = _clip(0.4, None)
CASES["clip_standalone"] = _clip(-0.5, 1.0, standalone=True)
CASES["clip_standalone_positive"] = _clip(0.25, 1.5, standalone=True)


@case
def clamps_in_a_row(net: Net) -> None:
    x = net.node("Relu", _front(net))
    _back(net, net.node("Clip", x, "", net.constant(np.float32(1.0)), name="mid"))


@case
def clamp_is_output(net: Net) -> None:
    net.output(net.node("Relu", _front(net)))


# --- graphs ---------------------------------------------------------------------------------------------------------


@case
def intermediate_output(net: Net) -> None:
    front = _front(net)
    relu = net.node("Relu", front, name="mid")
    net.output(front, relu, net.conv(relu, 6, 4, 3, 3), net.node("MaxPool", front, kernel_shape=[2, 2]))


@case
def two_inputs(net: Net) -> None:
    a, b = net.input(None, 3, 6, 6, name="a"), net.input(None, 2, 6, 6, name="b")
    joined = net.node("Add", net.conv(a, 3, 6, 3, 3), net.conv(b, 2, 6, 3, 3), name="mid")
    _back(net, joined)


@case
def softmax_island(net: Net) -> None:
    _back(net, net.node("Softmax", _front(net), axis=1, name="mid"))


@case
def log_softmax_island(net: Net) -> None:
    _back(net, net.node("LogSoftmax", _front(net), axis=1, name="mid"))


@case
def norm_island(net: Net) -> None:
    _back(net, net.node("LpNormalization", _front(net), axis=1, p=2, name="mid"))


@case
def erf_island(net: Net) -> None:
    """Almost a Gelu, written out, with its integer input read by both sides."""
    front = _front(net)
    e = net.node("Erf", net.node("Mul", front, net.constant(np.float32(0.70710677))), name="mid")
    half = net.node("Mul", front, net.node("Add", e, net.constant(np.float32(1.0))))
    _back(net, net.node("Mul", half, net.constant(np.float32(0.625))))


@case
def two_float_heads(net: Net) -> None:
    """A float node in the middle whose result both leaves the graph and is read by integer nodes."""
    front = _front(net)
    t = net.node("Erf", front, name="mid")
    net.output(t, net.conv(t, 6, 4, 3, 3), net.conv(t, 6, 2, 1, 1))


@case
def tied_weights(net: Net) -> None:
    x = net.input(None, 6, 6, 6)
    shared = net.floats(6, 6, 3, 3, scale=0.2, name="shared")
    a = net.node("Conv", x, shared, kernel_shape=[3, 3], pads=[1, 1, 1, 1], name="first")
    b = net.node("Conv", net.node("Relu", a), shared, net.floats(6), kernel_shape=[3, 3], name="second")
    net.output(net.conv(b, 6, 3, 1, 1))


@case
def wide_sums(net: Net) -> None:
    """Sums beyond 2^24: the simulated graph cannot stay in float32."""
    x = net.node("Gemm", net.input(None, 2600), net.signs(6, 2600, scale=0.02), net.floats(6), transB=1, name="wide")
    x = net.node("Relu", x)
    net.output(net.dense(x, 6, 4))
