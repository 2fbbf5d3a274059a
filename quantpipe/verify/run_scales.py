"""Layers whose input gets a scale from the samples of each run: their ops, and the weights that they multiply by.

The input is rounded by DynamicQuantizeLinear, or inside of a recurrent layer's op. Its integers are the runtime's and
no claim of the certificate.

Files of this feature, all `run_scales.py`: `annotate` (which layers), `lowering` (how they are written), `verify`
(checks the written nodes).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from quantpipe.verify.files import Wrong, array_digest, expect
from quantpipe.verify.realized_model import Model

FLOAT = int(onnx.TensorProto.FLOAT)


def check_dynamic(name: str, entry: Mapping[str, Any], model: Model) -> set[str]:
    """Check one such layer against the entry of its weight in plan.json; return the names of its nodes.

    Raises Wrong.
    """
    node = next((n for n in model.nodes if n.name == name), None)
    if node is None:
        raise Wrong(name, "the model has no such node")
    inside = node.op_type == "MatMulInteger" and len(node.input) in (3, 4)
    expect(inside, name, f"it is {node.op_type} of {len(node.input)} inputs, and no product of integers")
    made = model.producer.get(node.input[0])
    if made is None or made.op_type != "DynamicQuantizeLinear":
        raise Wrong(name, "its input has no scale of the run")
    expect(list(made.output[::2]) == [node.input[0], node.input[2]], name, "its input has another zero point")
    expect("block" not in entry, name, "its weight has blocks in plan.json")
    codes = model.constant(node.input[1])
    laid = codes if int(entry["channel_axis"]) == 1 else codes.T
    expect(array_digest(np.ascontiguousarray(laid)) == entry["values"], name,
           "its weights are not those that plan.json names")  # fmt: skip
    zero = model.constant(node.input[3]) if len(node.input) > 3 else np.zeros(())
    expect(bool(np.all(zero == np.asarray(entry["zero_point"]))), name, "its weights have other zero points")
    real = _reader(model, node, "Cast")
    expect([a.i for a in real.attribute if a.name == "to"] == [FLOAT], name, "its sums do not become float32")
    scaled = _reader(model, real, "Mul")
    scale = next((model.producer.get(i) for i in scaled.input if i != real.output[0]), None)
    if scale is None or scale.op_type != "Mul" or scale.input[0] != made.output[1]:
        raise Wrong(name, "its sums are not multiplied by the scale of its input")
    stored = np.asarray(entry["scale"], np.float32)
    expect(np.array_equal(model.constant(scale.input[1]), stored), name, "its weights have other scales")
    last = [n for n in model.nodes if scaled.output[0] in n.input and n.op_type == "Add" and n.name.startswith(name)]
    return {n.name for n in (made, real, scaled, scale, *last)}


def check_cell(name: str, op: str, entries: Sequence[Mapping[str, Any]], model: Model) -> None:
    """Check the weights of a recurrent layer, of its input and of its state, against their entries in plan.json.

    Raises Wrong.
    """
    node = next((n for n in model.nodes if n.name == name), None)
    if node is None:
        raise Wrong(name, "the model has no such node")
    inside = node.op_type == f"DynamicQuantize{op}" and len(node.input) == 12
    expect(inside, name, f"it is {node.op_type} of {len(node.input)} inputs, and no {op} with scales of each run")
    for number, entry in enumerate(entries):
        codes, scale, zero = (model.constant(node.input[i]) for i in (1 + number, 8 + 2 * number, 9 + 2 * number))
        expect(codes.ndim == 3 and "block" not in entry, name, "its weights have another shape than plan.json names")
        laid = np.ascontiguousarray(codes.transpose(0, 2, 1))
        expect(array_digest(laid) == entry["values"], name, "its weights are not those that plan.json names")
        shape = laid.shape[:2]
        expect(scale.shape == shape and zero.shape == shape, name, "its scales have another shape than its rows")
        stored = np.asarray(entry["scale"], np.float32)
        expect(bool(np.all(scale == stored)), name, "its weights have other scales")
        expect(bool(np.all(zero == np.asarray(entry["zero_point"]))), name, "its weights have other zero points")
        expect(str(codes.dtype) == entry["dtype"], name, "its weights have another type than plan.json names")
        centred, half = codes.astype(np.int64) - zero.astype(np.int64)[:, None, :], 1 << (int(entry["bits"]) - 1)
        symmetric = bool(np.all(centred < half)) and bool(np.all(centred >= -half))
        expect(symmetric or int(entry["bits"]) == codes.dtype.itemsize * 8, name, "its weights are beyond their bits")


def _reader(model: Model, node: onnx.NodeProto, op: str) -> onnx.NodeProto:
    """Return the one node that reads a result."""
    found = [n for n in model.nodes if node.output[0] in n.input]
    ops = [n.op_type for n in found]
    if ops != [op]:
        raise Wrong(node.name, f"its result is read by {', '.join(ops) or 'nothing'}, and not by one {op}")
    reader: onnx.NodeProto = found[0]
    return reader
