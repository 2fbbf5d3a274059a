"""Write the scales of a plan as the files that other tools read together with a float model.

`model.float.onnx` is the model that all names refer to. It is the cleaned float model, whose weights and biases are
already on the plan's grid. A tool that rounds them to the nearest gets the plan's own integers (recovered ones, too).

* `tensorrt.cache`: TensorRT's calibration cache, for its implicit quantization. A line per tensor: its name and its
  scale, the 32 bits of a float in hexadecimal, highest first. It holds symmetric int8 only.
* `encodings.json`: AIMET's encodings, format 1.0.0, which QNN's converter takes with `--quantization_overrides`.
  real = scale · (q + offset), where q runs from 0.
* `tensor_quant_overrides.json`: the value of onnxruntime's extra option `TensorQuantOverrides`, with `quant_type` as a
  word (`QuantType.from_string` makes the type of it).
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from quantpipe.arrays import along
from quantpipe.errors import HardwareError
from quantpipe.graph.external_weights import copied, is_mapped
from quantpipe.graph.io import model_bytes
from quantpipe.graph.view import Graph
from quantpipe.plan.table_numbers import real_rows
from quantpipe.realize.opset import with_least_opset
from quantpipe.realize.protocol import Runner, WrittenForm
from quantpipe.realize.provenance import Provenance, stamp
from quantpipe.realize.ship_samples import feeds
from quantpipe.types import Accumulate, DType, Quantizer, QuantPlan, Topology, WeightTensor

FLOAT, CACHE, ENCODINGS, OVERRIDES = (
    "model.float.onnx", "tensorrt.cache", "encodings.json", "tensor_quant_overrides.json",
)  # fmt: skip
TRT_HEADER = "TRT-8601-EntropyCalibration2"
"""The first line of a cache: version and calibrator. TensorRT takes a cache of any version of its own."""
HOWTO = """These files are for the tools of other devices. They have the names of `model.float.onnx`, whose weights and
biases are already on the plan's grid.

{cache}- QNN: `qnn-onnx-converter --input_network model.float.onnx --quantization_overrides encodings.json`; AIMET:
  `sim.load_encodings("encodings.json")`.
- onnxruntime takes `tensor_quant_overrides.json` and samples (here one, of zeros), which do not change the result:

```python
import json, types, numpy as np
from onnx.helper import tensor_dtype_to_np_dtype
from onnxruntime.quantization import QuantType, quantize_static
overrides = json.load(open("tensor_quant_overrides.json"))
for entry in (entry for row in overrides.values() for entry in row):
    kind = QuantType.from_string(entry["quant_type"])
    zero = np.array(entry["zero_point"], tensor_dtype_to_np_dtype(kind.tensor_type))
    entry.update(quant_type=kind, scale=np.array(entry["scale"], np.float32), zero_point=zero)
{feeds}
samples = types.SimpleNamespace(get_next=iter([feeds, None]).__next__)
options = {{"TensorQuantOverrides": overrides, "ForceQuantizeNoInputCheck": True}}
quantize_static("{FLOAT}", "model.ort.onnx", samples, per_channel=True, extra_options=options)
```
"""

CACHE_HOWTO = "- TensorRT: give `tensorrt.cache` to your `IInt8EntropyCalibrator2` in `read_calibration_cache`.\n"
"""Only where the cache is written: it holds symmetric int8 alone."""


class Sidecars:
    """Write the files that vendor tools take."""

    name = "sidecars"
    file = FLOAT

    def unavailable(self) -> str | None:
        """Return that the files hold numbers for other tools: there is nothing to execute."""
        return "these are scales for other tools, there is nothing to execute"

    def write(self, graph: Graph, topology: Topology, plan: QuantPlan, made: Provenance) -> WrittenForm:
        """Write the files.

        Raises HardwareError for external weights, and for layers with scales of each run.
        """
        if by_run := (*topology.dynamic, *topology.cell_of):
            raise HardwareError(
                "it has input scales of each run (annotate.dynamic), for which the sidecars have no numbers; legal is "
                "annotate.dynamic=[], or another realize",
                stage="realize",
                where=by_run[0],
            )
        if any(is_mapped(w.values) for w in plan.weights.values()):
            raise HardwareError(
                "the sidecars need a float model of their own, which cannot have weights in external files "
                "(model.resident_mb); legal is a larger model.resident_mb, or another realize",
                stage="realize",
            )
        model = with_least_opset(on_grid(graph, plan))
        stamp(model, made.entries(graph, plan, self.name), made.version)
        files = {FLOAT: model_bytes(model)}
        cache = calibration_cache(plan)
        files |= {} if cache is None else {CACHE: cache.encode()}
        files[ENCODINGS] = (json.dumps(encodings(plan), indent=1) + "\n").encode()
        files[OVERRIDES] = (json.dumps(tensor_quant_overrides(plan), indent=1) + "\n").encode()
        said = HOWTO.format(
            feeds=feeds(graph, made.preprocessing), FLOAT=FLOAT, cache="" if cache is None else CACHE_HOWTO
        )
        return WrittenForm(files, {"files": len(files)}, said)

    def open(self, folder: Path, graph: Graph, topology: Topology, plan: QuantPlan) -> Runner:
        """Raise HardwareError: nothing executes them."""
        raise HardwareError("the sidecars cannot be executed", stage="evaluate")


def on_grid(graph: Graph, plan: QuantPlan) -> ir.Model:
    """Return the float model with weights and biases that are whole steps of the plan's scales."""
    model = copied(graph.model)
    initializers = model.graph.initializers
    inside = {kernel.weight: kernel for kernel in plan.kernels.values() if isinstance(kernel, Accumulate)}
    for name, weight in plan.weights.items():
        readers = {node.name for node, _ in graph.consumers.get(name, ())}
        if name in initializers and name in inside and readers <= set(plan.kernels):
            _replace(initializers[name], _real(weight))
    for name, table in plan.tables.items():
        _replace(initializers[name], real_rows(table).reshape(table.shape))
    for node in graph.nodes:
        kernel = plan.kernels.get(node.name)
        if not isinstance(kernel, Accumulate) or kernel.bias is None:
            continue
        bias = node.inputs[2] if len(node.inputs) > 2 else ""
        if bias in initializers and len(graph.consumers[bias]) == 1:
            real = kernel.bias.astype(np.float64) * kernel.acc_scale.astype(np.float64)
            _replace(initializers[bias], real.astype(np.float32).reshape(graph.shapes[bias]))
    return model


