"""A model that onnxruntime runs, made of one that it does not run as it is written.

Ops without a kernel are written out by their functions, and models of the first opsets are brought to a newer one. Both
are ONNX's own definitions; onnx's reference compares them with the original, if it is small enough.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from quantpipe.arrays import Feeds
from quantpipe.errors import ModelError
from quantpipe.graph.execute import Session
from quantpipe.graph.external_weights import copied, weight_bytes, with_weights, without_weights
from quantpipe.graph.io import model_proto
from quantpipe.graph.runtime_reasons import failing_node, lacks_kernel, runtime_remedy
from quantpipe.intake.functions import all_written_out
from quantpipe.intake.opsets import MOST_OPSET, lower_opset, raise_to
from quantpipe.intake.output_difference import difference
from quantpipe.intake.rewrites.fused import fused_written_out
from quantpipe.intake.rewrites.recurrent import time_first

log = logging.getLogger(__name__)

FIRST_OPSET, NEXT_OPSET = 7, 17
"""Below the first, onnxruntime lacks kernels; the next is what such models are brought to."""
WIDE_OPSET = 21
"""What newer models are brought to where their ops have no kernel in the newest opsets."""
SMALL_BYTES, SMALL_INPUT = 4 << 20, 1 << 17
"""Weights and elements of a sample up to which the reference, plain NumPy, runs a model within seconds."""
TOLERANCE = 1e-3
RUNS = (
    "Legal are models that onnxruntime loads and runs on the samples; model.fixed makes a constant of an input that "
    "decides about shapes"
)


def runnable(model: ir.Model, feeds: Feeds, where: str) -> tuple[ir.Model, Session, list[str]]:
    """Return a model that onnxruntime runs on the samples, its session, and sentences about changes.

    The model itself is the result if onnxruntime runs it. Raises ModelError with onnxruntime's reason where neither the
    model nor its function bodies run, and where the bodies give other numbers.
    """
    try:
        return model, _ran(model, feeds, where), []
    except ModelError as error:
        for change in (_newer, partial(_older, opset=MOST_OPSET), partial(_older, opset=WIDE_OPSET)):
            changed, done = change(model, feeds)
            if changed is model:
                continue
            with suppress(ModelError):
                session = _ran(changed, feeds, where)
                break
        else:
            raise _explained(error, where, model) from error
        compared = _compared(model, session, feeds, where)
        return changed, session, [f"{done}, since onnxruntime does not run it as it is; {compared}"]


def _ran(model: ir.Model, feeds: Feeds, where: str) -> Session:
    session = Session(model, where=where)
    found = session.run(feeds)
    if other := [name for name, value in found.items() if not isinstance(value, np.ndarray)]:
        raise ModelError(
            f"its output {other[0]} is a sequence, a map or optional; legal are tensors, which SequenceAt or "
            "ConcatFromSequence after it gives",
            stage="run",
            where=where,
        )
    return session


def _newer(model: ir.Model, feeds: Feeds) -> tuple[ir.Model, str]:
    """Return (the model with ops rewritten where possible, a note on the changes)."""
    version = model.graph.opset_imports.get("", 1)
    try:
        newer = _converted(model, feeds) if version < FIRST_OPSET else model
        plain = fused_written_out(newer)
        timed = time_first(plain)
        changed = all_written_out(timed)
    except Exception as error:  # what onnx's tools do not know; onnxruntime's reason is the one to give
        log.debug("written otherwise: %s", error)
        return model, ""
    said = f"the model was brought from opset {version} to {NEXT_OPSET} by onnx's converter"
    done = [said] if newer is not model else []
    if plain is not newer:
        done.append(f"{', '.join(_gone(newer, plain))} are written as ops of ONNX")
    if timed is not plain:
        done.append("recurrent layers were given time as their first axis")
    if changed is not timed:
        done.append(f"{', '.join(_gone(timed, changed))} are written out by ONNX's own functions")
    return changed, " and ".join(done)


def _older(model: ir.Model, feeds: Feeds, opset: int) -> tuple[ir.Model, str]:
    """Return (the model in an older opset if it is in a newer one and the converter knows its ops, a note)."""
    try:
        lower = lower_opset(model, opset)
    except Exception as error:  # the converter refuses in many ways
        log.debug("not in opset %d: %s", opset, error)
        return model, ""
    version = model.graph.opset_imports.get("", 1)
    return lower, f"the model was brought from opset {version} to {opset} by onnx's converter"


def _gone(before: ir.Model, after: ir.Model) -> list[str]:
    """Return the ops that a model has no more."""
    return sorted({n.op_type for n in before.graph} - {n.op_type for n in after.graph})


def _converted(model: ir.Model, feeds: Feeds) -> ir.Model:
    """Return the model in a newer opset, with the samples' shapes: the converter must know every shape for old ops."""
    closed = copied(model)
    ports = {value.name: value.shape for value in (*closed.graph.inputs, *closed.graph.outputs)}
    for value in closed.graph.inputs:
        value.shape = ir.Shape(feeds[value.name or ""].shape) if value.name in feeds else value.shape
    proto, held = without_weights(closed)
    known = with_weights(onnx.shape_inference.infer_shapes(proto), held)
    newer = raise_to(known, NEXT_OPSET)
    for value in (v for node in newer.graph for v in node.outputs):
        value.shape = None  # those of the samples
    for value in (*newer.graph.inputs, *newer.graph.outputs):
        value.shape = ports[value.name]
    return newer


