"""Weights in blocks with float scales, by which floats are multiplied: codes, scales and zero points in the file.

They follow DequantizeLinear with a `block_size`, or packed in MatMulNBits. What the products come to is float
arithmetic, and not proved.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from quantpipe.verify.checked_blocks import expect_codes
from quantpipe.verify.files import Wrong, array_digest, expect
from quantpipe.verify.ops import attribute
from quantpipe.verify.realized_model import Model
from quantpipe.verify.run_scales import check_cell, check_dynamic

Array = NDArray[Any]
FLOAT32 = 1


def check_weighted(plan: Mapping[str, Any], model: Model) -> set[str]:
    """Check the weight of every node that multiplies floats by integers.

    Returns the names of further nodes of those whose input has a scale of each run.
    """
    further: set[str] = set()
    for name, said in plan.get("weighted", {}).items():
        weight, entry = str(said["weight"]), plan["weights"].get(said["weight"])
        if said.get("dynamic"):
            named = [str(said[key]) for key in ("weight", "state_weight") if key in said]
            entries = [plan["weights"].get(tensor) for tensor in named]
            expect(None not in entries, name, f"plan.json has no weight {weight}")
            if len(entries) > 1:
                check_cell(name, said["op"], entries, model)
            else:
                further |= check_dynamic(name, entry, model)
            continue
        expect(entry is not None and "block" in entry, name, f"plan.json has no weight {weight} in blocks")
        node = next((n for n in model.nodes if n.name == name), None)
        if node is None:
            raise Wrong(name, "the model has no such node")
        codes, scale, zero, size = (
            _packed(node, model) if node.op_type == "MatMulNBits" else _behind(node, model, entry)
        )
        block = entry["block"]
        low, high = block["codes"]
        expect(size == block["size"], name, f"its blocks have {size} weights, {block['size']} in plan.json")
        expect_codes(block["codes"], int(entry["bits"]), weight)
        plain = entry["zero_point"] == 0 and entry["axis"] == entry["channel_axis"]
        expect(plain, weight, "it has a zero point or an axis of scales in addition to its blocks")
        expect(bool(np.all((low <= codes) & (codes <= high))), name, "a code of its weights is beyond its bits")
        laid = codes if int(entry["channel_axis"]) == 0 or codes.ndim > 2 else codes.T
        digest = array_digest(np.ascontiguousarray(laid).astype(np.int8))
        expect(digest == entry["values"], name, f"its weights are not those that plan.json names ({weight})")
        expect(array_digest(scale) == entry["scale"], name, "the scales of its blocks differ from plan.json")
        expect(array_digest(zero) == block["zero_point"], name, "the zero points of its blocks differ from plan.json")
    return further


def _behind(node: onnx.NodeProto, model: Model, entry: Mapping[str, Any]) -> tuple[Array, Array, Array, int]:
    """(codes, scales and zero points `[C, B]`, size): of DequantizeLinear; dense codes are `[C, I]`."""
    made = [model.producer[i] for i in node.input if i in model.producer]
    found = [n for n in made if n.op_type == "DequantizeLinear" and attribute(n, "block_size", 0)]
    expect(len(found) == 1, node.name, "it reads no weight in blocks")
    real, channel = found[0], int(entry["channel_axis"])
    model.see(real)
    known = {a.name for a in real.attribute} <= {"axis", "block_size"}
    expect(known, real.name, "it has an attribute that no form writes")
    expect(int(attribute(real, "axis", 1)) == 1 - channel, node.name, "its blocks lie along another axis")
    parts = [model.constant(i) for i in real.input]
    scale = _of_blocks(parts[1], channel, node.name).astype(np.float32)
    zero = _of_blocks(parts[2], channel, node.name) if len(parts) > 2 else np.zeros(scale.shape)
    codes = parts[0].astype(np.int64)
    return (
        codes.T if codes.ndim == 2 and channel else codes,
        scale,
        zero.astype(np.int64),
        int(attribute(real, "block_size")),
    )


def _of_blocks(numbers: Array, channel: int, name: str) -> Array:
    rows = np.moveaxis(numbers, channel, 0)
    rows = rows.reshape(rows.shape[0], rows.shape[1], -1)
    expect(bool(np.all(rows == rows[:, :, :1])), name, "the taps of one block have different scales")
    return np.ascontiguousarray(rows[:, :, 0])


def _packed(node: onnx.NodeProto, model: Model) -> tuple[Array, Array, Array, int]:
    """(codes `[N, K]`, scales and zero points `[N, B]`, size) of MatMulNBits."""
    outs, width, bits, size = (int(attribute(node, name, 0)) for name in ("N", "K", "bits", "block_size"))
    expect(bits in (4, 8), node.name, f"its weights have {bits} bits")
    expect(int(attribute(node, "accuracy_level", 0)) == FLOAT32, node.name, "it rounds its activations")
    count, middle = -(-width // size), 1 << (bits - 1)
    codes = _unpacked(model.constant(node.input[1]), bits).reshape(outs, count * size)
    expect(bool(np.all(codes[:, width:] == middle)), node.name, "a weight beyond its last input is not zero")
    scale = model.constant(node.input[2]).reshape(outs, count).astype(np.float32)
    zero = np.zeros((outs, count), np.int64)
    if len(node.input) > 3 and node.input[3]:
        zero = _unpacked(model.constant(node.input[3]), bits).reshape(outs, -1)[:, :count] - middle
    return codes[:, :width] - middle, scale, np.ascontiguousarray(zero), size


def _unpacked(stored: Array, bits: int) -> Array:
    """Codes of four bits, two to the byte, the first one low; codes of eight bits as they are."""
    if bits == 8:
        return stored.astype(np.int64)
    flat = stored.reshape(*stored.shape[:-1], -1, 1)
    return np.concatenate([flat & 15, flat >> 4], axis=-1).reshape(*stored.shape[:-1], -1).astype(np.int64)
