"""QuantizeLinear and DequantizeLinear, and what stands between the two: moves and limits of integers."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantpipe import intmath
from quantpipe.graph.edit import attribute, constant, new_constant, only_user, operand
from quantpipe.intake.quantized.grids import grid_of, hull, refused, type_of, whole
from quantpipe.intake.quantized.quantized_ops import (
    CAST,
    CHOOSING,
    CLIP,
    LIMITS,
    MULTIPLY,
    ON_INTEGERS,
    PAD,
    PLACES,
    QUANTIZE,
    RELU,
    SUBTRACT,
    TRANSPOSE,
    WITHIN,
    moved_ports,
)
from quantpipe.intake.quantized.walk import FLOAT, DequantizeWalk, narrowed
from quantpipe.types import ImportedGrid

WIDE = (ir.DataType.INT32, ir.DataType.INT64)
"""Types that hold all integers of a grid, and change none."""
CARRIED = (
    ". If quantpipe wrote the file, one of its ops (a ConvTranspose, a table) runs on integers without scales in the "
    "file. Give the float model, or the QONNX form, which has the scales (realize=[qdq,qonnx])"
)


def quantize(walk: DequantizeWalk, node: ir.Node) -> None:
    """Remove a QuantizeLinear: its output has the real values of its input, on its grid."""
    real, stored = node.inputs[0], node.outputs[0]
    zero = operand(node, 2)
    grid = grid_of(node, node.inputs[1], zero, stored, axis=int(attribute(node, "axis", 1)))
    if grid is None or real is None:
        return  # its scale is computed at run time: the node stays
    walk.forms["QDQ"] = None
    content = constant(real)
    if content is not None and not attribute(node, "block_size", 0):
        values = intmath.quantize(
            content, grid.scale, grid.zero, qmin=grid.low, qmax=grid.high, dtype=grid.dtype, axis=grid.axis
        )
        made = walk.given(node, stored, values, grid, name=walk.free_name(f"{real.name}_dequantized"))
        walk.keep(stored, made, grid, constant=True)
        return
    grid = _within(walk, real, grid)
    known = walk.clamp(real, grid, node)
    walk.keep(stored, walk.apart(known, grid, node), grid)


def _within(walk: DequantizeWalk, real: ir.Value, grid: ImportedGrid) -> ImportedGrid:
    """Return the narrower grid that a node inherits if it copies values of one scale, else the given grid.

    A tool that bounds integers to fewer bits than their type has need not bound copies of them again.
    """
    producer = real.producer()
    read = _copied(producer) if producer is not None and grid.single else []
    given = [walk.grids[value] for value in read if value in walk.grids]
    if not read or len(given) < len(read) or not all(grid.same(g) for g in given):
        return grid
    found = hull(given)
    return found if found.high - found.low < grid.high - grid.low and found.low <= grid.zero <= found.high else grid


def _copied(node: ir.Node) -> list[ir.Value]:
    """Return the inputs among whose values all results of a node are; none where it makes others, too."""
    if node.op_type in ON_INTEGERS or node.op_type in CHOOSING:
        return [value for port in moved_ports(node) if (value := node.inputs[port]) is not None]
    filled = node.inputs[2] if node.op_type == PAD and len(node.inputs) > 2 else None
    held = constant(filled)
    zeros = filled is None or (held is not None and not np.any(held))
    return [value for value in node.inputs[:1] if value is not None] if node.op_type in WITHIN and zeros else []


def dequantize(walk: DequantizeWalk, node: ir.Node) -> None:
    """Remove a DequantizeLinear: its readers read the real values that the integers represent."""
    integers = node.inputs[0]
    zero = operand(node, 2)
    grid = grid_of(node, node.inputs[1], zero, integers, axis=int(attribute(node, "axis", 1)))
    if grid is None or integers is None:
        return
    known = walk.stored.get(integers)
    if known is not None and known.grid is not None and not known.constant:
        _refuse_another(node, known.grid, grid)
        real = known.real
    elif known is not None and known.constant and known.grid is not None and known.grid.same(grid):
        real = known.real
    elif integers.const_value is not None:
        walk.forms["QDQ"] = None
        real = walk.constant(node, integers, grid, block=int(attribute(node, "block_size", 0)))
    elif integers in walk.graph.inputs:
        walk.forms["QDQ"] = None
        real = walk.port(integers, grid)
    else:
        return  # an accumulator, or integers that nothing is known of: the node stays
    walk.replace(node.outputs[0], real, node)


def multiplied(walk: DequantizeWalk, node: ir.Node) -> None:
    """Take (q - z)·s away where it is written as Cast, Sub and Mul: it is what a DequantizeLinear gives.

    Files use this form where a runtime must not see a DequantizeLinear, as realized QDQ files do before a Softmax. A
    zero point of 0 needs no Sub. Chains that do not end in a Mul by the scale stay as they are. A Cast to wider
    integers, or back to the type that they are stored in, changes no integer and keeps its meaning.
    """
    known = walk.stored.get(node.inputs[0]) if node.inputs[0] is not None else None
    if known is None or known.grid is None or not known.grid.single:
        return
    target = ir.DataType(attribute(node, "to"))
    if target in WIDE or target.name.lower() == known.grid.dtype:  # to a kernel that has no bytes, or back from there
        walk.keep(node.outputs[0], known.real, known.grid, constant=known.constant)
        return
    if target != ir.DataType.FLOAT:
        return
    centred, zero = node.outputs[0], int(known.grid.zero)
    found = _only_reader(walk, centred, SUBTRACT, zero)
    if zero and found is None:
        return
    if found is not None:
        centred = found.outputs[0]
    scaled = _only_reader(walk, centred, MULTIPLY, known.grid.scale)
    if scaled is not None:
        walk.replace(scaled.outputs[0], known.real, scaled)


def _only_reader(walk: DequantizeWalk, value: ir.Value, op: str, operand: NDArray[np.float32] | int) -> ir.Node | None:
    """Return the one node that reads a value, where it is this op with this number as its other operand."""
    node = only_user(value, walk.graph)
    if node is None or node.op_type != op or node.domain not in ("", "ai.onnx"):
        return None
    place = list(node.inputs).index(value)
    number = constant(node.inputs[1 - place])
    if number is None or number.size != 1 or number.reshape(()) != operand or (op == SUBTRACT and place != 0):
        return None
    return node


def _refuse_another(node: ir.Node, made: ImportedGrid, read: ImportedGrid) -> None:
    """Raise ModelError where integers are read on another grid than they were stored on."""
    if made.scale.shape == read.scale.shape and np.array_equal(made.scale, read.scale):
        if np.array_equal(made.zero, read.zero):
            return
        what = f"zero point {made.zero.reshape(-1)[0]} and read with {read.zero.reshape(-1)[0]}"
    else:
        what = f"scale {made.scale.reshape(-1)[0]:g} and read with {read.scale.reshape(-1)[0]:g}"
    raise refused(node, f"its integers are stored with {what}; legal is one scale and zero point for both ends")


def move(walk: DequantizeWalk, node: ir.Node) -> None:
    """Let an op that moves or selects integers do so with the real values that they represent."""
    ports = moved_ports(node)
    found = {port: walk.stored.get(value) for port in ports if (value := node.inputs[port]) is not None}
    grids = [s.grid for s in found.values() if s is not None and s.grid is not None]
    if not grids or len(grids) < len(ports):
        return
    if any(not grids[0].same(g) for g in grids[1:]):
        raise refused(
            node,
            f"its inputs are integers of different scales ({grids[0].scale.reshape(-1)[0]:g} and others); legal is one "
            "scale for all, or a QuantizeLinear after it",
        )
    inputs = [(s.real if (s := found.get(port)) is not None else value) for port, value in enumerate(node.inputs)]
    made = ir.Node(
        "",
        node.op_type,
        inputs=inputs,
        attributes=list(node.attributes.values()),
        num_outputs=len(node.outputs),
        name=node.name,
    )
    walk.graph.insert_before(node, made)
    for old, new in zip(node.outputs, made.outputs, strict=True):
        if node.op_type in PLACES and old is not node.outputs[0]:
            name, old.name = old.name, None
            new.name, new.type, new.shape = name, old.type, old.shape
            old.replace_all_uses_with(new, replace_graph_outputs=True)
            continue
        new.name, new.type = walk.real_name(old), FLOAT
        walk.keep(old, new, hull(grids))


def limit(walk: DequantizeWalk, node: ir.Node) -> None:
    """Let integers that are bounded have fewer bits."""
    below, above = LIMITS[node.op_type]
    source = node.inputs[0]
    known = walk.stored.get(source) if source is not None else None
    held = whole(source) if type_of(source) is not None else None
    if (known is None or known.grid is None) and held is None:
        return
    ends: list[int | None] = []
    for place in (below, above):
        value = operand(node, place)
        array = whole(value)
        if value is not None and (array is None or array.size != 1):
            move(walk, node)  # chosen among integers, in the case of Max and Min
            return
        ends.append(None if array is None else int(array.reshape(())))
    if known is None or known.grid is None:
        assert held is not None  # noqa: S101  (one of the two is there)
        low, high = (int(held.min()) if ends[0] is None else ends[0], int(held.max()) if ends[1] is None else ends[1])
        walk.bounded[walk.exchange(node, held.clip(low, high))] = (ends[0], ends[1])
        return
    grid = narrowed(known.grid, *ends)
    zero = np.atleast_1d(grid.zero)
    if grid.low >= grid.high or np.any(zero < grid.low) or np.any(zero > grid.high):
        raise refused(
            node,
            f"it bounds integers to {grid.low} to {grid.high}, and their zero point is {zero[0]}; legal are bounds "
            "around it",
        )
    if not known.constant and known.grid.single and (_read_beside(source, node) or not _of_bits(grid)):
        real = _bounded(walk, node, known.real, known.grid, ends=(grid.low, grid.high))
        walk.keep(node.outputs[0], real, known.grid)  # the node bounds them: they keep the bits that they have
        return
    walk.keep(node.outputs[0], known.real, grid, constant=known.constant)


def _read_beside(integers: ir.Value | None, node: ir.Node) -> bool:
    """Return whether another node reads integers as they are, without the bounds of this node."""
    return integers is not None and (integers.is_graph_output() or any(u.node is not node for u in integers.uses()))


def _of_bits(grid: ImportedGrid) -> bool:
    """Return whether bounds belong to fewer bits (0 to 15, -7 to 7), not to an activation (its zero point to 255)."""
    count = grid.high - grid.low + 1
    return any(c & (c - 1) == 0 for c in (count, count + 1))


def _bounded(
    walk: DequantizeWalk, node: ir.Node, real: ir.Value, before: ImportedGrid, *, ends: tuple[int, int]
) -> ir.Value:
    """Return the float Relu or Clip for bounds of integers whose inputs have other readers without them."""
    zero, scale = int(before.zero), np.float32(before.scale)
    low = None if ends[0] == before.low else ends[0]
    high = None if ends[1] == before.high else ends[1]
    if low == zero and high is None:
        return walk.node(node, RELU, [real], attributes={})
    limits = [
        None if end is None else new_constant(walk.graph, f"{node.name}/{side}", np.asarray((end - zero) * scale))
        for side, end in (("low", low), ("high", high))
    ]
    return walk.node(node, CLIP, [real, *limits], attributes={})


def pad(walk: DequantizeWalk, node: ir.Node) -> None:
    """Let a Pad of integers pad their real values, with the real value of its pad integer."""
    data = node.inputs[0]
    known = walk.stored.get(data) if data is not None else None
    if known is None or known.grid is None or not known.grid.single or len(node.inputs) < 2:
        return
    inputs = list(node.inputs)[1:]
    if attribute(node, "mode", "constant") == "constant":
        filled = whole(inputs[1]) if len(inputs) > 1 and inputs[1] is not None else np.zeros(1, np.int64)
        if filled is None or filled.size != 1:
            return  # computed: the node stays
        real = intmath.dequantize(filled.reshape(()), known.grid.scale.reshape(()), known.grid.zero.reshape(()))
        inputs[1:2] = [new_constant(walk.graph, f"{node.name}/filled", np.asarray(real)) if np.any(real) else None]
    made = ir.Node("", node.op_type, [known.real, *inputs], list(node.attributes.values()), name=node.name)
    walk.graph.insert_before(node, made)
    made.outputs[0].name, made.outputs[0].type = walk.real_name(node.outputs[0]), FLOAT
    walk.keep(node.outputs[0], made.outputs[0], known.grid)


def fold(walk: DequantizeWalk, node: ir.Node) -> None:
    """Make a constant of constant integers that are transposed, reshaped or cast to another integer type."""
    value = node.inputs[0]
    array, kind = whole(value), type_of(value)
    if value is None or array is None or kind is None or value in walk.stored:
        return
    if node.op_type == TRANSPOSE:
        array = np.transpose(array, attribute(node, "perm"))
    elif node.op_type == CAST:
        target = ir.DataType(attribute(node, "to"))
        if target not in (ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.UINT16):
            return
        array = array.astype(target.numpy())
    else:
        return
    walk.exchange(node, array)


def refuse_open(walk: DequantizeWalk, model: ir.Model) -> None:
    """Reject integers that some node uses as numbers in a computation, by ModelError.

    A file that stores a tensor in integers defines how they are read: by a DequantizeLinear, or by an op with scales.
    """
    for node in model.graph:
        stores = node.op_type == QUANTIZE or node.op_type.startswith("QLinear")
        if not stores or node.outputs[0] not in walk.stored:
            continue
        readers = [u.node for u in node.outputs[0].uses()]
        plain = [n for n in readers if n.domain in ("", "ai.onnx") and not n.op_type.startswith(("QLinear", "Dynamic"))]
        if plain or (not readers and node.op_type == QUANTIZE):
            what = (
                f"{plain[0].op_type} {plain[0].name!r} reads its integers as numbers" if plain else "nothing reads it"
            )
            cast = bool(plain) and plain[0].op_type == CAST
            raise refused(
                node,
                f"it has no DequantizeLinear: {what}; legal after it are DequantizeLinear (or Cast, Sub, Mul by its "
                "zero point and scale), ops that have scales (QLinearConv), and ops that move or bound integers"
                + (CARRIED if cast else ""),
            )
