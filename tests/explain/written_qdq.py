"""QDQ files of a float model as tools other than onnxruntime's quantizer write them, pair by pair."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Style:
    """How a tool writes its pairs.

    `weights`: "stored" as integers, or as floats behind a QuantizeLinear. `each`: a pair for every reader of a tensor.
    `channels`: activations in front of convolutions have a scale per channel. `bias`: behind a pair of 32 bits.
    `renamed`: nothing keeps its name. `outputs`: the model's outputs are stored, too.
    """

    weights: str = "stored"
    each: bool = False
    channels: bool = False
    bias: bool = False
    renamed: bool = False
    outputs: bool = False


STYLES = {
    "nncf": Style(channels=True),
    "aimet": Style(weights="floats", outputs=True),
    "torch": Style(weights="floats", bias=True, renamed=True),
    "neural_compressor": Style(each=True, bias=True),
}


def written(model: onnx.ModelProto, samples: Array, style: Style) -> onnx.ModelProto:
    """The file of a model of Conv, Gemm and Add with other nodes between, calibrated on samples of its one input."""
    return _Writer(model, samples, style).model()


class _Writer:
    def __init__(self, model: onnx.ModelProto, samples: Array, style: Style) -> None:
        self._style, self._float = style, model
        self._constants = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
        self._nodes: list[onnx.NodeProto] = []
        self._new: list[onnx.TensorProto] = []
        self._made: dict[Any, str] = {}
        self._scales: dict[str, Array] = {}
        everything = onnx.ModelProto.FromString(model.SerializeToString())
        names = [o for node in model.graph.node for o in node.output]
        del everything.graph.output[:]
        everything.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
        session = ort.InferenceSession(everything.SerializeToString(), providers=["CPUExecutionProvider"])
        name = model.graph.input[0].name
        self._values = {name: samples, **dict(zip(names, session.run(names, {name: samples}), strict=True))}

    def model(self) -> onnx.ModelProto:
        graph = self._float.graph
        for node in graph.node:
            inputs = [self._read(node, place, name) for place, name in enumerate(node.input)]
            new = onnx.NodeProto()
            new.CopyFrom(node)
            del new.input[:]
            new.input.extend(inputs)
            self._nodes.append(new)
        if self._style.outputs:
            self._store_outputs()
        made = helper.make_graph(self._nodes, graph.name, graph.input, graph.output, [*self._kept(), *self._new])
        model = helper.make_model(made, opset_imports=self._float.opset_import, ir_version=self._float.ir_version)
        if self._style.renamed:
            _rename(model)
        onnx.checker.check_model(model)
        return model

    def _kept(self) -> list[onnx.TensorProto]:
        read = {name for node in self._nodes for name in node.input}
        return [i for i in self._float.graph.initializer if i.name in read]

    def _read(self, node: onnx.NodeProto, place: int, name: str) -> str:
        if node.op_type not in ("Conv", "Gemm", "Add"):
            return name
        if name not in self._constants:
            by_channel = self._style.channels and node.op_type == "Conv"
            return self._activation(name, by_channel, node.name if self._style.each else "")
        if place == 1:
            return self._weight(name, 0 if node.op_type == "Conv" else None)
        return self._bias(node, name) if self._style.bias else name

    def _activation(self, name: str, by_channel: bool, reader: str) -> str:
        values = self._values[name]
        axes = (0, *range(2, values.ndim)) if by_channel else None
        high, low = np.maximum(values.max(axes), 1e-6), np.minimum(values.min(axes), 0)
        if by_channel:  # of one zero point: symmetric
            scale, zero, kind = np.maximum(high, -low) / 127, np.zeros(high.shape, np.int8), np.int8
        else:
            scale = np.asarray((high - low) / 255)
            zero, kind = np.asarray(np.rint(-low / scale), np.uint8), np.uint8
        self._scales[name] = scale
        return self._pair(name, (name, by_channel, reader), np.asarray(scale, np.float32), zero.astype(kind), 1)

    def _weight(self, name: str, axis: int | None) -> str:
        values = self._constants[name]
        axes = tuple(a for a in range(values.ndim) if a != axis) if axis is not None else None
        scale = np.asarray(np.abs(values).max(axes) / 127, np.float32)
        zero, self._scales[name] = np.zeros(scale.shape, np.int8), scale
        if self._style.weights == "floats":
            return self._pair(name, name, scale, zero, axis or 0)
        along = scale.reshape([-1 if a == axis else 1 for a in range(values.ndim)]) if axis is not None else scale
        return self._stored(name, np.rint(values / along).astype(np.int8), scale, zero, axis or 0)

    def _bias(self, node: onnx.NodeProto, name: str) -> str:
        """In steps of the sum, as runtimes take it to be."""
        scale = np.asarray(self._scales[node.input[0]] * self._scales[node.input[1]], np.float32)
        values = np.rint(self._constants[name] / scale).astype(np.int32)
        return self._stored(name, values, scale, np.zeros(scale.shape, np.int32), 0)

    def _stored(self, name: str, values: Array, scale: Array, zero: Array, axis: int) -> str:
        if name in self._made:
            return self._made[name]
        names = [self._constant(f"{name}_{what}", a) for what, a in (("q", values), ("s", scale), ("z", zero))]
        self._nodes.append(helper.make_node("DequantizeLinear", names, [f"{name}_dq"], f"dq_{name}", axis=axis))
        return self._made.setdefault(name, f"{name}_dq")

    def _pair(self, name: str, key: Any, scale: Array, zero: Array, axis: int) -> str:
        if key in self._made:
            return self._made[key]
        tag = f"{name}_{len(self._made)}"
        numbers = [self._constant(f"{tag}_scale", scale), self._constant(f"{tag}_zero", zero)]
        along = {"axis": axis} if scale.ndim else {}
        self._nodes.append(helper.make_node("QuantizeLinear", [name, *numbers], [f"{tag}_q"], f"q_{tag}", **along))
        ends = [f"{tag}_q", *numbers]
        self._nodes.append(helper.make_node("DequantizeLinear", ends, [f"{tag}_dq"], f"dq_{tag}", **along))
        return self._made.setdefault(key, f"{tag}_dq")

    def _store_outputs(self) -> None:
        for output in self._float.graph.output:
            last = next(node for node in self._nodes if output.name in node.output)
            last.output[0] = f"{output.name}_real"
            self._values[last.output[0]] = self._values[output.name]
            self._activation(last.output[0], False, "")
            self._nodes[-1].output[0] = output.name

    def _constant(self, name: str, array: Array) -> str:
        self._new.append(numpy_helper.from_array(np.asarray(array), name))
        return name


def _rename(model: onnx.ModelProto) -> None:
    """Give every node and every inner tensor a number for a name."""
    graph = model.graph
    ends = {v.name for v in (*graph.input, *graph.output)}
    every = [*(i.name for i in graph.initializer), *(o for node in graph.node for o in node.output)]
    names = {name: f"v{number}" for number, name in enumerate(every) if name not in ends}
    for tensor in graph.initializer:
        tensor.name = names[tensor.name]
    for number, node in enumerate(graph.node):
        node.name = f"n{number}"
        for side in (node.input, node.output):
            side[:] = [names.get(name, name) for name in side]
