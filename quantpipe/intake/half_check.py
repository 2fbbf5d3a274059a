"""Check on samples that the float32 model computes the same as the half-precision file.

Takes both models and feeds; gives sentences. onnxruntime runs the file as it is if it has kernels. It has few for
bfloat16; then onnx's reference runs the file if it is small. Half precision rounds, so the outputs differ, and the
sentences report by how much.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from quantpipe.arrays import Feeds
from quantpipe.errors import ModelError
from quantpipe.graph.execute import Session
from quantpipe.graph.external_weights import weight_bytes
from quantpipe.graph.io import STAGE, model_proto
from quantpipe.intake.half import HALVES, Halves
from quantpipe.intake.half_ends import cast_ends
from quantpipe.intake.output_difference import difference

ORDINARY = {"float16": 0.02, "bfloat16": 0.1}
"""Differences, as a share of the output's largest value, that rounding in these types alone may come to."""
LARGEST = {"float16": 65504.0, "bfloat16": 3.4e38}
SMALL_BYTES, SMALL_INPUT = 4 << 20, 1 << 17
"""Weights and elements of a sample up to which the reference, plain NumPy, runs a model within seconds."""

NUMPY = {ir.DataType.FLOAT16: np.dtype(np.float16), ir.DataType.BFLOAT16: np.dtype(ml_dtypes.bfloat16)}


def half_notes(model: ir.Model, single: ir.Model, halves: Halves, feeds: Feeds, *, where: str) -> list[str]:
    """Return sentences about a half-precision model that continues as float32; none without half precision.

    `feeds` are samples for the float32 model. Raises ModelError where numbers beyond half precision make the outputs
    infinite or undefined.
    """
    if not halves.types:
        return []
    kinds = " and ".join(halves.types)
    session = Session(single, where=where)
    found = session.run(feeds)
    if halves.broken and any(not np.isfinite(a).all() for a in found.values() if a.dtype.kind == "f"):
        raise ModelError(
            f"its {kinds} constants {', '.join(repr(name) for name in halves.broken[:3])} hold infinity or NaN, and so "
            f"do its outputs; {_range(halves)}, so the original float32 model may have larger values. Legal is that "
            "float32 model, or a model whose weights fit half precision",
            stage=STAGE,
            where=where,
        )
    said = f"the model is in {kinds} ({', '.join(f'{n} tensors of {k}' for k, n in halves.types.items())}): it is cast "
    kept = "inputs and outputs of the realized model are float16, as the file's" if halves.given else ""
    ends = [
        kept,
        "bfloat16 ones become float32, because onnxruntime takes no bfloat16 arrays from Python"
        if any(p.dtype is ir.DataType.BFLOAT16 for p in _ports(model))
        else "",
    ]
    notes = [said + "to float32, and all that follows is about that" + "".join(f"; {e}" for e in ends if e)]
    return [*notes, _compared(model, found, halves, feeds, where=where)]


def _compared(model: ir.Model, found: Feeds, halves: Halves, feeds: Feeds, *, where: str) -> str:
    kinds = " and ".join(halves.types)
    entering = {p.name: NUMPY[p.dtype] for p in model.graph.inputs if p.dtype in HALVES}
    with np.errstate(over="ignore"):
        narrow = {n: a.astype(entering[n]) if n in entering else a for n, a in feeds.items()}
    by = "run by onnxruntime"
    try:
        reference = _by_runtime(model, feeds, where)
    except ModelError as error:
        if not _is_small(model, feeds):
            return f"the {kinds} model was not compared with its float32 form: {error}"
        by = "run by onnx's reference, since onnxruntime has no kernels for it"
        try:
            reference = _by_reference(model, narrow)
        except Exception as fault:  # whatever NumPy makes of what it does not know
            return f"the {kinds} model was not compared with its float32 form: {error}; {type(fault).__name__}: {fault}"
    return _judged(reference, found, halves, by)


def _by_runtime(model: ir.Model, feeds: Feeds, where: str) -> Feeds:
    """Return the outputs of the model as the file has it.

    onnxruntime takes no bfloat16 arrays from Python and gives none, so such ports have Casts.
    """
    wide = {p.name or "": ir.DataType.FLOAT for p in _ports(model) if p.dtype is ir.DataType.BFLOAT16}
    return Session(cast_ends(model, wide), where=where).run(feeds)


def _by_reference(model: ir.Model, feeds: Feeds) -> Feeds:
    outputs = [o.name or "" for o in model.graph.outputs]
    values = ReferenceEvaluator(model_proto(model)).run(None, dict(feeds))
    return dict(zip(outputs, (np.asarray(v) for v in values), strict=True))


def _ports(model: ir.Model) -> list[ir.Value]:
    return [*model.graph.inputs, *model.graph.outputs]


def _is_small(model: ir.Model, feeds: Feeds) -> bool:
    elements = sum(np.asarray(a).size for a in feeds.values())
    return weight_bytes(model) <= SMALL_BYTES and elements <= SMALL_INPUT


def _judged(reference: Feeds, found: Feeds, halves: Halves, by: str) -> str:
    kinds = " and ".join(halves.types)
    lost = sum(int((~np.isfinite(_real(reference[n])) & np.isfinite(_real(a))).sum()) for n, a in found.items())
    if lost:
        return (
            f"in {kinds} ({by}) the model itself overflows: {lost} of its output values on the samples are infinite or "
            f"undefined, and not so in float32 ({_range(halves)}); what is quantized is the float32 model"
        )
    worst = difference({n: _real(a) for n, a in reference.items()}, found)
    if worst <= max(ORDINARY[kind] for kind in halves.types):
        return (
            f"on samples, the float32 model's outputs are within {worst:.2g} of the largest value of the {kinds} ones "
            f"({by})"
        )
    return (
        f"on samples, the float32 model's outputs differ by {worst:.2g} of the largest value from the {kinds} ones "
        f"({by}). This is more than rounding explains: the file overflows or loses precision inside. Compare its "
        "accuracy with the float32 model it was made from"
    )


def _real(array: np.ndarray) -> np.ndarray:
    return np.asarray(array).astype(np.float64) if array.dtype in NUMPY.values() else np.asarray(array)


def _range(halves: Halves) -> str:
    return " and ".join(f"{kind} ends at {LARGEST[kind]:g}" for kind in halves.types)
