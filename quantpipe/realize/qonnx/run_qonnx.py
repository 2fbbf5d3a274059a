"""Run a QONNX file by the package `qonnx`, node by node, and recover the integers of its real values."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from quantpipe import intmath
from quantpipe.arrays import Array
from quantpipe.errors import HardwareError, brief
from quantpipe.realize.protocol import Feeds
from quantpipe.types import QuantPlan


class QonnxRunner:
    """Run a QONNX file.

    `integers`: stored tensor -> the value of the file that holds it as a float.
    """

    def __init__(self, path: Path, integers: Mapping[str, str], plan: QuantPlan) -> None:
        self._path, self._integers, self._plan = path, integers, plan
        self._ready: dict[tuple[Any, ...], Any] = {}

    @property
    def tensors(self) -> Collection[str]:
        """Return the tensors whose integers `run` gives."""
        return self._integers.keys()

    def takes(self, inputs: Feeds) -> bool:
        """Return True: the file is made ready for any shapes that the model takes."""
        return True

    def run(self, inputs: Feeds) -> Mapping[str, Array]:
        """Return the stored integers of every tensor, from the real values that represent them."""
        model = self._model(inputs)
        execute = importlib.import_module("qonnx.core.onnx_exec").execute_onnx
        try:
            values = execute(model, dict(inputs), return_full_exec_context=True)
        except Exception as error:  # the package raises Exception itself, and whatever its nodes raise
            raise HardwareError(f"qonnx does not run the file: {brief(error)}", stage="evaluate",
                                where=self._path.name) from error  # fmt: skip
        return {tensor: self._stored(tensor, values[name]) for tensor, name in self._integers.items()}

    def latency(self, inputs: Feeds) -> float | None:
        """Return None: an interpreter in Python does not predict the device's speed."""
        return None

    def close(self) -> None:
        """Let the models go."""
        self._ready.clear()

    def _stored(self, tensor: str, real: Array) -> Array:
        q = self._plan.quantizers[tensor]
        steps = intmath.round_real(np.asarray(real, np.float64) / np.float64(q.scale)) + q.zero_point
        return steps.astype(np.int64)

    def _model(self, inputs: Feeds) -> Any:
        """Return the file with the shapes of these inputs everywhere, and its weights quantized once."""
        key = tuple((name, np.shape(value)) for name, value in inputs.items())
        if key not in self._ready:
            proto = onnx.load(self._path)
            for port in proto.graph.input:
                del port.type.tensor_type.shape.dim[:]
                for size in np.shape(inputs[port.name]):
                    port.type.tensor_type.shape.dim.add().dim_value = size
            for port in proto.graph.output:
                port.type.tensor_type.ClearField("shape")
            self._ready[key] = _prepared(proto)
        return self._ready[key]


def _prepared(proto: onnx.ModelProto) -> Any:
    """Return the package's own model, with what follows from constants alone computed once."""
    wrapper = importlib.import_module("qonnx.core.modelwrapper").ModelWrapper
    execute = importlib.import_module("qonnx.core.onnx_exec").execute_node
    shapes = importlib.import_module("qonnx.transformation.infer_shapes").InferShapes
    model = wrapper(proto)
    model.check_all_tensor_shapes_specified(fix_missing_init_shape=True)
    model = model.transform(shapes())
    graph, context = model.graph, model.make_empty_exec_context()
    opsets = model.get_opset_imports()
    known = {tensor.name for tensor in graph.initializer} | {""}
    for node in [n for n in graph.node if set(n.input) <= known]:
        execute(node, context, graph, opsets.get(node.domain, 1))
        model.set_initializer(node.output[0], context[node.output[0]])
        graph.node.remove(node)
    return model
