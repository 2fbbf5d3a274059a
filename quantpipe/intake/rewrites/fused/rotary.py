"""Rotary positions (Su et al. 2021): pairs of features turned by an angle that grows with the position.

A turned row is x · C + x' · S, where x' holds the two features of each pair exchanged. C holds the cosine of a pair for
both features, and S the sine, negated for the first. Both are made of the tables of the file when a model is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from quantpipe.intake.rewrites.fused.body import FusedBody, light
from quantpipe.intake.rewrites.fused.heads import counted, length, width


@dataclass(frozen=True, eq=False)
class Angles:
    """Hold C and S [batch or 1, length, 2·pairs], and how pairs lie: next to each other, or a half apart."""

    cosines: ir.Value
    sines: ir.Value
    features: int
    neighbours: bool


def rotary_embedding(body: FusedBody) -> bool:
    """Write ONNX's RotaryEmbedding: tables of all positions with their numbers, or rows of the angles themselves."""
    return _embedding(body, tables=(1, 2), places=body.input(3))


def ms_rotary_embedding(body: FusedBody) -> bool:
    """Write com.microsoft.RotaryEmbedding: positions are numbers for each row, or the first number for all samples."""
    places, data = body.input(1), body.input(0)
    if places is None or data is None or int(body.attr("is_packed_batching", 0)) or body.attr("scale", 1.0) != 1.0:
        return False
    axes = body.rank(places)
    if axes not in (1, 2):
        return False
    if axes == 1:
        rows = counted(body, length(body, data, 1 if body.rank(data) == 3 else 2))
        places = body.unsqueeze(body("Add", rows, places), 0)
    return _embedding(body, tables=(2, 3), places=places)


def _embedding(body: FusedBody, *, tables: tuple[int, int], places: ir.Value | None) -> bool:
    data, axes, features = body.input(0), body.rank(body.input(0)), width(body, body.input(0))
    if data is None or axes not in (3, 4) or features is None:
        return False
    found = angles(body, tables, places, neighbours=bool(int(body.attr("interleaved", 0))))
    if found is None:
        return False
    heads = int(body.attr("num_heads", 0))
    if axes == 4:
        body.replace(0, turned(body, data, features, found, heads_axis=1))
        return True
    size = features // heads if heads else found.features
    made = turned(body, body.reshape(data, 0, 0, features // size, size), size, found, heads_axis=2)
    body.replace(0, body.reshape(made, 0, 0, features))
    return True


def angles(body: FusedBody, tables: tuple[int, int], places: ir.Value | None, *, neighbours: bool) -> Angles | None:
    """Write C and S for the rows at some places; None where the size of the tables is not known."""
    cosine, sine = (body.input(port) for port in tables)
    pairs = width(body, cosine)
    if cosine is None or sine is None or pairs is None:
        return None
    both = [_doubled(body, cosine, cosine, pairs, neighbours=neighbours)]
    both.append(_doubled(body, _negated(body, sine), sine, pairs, neighbours=neighbours))
    if places is not None:
        both = [body("Gather", table, places, axis=0) for table in both]
    return Angles(both[0], both[1], 2 * pairs, neighbours)


def turned(body: FusedBody, data: ir.Value, size: int, by: Angles, *, heads_axis: int) -> ir.Value:
    """Write rows of four axes, each turned by its angles; features beyond those that turn stay as they are."""
    part = data if by.features == size else body.part(data, 3, 0, by.features)
    cosines, sines = (body.unsqueeze(value, heads_axis) for value in (by.cosines, by.sines))
    exchanged = _exchanged(body, part, by)
    made = body("Add", body("Mul", part, cosines), body("Mul", exchanged, sines))
    if part is data:
        return made
    return body("Concat", made, body.part(data, 3, by.features, size), axis=3)


def _exchanged(body: FusedBody, data: ir.Value, by: Angles) -> ir.Value:
    """Write each pair in reverse. Neighbours get an axis of their own for it, in place of the positions'."""
    if not by.neighbours:
        half = by.features // 2
        return body("Concat", body.part(data, 3, half, by.features), body.part(data, 3, 0, half), axis=3)
    pairs = body.reshape(data, 0, 0, -1, 2)
    made = body("Concat", body.part(pairs, 3, 1, 2), body.part(pairs, 3, 0, 1), axis=3)
    return body.reshape(made, 0, 0, -1, by.features)


def _doubled(body: FusedBody, first: ir.Value, second: ir.Value, pairs: int, *, neighbours: bool) -> ir.Value:
    """Return a table of the first features of all pairs and one of the second as one table; constants as constants."""
    arrays = [light(value) for value in (first, second)]
    if all(array is not None for array in arrays):
        stacked = np.stack(arrays, -1).reshape(*arrays[0].shape[:-1], -1) if neighbours else np.concatenate(arrays, -1)
        return body.number(stacked, arrays[0].dtype)
    if not neighbours:
        return body("Concat", first, second, axis=-1)
    columns = (body.unsqueeze(value, -1) for value in (first, second))
    axes = body.rank(second) or 0
    return body.reshape(body("Concat", *columns, axis=-1), *[0] * (axes - 1), 2 * pairs)


def _negated(body: FusedBody, value: ir.Value) -> ir.Value:
    array = light(value)
    return body("Neg", value) if array is None else body.number(-array, array.dtype)
