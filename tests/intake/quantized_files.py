"""Small quantized files of each kind, written after the documents of the tools that make such files.

The net is always the same: a convolution, a Relu, a dense layer on the flattened result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
MS = "com.microsoft"
QONNX = "qonnx.custom_op.general"

RNG = np.random.default_rng(5)
CONV = RNG.integers(-127, 128, (4, 2, 3, 3)).astype(np.int8)
DENSE = RNG.integers(-127, 128, (3, 64)).astype(np.int8)
CONV_SCALE = np.asarray([0.01, 0.004, 0.02, 0.008], np.float32)
DENSE_SCALE = np.float32(0.004)
GRIDS = {"x": (0.031, 131), "hidden": (0.07, 0), "y": (0.25, 120)}
"""Tensor -> scale and zero point, uint8."""
BIAS = np.asarray([120, -300, 44, 7], np.int32)


class File:
    """A file in the making."""

    def __init__(self, opset: int = 21) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}
        self.opset = opset

    def const(self, name: str, value: Any, kind: Any = None) -> str:
        self.constants[name] = np.asarray(value, kind)
        return name

    def node(self, op: str, *inputs: str, out: str, domain: str = "", **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, list(inputs), [out], name=f"{out}/{op}", domain=domain, **attributes))
        return out

    def grid(self, name: str, scale: Any, zero: Any, kind: Any = np.uint8) -> tuple[str, str]:
        return self.const(f"{name}_scale", scale, np.float32), self.const(f"{name}_zero", zero, kind)

    def model(
        self, input_type: int = TensorProto.FLOAT, output_type: int = TensorProto.FLOAT, inner: tuple[str, ...] = ()
    ) -> onnx.ModelProto:
        ports = [helper.make_tensor_value_info("x", input_type, ["N", 2, 6, 6])]
        outputs = [helper.make_tensor_value_info("y", output_type, ["N", 3])]
        constants = [numpy_helper.from_array(a, n) for n, a in self.constants.items()]
        graph = helper.make_graph(self.nodes, "net", ports, outputs, constants)
        domains = {n.domain for n in self.nodes if n.domain}
        opsets = [helper.make_opsetid("", self.opset), *(helper.make_opsetid(d, 1) for d in sorted(domains))]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def qdq(*, kind: Any = np.uint8, relu: bool = True, transposed: bool = False) -> onnx.ModelProto:
    """As onnxruntime, NNCF, AIMET and torch write it; `kind` int8 moves every zero point by 128."""
    f, move = File(), 0 if kind is np.uint8 else -128
    for name, (scale, zero) in GRIDS.items():
        f.grid(name, scale, zero + move, kind)
    _pair(f, "x", "x", "x_dq")
    f.const("conv_q", CONV)
    f.grid("conv", CONV_SCALE, np.zeros(4), np.int8)
    f.node("DequantizeLinear", "conv_q", "conv_scale", "conv_zero", out="conv_w", axis=0)
    f.const("bias_q", BIAS)
    f.const("bias_scale", CONV_SCALE * np.float32(GRIDS["x"][0]))
    f.node("DequantizeLinear", "bias_q", "bias_scale", out="bias", axis=0)
    f.node("Conv", "x_dq", "conv_w", "bias", out="conv_out" if relu else "hidden", pads=[0, 0, 0, 0])
    if relu:
        f.node("Relu", "conv_out", out="hidden")
    _pair(f, "hidden", "hidden", "hidden_dq")
    _tail(f, "hidden_dq", transposed=transposed)
    _pair(f, "logits", "y", "y")
    return f.model()


def _pair(f: File, tensor: str, grid: str, out: str) -> None:
    f.node("QuantizeLinear", tensor, f"{grid}_scale", f"{grid}_zero", out=f"{tensor}_QuantizeLinear_Output")
    f.node("DequantizeLinear", f"{tensor}_QuantizeLinear_Output", f"{grid}_scale", f"{grid}_zero", out=out)


def _tail(f: File, x: str, transposed: bool = False) -> None:
    f.node("Flatten", x, out="flat")
    f.const("dense_q", DENSE if not transposed else DENSE.T.copy())
    f.grid("dense", DENSE_SCALE, 0, np.int8)
    f.node("DequantizeLinear", "dense_q", "dense_scale", "dense_zero", out="dense_w")
    weight = f.node("Transpose", "dense_w", out="dense_t", perm=[1, 0]) if transposed else "dense_w"
    f.node("Gemm", "flat", weight, out="logits", transB=1)


def qoperator() -> onnx.ModelProto:
    """As onnxruntime's static quantizer writes QOperator: the Relu is gone, the zero point does its work."""
    f = File()
    for name, (scale, zero) in GRIDS.items():
        f.grid(name, scale, zero)
    f.node("QuantizeLinear", "x", "x_scale", "x_zero", out="x_quantized")
    f.const("conv_q", CONV)
    f.grid("conv", CONV_SCALE, np.zeros(4), np.int8)
    f.const("bias_q", BIAS)
    f.node("QLinearConv", "x_quantized", "x_scale", "x_zero", "conv_q", "conv_scale", "conv_zero", "hidden_scale",
           "hidden_zero", "bias_q", out="hidden_quantized")  # fmt: skip
    f.node("Flatten", "hidden_quantized", out="flat_quantized")
    f.const("dense_q", DENSE)
    f.grid("dense", DENSE_SCALE, 0, np.int8)
    f.node("QGemm", "flat_quantized", "hidden_scale", "hidden_zero", "dense_q", "dense_scale", "dense_zero", "",
           "y_scale", "y_zero", out="y_quantized", domain=MS, transB=1)  # fmt: skip
    f.node("DequantizeLinear", "y_quantized", "y_scale", "y_zero", out="y")
    return f.model()


