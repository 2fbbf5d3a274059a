"""Restore the float model of a quantized one, and the grids that the file gives to its tensors and weights.

Takes a model in which integers represent real values: QuantizeLinear and DequantizeLinear (QDQ), ops with scales
(QOperator), integer products after DynamicQuantizeLinear, packed weights, QONNX's nodes. Gives the same network on real
values, whose constants are the dequantized ones. Nodes without a known float form stay as they are, and are islands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import onnx_ir as ir
import onnx_ir.passes.common as common_passes

from quantpipe.graph.external_weights import copied
from quantpipe.graph.op_tables import INTEGER_OPS
from quantpipe.graph.session_options import AS_REAL_NUMBERS, carried, carry
from quantpipe.intake.quantized.dynamic import dynamic_quantize, fused_product, integer_product, packed_product
from quantpipe.intake.quantized.qdq import dequantize, fold, limit, move, multiplied, pad, quantize, refuse_open
from quantpipe.intake.quantized.qonnx import as_qdq
from quantpipe.intake.quantized.qoperator import integer_op
from quantpipe.intake.quantized.quantized_ops import (
    CAST,
    CHOOSING,
    DEQUANTIZE,
    DOMAINS,
    DYNAMIC_MATMUL,
    DYNAMIC_QUANTIZE,
    INTEGER_PRODUCTS,
    LIMITS,
    NBITS,
    ON_INTEGERS,
    PAD,
    QONNX,
    QUANTIZE,
    TO_FLOAT,
)
from quantpipe.intake.quantized.walk import DequantizeWalk, Restored
from quantpipe.types import GivenTensor, GivenWeight

Step = Callable[[DequantizeWalk, ir.Node], None]

READERS: Mapping[str, Step] = {
    **dict.fromkeys(INTEGER_OPS, integer_op),
    **dict.fromkeys((*ON_INTEGERS, *CHOOSING), move),
    **dict.fromkeys(LIMITS, limit),
    PAD: pad,
    **dict.fromkeys(INTEGER_PRODUCTS, integer_product),
    QUANTIZE: quantize,
    DEQUANTIZE: dequantize,
    CAST: multiplied,
    DYNAMIC_QUANTIZE: dynamic_quantize,
    DYNAMIC_MATMUL: fused_product,
    TO_FLOAT: fused_product,
    NBITS: packed_product,
}
"""Op -> how its integers are read."""

MARKS = frozenset(READERS) - {*ON_INTEGERS, *CHOOSING, *LIMITS, CAST, PAD}
"""Ops that a model without integers does not have."""


def is_quantized(model: ir.Model) -> bool:
    """Return whether some node of the main graph reads or makes integers that represent real values."""
    return any(n.domain in QONNX or (n.op_type in MARKS and n.domain in DOMAINS) for n in model.graph)


def runnable(model: ir.Model) -> ir.Model:
    """Return the model as onnxruntime runs it: QONNX's nodes, which it does not have, are written in ONNX's own.

    They are functions of real values, biases included, whatever integers the runtime would make of these.
    """
    copy = copied(model)
    if not as_qdq(copy, exact=True):
        return model
    carry(copy, {**carried(copy), **AS_REAL_NUMBERS})
    return copy


def restore(model: ir.Model) -> Restored:
    """Return the float model of a quantized one, which stays as it is, and the grids that the file gives.

    Raises ModelError for a file that contradicts itself.
    """
    copy = copied(model)
    common_passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(copy)
    common_passes.TopologicalSortPass()(copy)
    walk = DequantizeWalk(copy)
    if as_qdq(copy):
        walk.forms["QONNX"] = None
    for node in list(copy.graph):
        if node.domain not in DOMAINS:
            continue
        fold(walk, node)
        step = READERS.get(node.op_type)
        if step is not None:
            step(walk, node)
    for value in list(copy.graph.outputs):
        known = walk.stored.get(value)
        producer = value.producer()
        if known is not None and producer is not None and producer.op_type != DYNAMIC_QUANTIZE:
            walk.replace(value, known.real, producer)
    common_passes.RemoveUnusedNodesPass()(copy)
    refuse_open(walk, copy)
    forms = [f for f in walk.forms if f != "QDQ" or "QONNX" not in walk.forms]
    return Restored(copy, tuple(forms), _tensors(walk), _weights(walk), _dynamic(walk), _clamps(walk))


def _tensors(walk: DequantizeWalk) -> tuple[GivenTensor, ...]:
    """Return one entry per real value, with its narrowest grid: bounded integers have fewer bits."""
    found: dict[str, GivenTensor] = {}
    for integers, stored in walk.stored.items():
        grid, name = stored.grid, stored.real.name or ""
        if grid is None or grid.dtype.bits > 16:
            continue
        before = found.get(name)
        names = (*(before.stored if before is not None else ()), walk.integers[integers])
        if before is not None and before.grid.high - before.grid.low <= grid.high - grid.low:
            grid = before.grid
        found[name] = GivenTensor(name, grid, names)
    return tuple(found.values())


def _weights(walk: DequantizeWalk) -> tuple[GivenWeight, ...]:
    """Return one entry per real constant, likewise."""
    found = []
    for real, weight in walk.weights.items():
        grids = [s.grid for s in walk.stored.values() if s.real is real and s.grid is not None]
        grid = min(grids, key=lambda g: g.high - g.low) if grids else weight.grid
        values = weight.values.clip(grid.low, grid.high) if grids else weight.values
        found.append(replace(weight, tensor=real.name or "", grid=grid, values=values))
    return tuple(found)


def _dynamic(walk: DequantizeWalk) -> tuple[str, ...]:
    return tuple(dict.fromkeys(real.name or "" for real in walk.dynamic.values()))


def _clamps(walk: DequantizeWalk) -> tuple[str, ...]:
    made = {v for node in walk.graph for v in node.outputs}
    return tuple(clamp.name or "" for clamp in walk.clamped.values() if clamp in made)
