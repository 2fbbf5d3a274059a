"""Torch functions of the ops that move values, make shapes, or change types."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from quantpipe.graph.view import Node
from quantpipe.train.float_op import Call
from quantpipe.train.torch_windows import padded

REALS = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
INTEGERS = {ir.DataType[name]: np.iinfo(name.lower()) for name in
            ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32")}  # fmt: skip
PAD_MODES = ("constant", "reflect", "edge", "wrap")


def _given(values: Sequence[int] | None) -> Sequence[int]:
    """Return a list of integers that the op requires."""
    if values is None:
        raise ValueError("a list of integers is absent")
    return values


def concat(call: Call) -> Tensor:
    """Return the operands next to each other."""
    return torch.cat([x for x in call.operands if x is not None], call.attr("axis"))


def split(call: Call) -> tuple[Tensor, ...]:
    """Return parts of given sizes, or of equal sizes, the last one smaller."""
    x, axis, count = call[0], call.attr("axis", 0), len(call.node.outputs)
    sizes = call.integers(1)
    if sizes is None:
        part = -(-x.shape[axis] // count)
        sizes = [*[part] * (count - 1), x.shape[axis] - part * (count - 1)]
    return tuple(torch.split(x, sizes, axis))


def slices(call: Call) -> Tensor:
    """Return parts of some axes, with steps of either sign."""
    x, starts, ends = call[0], _given(call.integers(1)), _given(call.integers(2))
    axes, steps = call.integers(3) or range(len(starts)), call.integers(4) or [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        found = range(x.shape[axis])[start:end:step]
        if step == 1:
            x = x.narrow(axis, found.start if found else 0, len(found))
        else:
            x = x.index_select(axis, torch.tensor(list(found), dtype=torch.int64, device=x.device))
    return x


def gather(call: Call) -> Tensor:
    """Return the elements at some places of an axis; negative places count from the end."""
    x, places = call[0], call[1]
    axis = call.attr("axis", 0) % x.dim()
    found = x.index_select(axis, torch.where(places < 0, places + x.shape[axis], places).flatten())
    return found.reshape((*x.shape[:axis], *places.shape, *x.shape[axis + 1 :]))


def scatter_refuses(node: Node) -> str | None:
    """Return why a ScatterND or ScatterElements is not supported."""
    how = node.attr("reduction", "none")
    return None if how == "none" else f"its reduction is {how}"


def scatter(call: Call) -> Tensor:
    """Return the first operand with other rows at some places; negative places count from the end."""
    x, places, rows = call[0], call[1], call[2]
    return x.index_put(tuple(places.unbind(-1)), rows)


def scatter_elements(call: Call) -> Tensor:
    """Return the first operand with other elements at places along an axis; negative places count from the end."""
    x, places, new = call[0], call[1], call[2]
    axis = call.attr("axis", 0) % x.dim()
    return x.scatter(axis, torch.where(places < 0, places + x.shape[axis], places).to(torch.int64), new)


def tensor_scatter(call: Call) -> Tensor:
    """Return a cache with new positions from a place of each sample on; `circular` ones go on at the beginning."""
    past, new = call[0], call[1]
    axis = call.attr("axis", -2) % past.dim()
    begin = call[2] if call.has(2) else torch.zeros(len(past), dtype=torch.int64, device=past.device)
    places = (begin[:, None] + torch.arange(new.shape[axis], device=past.device)) % past.shape[axis]
    samples = torch.arange(len(past), device=past.device)[:, None]
    return past.movedim(axis, 1).index_put((samples, places), new.movedim(axis, 1)).movedim(1, axis)


def reshape(call: Call) -> Tensor:
    """Return the elements in another shape; 0 keeps an axis, except with `allowzero`."""
    x, shape = call[0], _given(call.integers(1))
    if not call.attr("allowzero", 0):
        shape = [x.shape[axis] if size == 0 else size for axis, size in enumerate(shape)]
    return x.reshape(tuple(shape))


def flatten(call: Call) -> Tensor:
    """Return a matrix, whose rows are the axes before `axis`."""
    x, axis = call[0], call.attr("axis", 1)
    rows = x.shape[: axis if axis >= 0 else axis + x.dim()]
    return x.reshape(prod(rows), prod(x.shape[len(rows) :]))


def squeeze(call: Call) -> Tensor:
    """Return the operand without some axes of size 1, or without all of them."""
    x, axes = call[0], call.integers(1)
    return x.squeeze() if axes is None else x.squeeze(tuple(axes))


def unsqueeze(call: Call) -> Tensor:
    """Return the operand with new axes of size 1, at places in the result."""
    x, axes = call[0], _given(call.integers(1))
    rank = x.dim() + len(axes)
    for axis in sorted(a % rank for a in axes):
        x = x.unsqueeze(axis)
    return x


def transpose(call: Call) -> Tensor:
    """Return the operand with its axes in another order, reversed by default."""
    return call[0].permute(call.attr("perm", list(range(call[0].dim()))[::-1]))


def expand(call: Call) -> Tensor:
    """Return the operand repeated along axes of size 1, by the rules of broadcasting."""
    x = call[0]
    return x.expand(torch.broadcast_shapes(x.shape, tuple(_given(call.integers(1)))))


def tile(call: Call) -> Tensor:
    """Return the operand repeated as a whole along its axes."""
    return call[0].repeat(tuple(_given(call.integers(1))))


def pad_refuses(node: Node) -> str | None:
    """Return why a Pad is not supported."""
    mode = node.attr("mode", "constant")
    return None if mode in PAD_MODES else f"its mode is {mode}"


def pad(call: Call) -> Tensor:
    """Return the operand with elements added at both ends of its axes; negative counts remove elements."""
    x, mode, counts = call[0], call.attr("mode", "constant"), _given(call.integers(1))
    axes = call.integers(3) or list(range(x.dim()))
    pairs = {axis % x.dim(): (counts[n], counts[n + len(axes)]) for n, axis in enumerate(axes)}
    if mode == "constant":
        before, after = zip(*(pairs.get(axis, (0, 0)) for axis in range(x.dim())), strict=True)
        return padded(x, before, after, (call.numbers(2) or (0,))[0])
    for axis, (first, last) in pairs.items():
        size = x.shape[axis]
        places = np.arange(-first, size + last)
        if mode == "edge":
            places = places.clip(0, size - 1)
        elif mode == "wrap":
            places = places % size
        else:
            period = max(2 * (size - 1), 1)
            places = np.minimum(places % period, -places % period)
        x = x.index_select(axis, torch.tensor(places, device=x.device))
    return x


def depth_to_space(call: Call) -> Tensor:
    """Return a map whose blocks are channels of the operand (ONNX's modes DCR and CRD)."""
    x, block = call[0], call.attr("blocksize")
    n, c, h, w = x.shape
    if call.attr("mode", "DCR") == "DCR":
        blocks = x.reshape(n, block, block, c // block**2, h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        blocks = x.reshape(n, c // block**2, block, block, h, w).permute(0, 1, 4, 2, 5, 3)
    return blocks.reshape(n, c // block**2, h * block, w * block)


def space_to_depth(call: Call) -> Tensor:
    """Return a map whose channels are blocks of the operand."""
    x, block = call[0], call.attr("blocksize")
    n, c, h, w = x.shape
    blocks = x.reshape(n, c, h // block, block, w // block, block).permute(0, 3, 5, 1, 2, 4)
    return blocks.reshape(n, c * block**2, h // block, w // block)


def shape(call: Call) -> Tensor:
    """Return the sizes of some axes, as integers."""
    found = call[0].shape[call.attr("start", 0) : call.attr("end")]
    return torch.tensor(list(found), dtype=torch.int64, device=call[0].device)


def constant_of_shape(call: Call) -> Tensor:
    """Return a tensor whose elements are one number, 0.0 by default."""
    value = call.attr("value")
    array = np.zeros(1, np.float32) if value is None else np.asarray(value.numpy())
    kind = {"b": torch.bool, "i": torch.int64, "u": torch.int64}.get(array.dtype.kind, call.dtype)
    return torch.full(_given(call.integers(0)), array.ravel()[0].item(), dtype=kind, device=call[0].device)


def cast_refuses(node: Node) -> str | None:
    """Return why a Cast is not supported."""
    kind = ir.DataType(node.attr("to"))
    return None if kind in (*REALS, *INTEGERS, ir.DataType.BOOL) else f"it makes {kind.name}"


def cast(call: Call) -> Tensor:
    """Return the operand as floats of the run's type, as integers that wrap at their width, or as booleans."""
    x, kind = call[0], ir.DataType(call.attr("to"))
    if kind in REALS:
        return x.to(call.dtype)
    if kind is ir.DataType.BOOL:
        return x != 0
    whole, limits = x.to(torch.int64), INTEGERS[kind]
    if limits.bits == 64:
        return whole
    return torch.remainder(whole - int(limits.min), 1 << limits.bits) + int(limits.min)


def top(call: Call) -> tuple[Tensor, Tensor]:
    """Return the largest or smallest elements along an axis, and their positions."""
    count = _given(call.integers(1))[0]
    largest, in_order = bool(call.attr("largest", 1)), bool(call.attr("sorted", 1))
    found, places = torch.topk(call[0], count, call.attr("axis", -1), largest=largest, sorted=in_order)
    return found, places
