"""The ways in and out of the integer part: what is quantized from floats, and what is given back as such."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from quantpipe.verify.files import expect
from quantpipe.verify.numbers import ClaimedNumbers
from quantpipe.verify.ops import to_bfloat16
from quantpipe.verify.scales import expect_same
from quantpipe.verify.written import expect_equal

Array = NDArray[Any]
OF_SHAPES = frozenset({"Shape", "Size"})


def check_ends(numbers: ClaimedNumbers, floats: set[str], *, tied: bool, stored: Collection[str] = ()) -> None:
    """Raise Wrong where a tensor enters or leaves the integer part otherwise than in plan.json.

    `tied`: a real tensor has the name that it has in the certificate; earlier versions do not claim it. `stored`: ports
    of integers, which were checked.
    """
    for tensor in numbers.plan["quantizers"]:
        _named(numbers, tensor)
    made = {(k["result"]["tensor"], k["result"]["form"]) for k in numbers.kernels.values()}
    for tensor in numbers.plan["quantizers"]:
        if tensor in numbers.plan["constants"] or tensor in stored:
            continue
        if (
            (tensor, "quantized") not in made
            and (tensor, "raw") not in made
            and tensor in numbers.certificate["values"]
        ):
            _entry(numbers, tensor, floats, tied)
    for value in _read_as_real(numbers, floats):
        if value in stored:
            continue
        left = _exit(numbers, value)
        named = left == value or (left in stored and value.rstrip("_") == f"{left}/float32")
        expect(not tied or named, value, f"the tensor {left} leaves the integer part under this name")


def _named(numbers: ClaimedNumbers, tensor: str) -> None:
    """Scale and zero point that the model names after a tensor are that tensor's, also where nothing reads them."""
    scale, zero = numbers.grid(tensor)
    model, unread = numbers.model, numbers.model.unread
    if f"{tensor}_scale" in unread:
        expect_same(scale, model.constant(f"{tensor}_scale"), tensor, "scale")
    if f"{tensor}_zero_point" in unread:
        found = model.constant(f"{tensor}_zero_point").reshape(-1)
        expect(found.tolist() == [zero], tensor, "its zero point in the model differs from plan.json")


def _entry(numbers: ClaimedNumbers, tensor: str, floats: set[str], tied: bool) -> None:
    """clamp(rint(x / s) + z) of the float tensor of that name, at every step and beyond both ends."""
    model, result = numbers.model, numbers.value(tensor)
    q = numbers.quantizer(tensor)
    (scale, zero), (low, high) = numbers.grid(tensor), (int(v) for v in q["range"])
    quantize = next((n for n in map(model.producer.get, model.back(result, model.stops - {result}))
                     if n is not None and n.op_type == "QuantizeLinear"), None)  # fmt: skip
    expect(quantize is not None, tensor, "nothing quantizes it")
    assert quantize is not None  # noqa: S101
    source = model.producer.get(quantize.input[0])
    real = quantize.input[0] in model.inputs or (source is not None and source.name in floats)
    expect(real or model.is_constant(quantize.input[0]), tensor, "it is quantized from non-float values")
    source_name = str(quantize.input[0])
    expect(not tied or source_name == tensor, tensor, f"it is quantized from the float tensor {source_name}")
    steps = np.arange(low - zero - 2, high - zero + 3, dtype=np.float64)
    near = np.concatenate([steps, steps + 0.49, steps - 0.49, [-1e30, 1e30]])
    points = (near * float(scale)).astype(np.float32).reshape(1, -1)
    expected = np.clip(np.rint(points / scale).astype(np.float64) + zero, low, high).astype(np.int64)
    expect_equal(model.run(result, {quantize.input[0]: points}).astype(np.int64), expected, points, tensor)
    expect_same(scale, model.constant(quantize.input[1]), tensor, "scale")


def _read_as_real(numbers: ClaimedNumbers, floats: set[str]) -> list[str]:
    """Values that leave the model or go into nodes in float, and are neither inputs nor made by nodes in float."""
    model = numbers.model
    wanted = list(model.outputs)
    for node in model.nodes:
        if node.op_type in OF_SHAPES:
            continue  # it reads no values: any form of a tensor has its shape
        if node.name in floats and id(node) not in model.seen_nodes:
            wanted += [i for i in node.input if i] + _captured(node)
    found = []
    for value in dict.fromkeys(wanted):
        source = model.producer.get(value)
        if source is None or (source.name in floats and id(source) not in model.seen_nodes) or model.is_constant(value):
            continue
        found.append(value)
    return found


def _captured(node: onnx.NodeProto) -> list[str]:
    """Values of the outer graph that a node's own graphs may read."""
    found = []
    for held in node.attribute:
        graphs = [held.g] if held.type == onnx.AttributeProto.GRAPH else list(held.graphs)
        for graph in graphs:
            for inner in graph.node:
                found += [i for i in inner.input if i] + _captured(inner)
            found += [o.name for o in graph.output]
    return found


def _exit(numbers: ClaimedNumbers, value: str) -> str:
    """Check the real values of one stored tensor, (q - z) · s, or of an accumulator, times its scale; return its name.

    A fused kernel that gives floats is checked with its kernel.
    """
    model = numbers.model
    names = {str(v): str(t) for t, v in numbers.certificate["values"].items()}
    handed_on = {k["result"]["tensor"] for k in numbers.kernels.values() if k["result"]["form"] == "raw"}
    if value in handed_on and numbers.form != "integer":
        return value
    heads, stops = model.heads(value, model.stops)
    held = [s for s in stops if s in names]
    expect(not heads and len(held) == 1, value, "it leaves the integer part otherwise than by its scale")
    name = names[held[0]]
    if name.endswith(" (accumulator)"):
        name = name.removesuffix(" (accumulator)")
        _raw_exit(numbers, value, held[0], name)
        return name
    codes = numbers.codes(name)
    expected = numbers.centred(name).astype(np.float32) * numbers.grid(name)[0]
    found = model.run(value, {held[0]: codes})
    expect(found.dtype == np.float32, value, "it leaves as something else than float32")
    expect_equal(found, expected, codes, value)
    return name


def _raw_exit(numbers: ClaimedNumbers, value: str, source: str, tensor: str) -> None:
    model = numbers.model
    scale = np.asarray(numbers.plan["accumulators"][tensor], np.float32).reshape(-1, 1)
    peak = numbers.peak(tensor, "raw")
    points = np.array([[-peak, 1 - peak, -1, 0, 1, peak - 1, peak]], np.int64 if peak >= 1 << 31 else np.int32)
    for at in model.back(value, {source}):
        node = model.producer.get(at)
        known = at == source or (node is not None and node.op_type in ("Cast", "Mul", "DequantizeLinear"))
        expect(known, at, "it does not belong to the conversion of an accumulator to float")
    real = points.astype(np.float32) * scale
    expected = to_bfloat16(real) if tensor in numbers.certificate.get("bfloat16", ()) else real
    expect_equal(model.run(value, {source: points}), expected, points, value)
