"""The light topologies inside the onnx package (`onnx/backend/test/data/light`) with weights to be quantized.

The files hold well-known nets whose weights are one constant each, so that all channels compute the same. Here each
weight is drawn instead (He et al. 2015 for Conv and Gemm), by seed, and the last layer is scaled such that logits have
a standard deviation of 2. What is left is the topology: accuracy means nothing, the ranges are those of random nets.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper, version_converter

OPSET = 17
LOGITS_STD = 2.0


def folder() -> Path:
    return Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def light_model(name: str, target: Path) -> None:
    """Write `light_<name>.onnx` at opset 17 with drawn weights."""
    model = onnx.load(folder() / f"light_{name}.onnx")
    rng = np.random.default_rng(0)
    shapes = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    filled = [n for n in model.graph.node if n.op_type == "ConstantOfShape"]
    wanted = {n.output[0]: tuple(shapes[n.input[0]].tolist()) for n in filled}
    wanted |= {name: a.shape for name, a in shapes.items() if a.dtype == np.float32}
    roles = _roles(model.graph)
    drawn = {name: _drawn(roles[name], shape, rng) for name, shape in wanted.items() if name in roles}
    for node in filled:
        model.graph.node.remove(node)
    gone = {n.input[0] for n in filled} | set(drawn)
    kept = [i for i in model.graph.initializer if i.name not in gone]
    inputs = [i for i in model.graph.input if i.name not in shapes]
    del model.graph.initializer[:], model.graph.input[:]
    model.graph.input.extend(inputs)
    model.graph.initializer.extend(kept)
    model.graph.initializer.extend(numpy_helper.from_array(a, name) for name, a in drawn.items())
    model.ir_version = max(model.ir_version, 8)
    model = version_converter.convert_version(model, OPSET)
    _scale_logits(model, rng)
    onnx.save(model, target)


def _roles(graph: onnx.GraphProto) -> dict[str, tuple[str, int]]:
    """Constant -> (op, place among its inputs) of the node that it serves, through Unsqueeze and Reshape."""
    behind = {n.input[0]: n.output[0] for n in graph.node if n.op_type in ("Unsqueeze", "Reshape")}
    served = {name: (n.op_type, place) for n in graph.node for place, name in enumerate(n.input)}
    served |= {name: served[there] for name, there in behind.items() if there in served}
    legal = ("Conv", "Gemm", "BatchNormalization", "Mul", "Add")
    return {name: role for name, role in served.items() if role[0] in legal}


def _drawn(role: tuple[str, int], shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    op, place = role
    if op in ("Conv", "Gemm") and place == 1:
        fan = int(np.prod(shape[1:]))
        values = rng.standard_normal(shape) * np.sqrt(2 / fan)
    elif (op, place) == ("BatchNormalization", 4):
        values = np.ones(shape)
    elif (op, place) == ("BatchNormalization", 1) or op == "Mul":
        values = rng.uniform(0.5, 1.5, shape)
    else:  # biases and means
        values = rng.standard_normal(shape) * 0.1
    return values.astype(np.float32)


def _scale_logits(model: onnx.ModelProto, rng: np.random.Generator) -> None:
    """Scale the weights of the last Conv or Gemm."""
    last = [n for n in model.graph.node if n.op_type in ("Conv", "Gemm")][-1]
    softmax = [n for n in model.graph.node if n.op_type == "Softmax"]
    logits = softmax[-1].input[0] if softmax else model.graph.output[0].name
    seen = onnx.ModelProto()
    seen.CopyFrom(model)
    del seen.graph.output[:]
    seen.graph.output.append(onnx.helper.make_tensor_value_info(logits, onnx.TensorProto.FLOAT, None))
    session = ort.InferenceSession(seen.SerializeToString(), providers=["CPUExecutionProvider"])
    port = session.get_inputs()[0]
    (found,) = session.run(None, {port.name: rng.standard_normal(port.shape).astype(np.float32)})
    for weight in model.graph.initializer:
        if weight.name in last.input[1:]:
            scaled = numpy_helper.to_array(weight) * np.float32(LOGITS_STD / found.std())
            weight.CopyFrom(numpy_helper.from_array(scaled, weight.name))