def integer_ends() -> onnx.ModelProto:
    """As TFLite models come out of a converter: integers go in and come out."""
    model = qdq(kind=np.int8)
    graph = model.graph
    kept = [n for n in graph.node if n.output[0] not in ("x_QuantizeLinear_Output", "y")]
    for node in kept:
        node.input[:] = ["x" if name == "x_QuantizeLinear_Output" else name for name in node.input]
        node.output[:] = ["y" if name == "logits_QuantizeLinear_Output" else name for name in node.output]
    del graph.node[:]
    graph.node.extend(kept)
    graph.input[0].type.tensor_type.elem_type = TensorProto.INT8
    graph.output[0].type.tensor_type.elem_type = TensorProto.INT8
    return model


def dynamic(order: str = "joined") -> onnx.ModelProto:
    """As onnxruntime's dynamic quantizer writes it, or with the factors one after the other."""
    f = File()
    f.nodes.append(helper.make_node("DynamicQuantizeLinear", ["x"], ["x_q", "x_s", "x_z"], name="range"))
    f.const("conv_q", CONV)
    f.grid("conv", np.float32(0.01), 0, np.int8)
    f.node("ConvInteger", "x_q", "conv_q", "x_z", "conv_zero", out="sum")
    f.node("Cast", "sum", out="sum_float", to=TensorProto.FLOAT)
    _scaled(f, "sum_float", "x_s", "conv_scale", "conv_out", order)
    f.node("Relu", "conv_out", out="hidden")
    f.node("Flatten", "hidden", out="flat")
    f.nodes.append(helper.make_node("DynamicQuantizeLinear", ["flat"], ["h_q", "h_s", "h_z"], name="range2"))
    f.const("dense_q", DENSE.T.copy())
    f.grid("dense", np.asarray([0.004, 0.01, 0.002], np.float32), np.zeros(3), np.int8)
    f.node("MatMulInteger", "h_q", "dense_q", "h_z", "dense_zero", out="sum2")
    f.node("Cast", "sum2", out="sum2_float", to=TensorProto.FLOAT)
    _scaled(f, "sum2_float", "h_s", "dense_scale", "y", order)
    return f.model()


def dynamic_bias() -> onnx.ModelProto:
    """As onnx.quantize wrote it: the bias is divided by the scale of each sample, and added to the sum as integers."""
    model = dynamic()
    nodes = list(model.graph.node)
    scales = next(n for n in nodes if n.output[0] == "conv_out_scales")
    nodes.remove(scales)
    steps = [
        ("Div", ["conv_bias", "conv_out_scales"], "bias_real"), ("Floor", ["bias_real"], "bias_floor"),
        ("Cast", ["bias_floor"], "bias_whole"), ("Reshape", ["bias_whole", "bias_shape"], "bias_column"),
        ("Add", ["sum", "bias_column"], "sum_bias"),
    ]  # fmt: skip
    made = [helper.make_node(op, inputs, [out], name=out) for op, inputs, out in steps]
    made[2].attribute.append(helper.make_attribute("to", TensorProto.INT32))
    cast = next(n for n in nodes if n.output[0] == "sum_float")
    cast.input[0] = "sum_bias"
    place = nodes.index(cast)
    del model.graph.node[:]
    model.graph.node.extend([*nodes[:place], scales, *made, *nodes[place:]])
    product = next(n for n in model.graph.node if n.output[0] == "conv_out")
    product.input[:] = ["sum_float", "conv_out_scales"]
    constants = {"conv_bias": np.asarray([0.5, -1.0, 2.0, 0.25], np.float32), "bias_shape": np.asarray([1, -1, 1, 1])}
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in constants.items())
    return model