def calibration_cache(plan: QuantPlan) -> str | None:
    """Return TensorRT's calibration cache; None where some tensor is not symmetric int8, which it cannot say."""
    stored = list(plan.quantizers.values())
    if not stored or any(q.zero_point or q.dtype is not DType.INT8 or q.bits != 8 for q in stored):
        return None
    return "\n".join([TRT_HEADER, *(f"{q.tensor}: {_float_bits(float(q.scale))}" for q in stored)]) + "\n"


def encodings(plan: QuantPlan) -> dict[str, Any]:
    """Return AIMET's encodings, format 1.0.0."""
    return {
        "version": "1.0.0",
        "activation_encodings": [_encoded(q) for q in plan.quantizers.values()],
        "param_encodings": [_encoded_weight(w) for w in plan.weights.values()],
        "producer": "quantpipe",
    }


def tensor_quant_overrides(plan: QuantPlan) -> dict[str, list[dict[str, Any]]]:
    """Return the value of onnxruntime's TensorQuantOverrides: name -> one entry, or one per channel."""
    found: dict[str, list[dict[str, Any]]] = {}
    for q in plan.quantizers.values():
        found[q.tensor] = [{"quant_type": _quant_type(q.dtype), "scale": float(q.scale), "zero_point": q.zero_point}]
    for w in plan.weights.values():
        kind, zeros = _quant_type(w.dtype), np.broadcast_to(w.zero_point, w.scale.shape).reshape(-1)
        axis = {} if w.axis is None else {"axis": w.axis}
        found[w.tensor] = [
            {"quant_type": kind, "scale": float(s), "zero_point": int(z)} | axis
            for s, z in zip(w.scale.reshape(-1), zeros, strict=True)
        ]
    return found


def _encoded(q: Quantizer) -> dict[str, Any]:
    base = -(1 << (q.bits - 1)) if q.dtype.signed else 0
    return {
        "name": q.tensor,
        "dtype": "INT",
        "enc_type": "PER_TENSOR",
        "bw": q.bits,
        "is_sym": base - q.zero_point == -(1 << (q.bits - 1)),
        "scale": [float(q.scale)],
        "offset": [base - q.zero_point],
    }


def _encoded_weight(w: WeightTensor) -> dict[str, Any]:
    base = -(1 << (w.bits - 1)) if w.dtype.signed else 0
    zeros = np.broadcast_to(w.zero_point, w.scale.shape).reshape(-1)
    return {
        "name": w.tensor,
        "dtype": "INT",
        "enc_type": "PER_TENSOR" if w.axis is None else "PER_CHANNEL",
        "bw": w.bits,
        "is_sym": not w.has_zero_point,
        "scale": [float(s) for s in w.scale.reshape(-1)],
        "offset": [base - int(z) for z in zeros],
    }


def _quant_type(dtype: DType) -> str:
    """Return a type as onnxruntime's QuantType calls it."""
    return f"Q{'' if dtype.signed else 'U'}Int{dtype.bits}"


def _float_bits(value: float) -> str:
    return struct.pack("!f", value).hex()


def _real(weight: WeightTensor) -> np.ndarray:
    scale = along(weight.scale, weight.axis, weight.values.ndim)
    return np.asarray(weight.centred().astype(np.float32) * scale, np.float32)


def _replace(value: ir.Value, array: np.ndarray) -> None:
    value.const_value = ir.Tensor(array, name=value.name)
