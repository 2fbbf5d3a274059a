"""Softmax between Q and DQ, as onnxruntime approximates it and as it computes it in real numbers."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from quantpipe.intake.quantized import with_real_softmax

STEP, ZERO, OUT = np.float32(0.08), 128, np.float32(1 / 255)


def file(between: bool = True, domain: str = "") -> ir.Model:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], domain=domain),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["real"], domain=domain),
        helper.make_node("Softmax", ["real" if between else "x"], ["rows"], axis=-1),
        helper.make_node("QuantizeLinear", ["rows", "t", "u"], ["y"], domain=domain),
    ]
    held = {"s": STEP, "z": np.uint8(ZERO), "t": OUT, "u": np.uint8(0)}
    constants = [numpy_helper.from_array(np.asarray(v), n) for n, v in held.items()]
    ports = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 16])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.UINT8, ["N", 16])]
    graph = helper.make_graph(nodes, "net", ports, outputs, constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return ir.from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=8))


def run(model: ir.Model, x: np.ndarray) -> np.ndarray:
    proto = ir.to_proto(model)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


@pytest.mark.parametrize("domain", ["", "com.microsoft"])
def test_a_softmax_between_integers_is_computed_in_real_numbers(domain: str) -> None:
    """Beside float64: the runtime's own way differs somewhere, the model's with a Max in front nowhere."""
    x = np.random.default_rng(0).standard_normal((200, 16)).astype(np.float32) * 3
    real = (np.clip(np.rint(x / STEP) + ZERO, 0, 255) - ZERO) * np.float64(STEP)
    exact = np.exp(real - real.max(axis=-1, keepdims=True))
    wanted = np.clip(np.rint(exact / exact.sum(axis=-1, keepdims=True) / np.float64(OUT)), 0, 255)
    made = with_real_softmax(file(domain=domain))
    assert made is not None and np.array_equal(run(made, x), wanted)
    assert not np.array_equal(run(file(domain=domain), x), wanted), (
        "onnxruntime approximates no more: the module may go"
    )


def test_other_models_stay() -> None:
    assert with_real_softmax(file(between=False)) is None