def _scaled(f: File, value: str, data: str, weight: str, out: str, order: str) -> None:
    if order == "joined":
        f.node("Mul", data, weight, out=f"{out}_scales")
        f.node("Mul", value, f"{out}_scales", out=out)
    else:
        f.node("Mul", value, weight, out=f"{out}_half")
        f.node("Mul", data, f"{out}_half", out=out)


def packed(bits: int = 4, block: int = 16) -> onnx.ModelProto:
    """A dense layer as onnxruntime's MatMulNBits: 4-bit weights in blocks, a zero point of each."""
    f, depth, outs = File(), 72, 3
    f.node("Flatten", "x", out="flat")
    blocks = -(-depth // block)
    f.const("w", RNG.integers(0, 256, (outs, blocks, block * bits // 8)), np.uint8)
    f.const("scales", RNG.uniform(0.01, 0.05, outs * blocks), np.float32)
    f.const("zeros", RNG.integers(0, 256, outs * -(-blocks * bits // 8)), np.uint8)
    f.node("MatMulNBits", "flat", "w", "scales", "zeros", out="y", domain=MS, K=depth, N=outs, bits=bits,
           block_size=block)  # fmt: skip
    return f.model()


def qcdq(bits: int = 4) -> onnx.ModelProto:
    """As Brevitas writes QCDQ: a Clip between Q and DQ has the bits."""
    f, top = File(), (1 << bits) - 1
    f.grid("x", 0.3, 0, np.int8)
    half = 1 << (bits - 1)
    limits = f.const("x_least", -half + 1, np.int8), f.const("x_most", half - 1, np.int8)
    f.node("QuantizeLinear", "x", "x_scale", "x_zero", out="x_q")
    f.node("Clip", "x_q", *limits, out="x_clip")
    f.node("DequantizeLinear", "x_clip", "x_scale", "x_zero", out="x_dq")
    f.const("conv_q", np.clip(CONV, -half + 1, half - 1))
    f.grid("conv", CONV_SCALE, np.zeros(4), np.int8)
    f.const("w_least", -half + 1, np.int8), f.const("w_most", half - 1, np.int8)
    f.node("Clip", "conv_q", "w_least", "w_most", out="conv_c")
    f.node("DequantizeLinear", "conv_c", "conv_scale", "conv_zero", out="conv_w", axis=0)
    f.node("Conv", "x_dq", "conv_w", out="conv_out")
    f.node("Relu", "conv_out", out="hidden")
    f.grid("hidden", 0.05, 0)
    f.node("QuantizeLinear", "hidden", "hidden_scale", "hidden_zero", out="hidden_q")
    f.node("Clip", "hidden_q", f.const("h_least", 0, np.uint8), f.const("h_most", top, np.uint8), out="hidden_c")
    f.node("DequantizeLinear", "hidden_c", "hidden_scale", "hidden_zero", out="hidden_dq")
    f.grid("y", 0.02, 120)
    _tail(f, "hidden_dq")
    _pair(f, "logits", "y", "y")
    return f.model()


def qonnx(bits: int = 4, **changes: Any) -> onnx.ModelProto:
    """The same in QONNX's own nodes, with real weights."""
    f = File(opset=17)
    half = 1 << (bits - 1)

    def quant(x: str, scale: Any, out: str, signed: int, zero: float = 0.0) -> str:
        names = [
            f.const(f"{out}_{k}", v, np.float32)
            for k, v in (("s", scale), ("z", zero), ("b", changes.get("bits", bits)))
        ]
        how = {"rounding_mode": changes.get("rounding", "ROUND"), "signed": signed, "narrow": signed}
        return f.node(changes.get("op", "Quant"), x, *names, out=out, domain=QONNX, **how)

    quant("x", 0.3, "x_dq", 1)
    f.const("conv_real", np.clip(CONV, -half + 1, half - 1) * CONV_SCALE[:, None, None, None], np.float32)
    quant("conv_real", CONV_SCALE[:, None, None, None], "conv_w", 1)
    f.node("Conv", "x_dq", "conv_w", out="conv_out")
    f.node("Relu", "conv_out", out="hidden")
    quant("hidden", 0.05, "hidden_dq", 0, changes.get("zero", 0.0))
    f.grid("y", 0.02, 120)
    _tail(f, "hidden_dq")
    _pair(f, "logits", "y", "y")
    return f.model()


FILES: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "qdq": qdq,
    "qdq_int8": lambda: qdq(kind=np.int8),
    "qdq_without_relu": lambda: qdq(relu=False),
    "qdq_transposed": lambda: qdq(transposed=True),
    "qoperator": qoperator,
    "integer_ends": integer_ends,
    "dynamic": dynamic,
    "dynamic_apart": lambda: dynamic("apart"),
    "dynamic_bias": dynamic_bias,
    "packed": packed,
    "packed_8": lambda: packed(8),
    "packed_channel": lambda: packed(block=128),
    "qcdq": qcdq,
    "qonnx": qonnx,
}