def _compared(model: ir.Model, session: Session, feeds: Feeds, where: str) -> str:
    elements = sum(np.asarray(a).size for a in feeds.values())
    if weight_bytes(model) > SMALL_BYTES or elements > SMALL_INPUT:
        return "it is too large to be compared by onnx's reference"
    names = [o.name or "" for o in model.graph.outputs]
    try:
        values = ReferenceEvaluator(model_proto(model)).run(None, dict(feeds))
    except Exception as error:  # whatever NumPy makes of what it does not know
        return f"onnx's reference does not run the original ({type(error).__name__}), so that they were not compared"
    worst = difference(dict(zip(names, (np.asarray(v) for v in values), strict=True)), session.run(feeds))
    if worst > TOLERANCE:
        raise ModelError(
            f"written as its ONNX function, its outputs differ from onnx's reference by {worst:.2g} of the largest "
            "value; legal are models with ops for which onnxruntime has kernels",
            stage="model",
            where=where,
        )
    return f"by onnx's reference, its outputs are within {worst:.2g} of the largest value of the original's"


def _explained(error: ModelError, where: str, model: ir.Model) -> ModelError:
    text = str(error)
    if not lacks_kernel(error):
        remedy = _given_numbers(error, model) or ("" if runtime_remedy(error) or "; legal" in text else f". {RUNS}")
        return ModelError(f"{text.split(f'{where}: ', 1)[-1].rstrip('. ')}{remedy}", stage="run", where=where)
    return ModelError(
        f"{text.split(f'{where}: ', 1)[-1]}. No ONNX function could replace the op. Legal are models with ops that "
        "onnxruntime has kernels for, or that ONNX defines by such ops, and custom ops of a library that "
        "model.custom_ops names",
        stage="run",
        where=where,
    )


def _given_numbers(error: ModelError, model: ir.Model) -> str | None:
    """Return the inputs of the model that a failing node reads as numbers of its own: sizes, axes, divisors."""
    failing = failing_node(error)
    if failing is None:
        return None
    name, op = failing
    nodes = [n for n in model.graph if n.op_type == op and (not name or n.name == name)]
    if len(nodes) != 1:
        return None
    given = [v for v in nodes[0].inputs[1:] if v is not None and v in model.graph.inputs]
    if not given:
        return None
    known = [f"{v.name} {list(v.shape.numpy())}" if v.shape is not None and v.shape.is_static() else str(v.name)
             for v in given]  # fmt: skip
    first = given[0]
    count = int(np.prod(first.shape.numpy())) if first.shape is not None and first.shape.is_static() else 1
    value = "VALUE" if not first.shape else f"[{', '.join(['VALUE'] * min(count, 4))}{', …' if count > 4 else ''}]"
    return (
        f". The model has inputs for {', '.join(known)} of the node, and a sample's numbers may not be legal there. "
        f"Legal are samples with such numbers, or constants: 'model.fixed={{{first.name}: {value}}}'"
    )
