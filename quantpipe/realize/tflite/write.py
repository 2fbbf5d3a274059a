"""Write a plan as a .tflite file, straight from its numbers: no float model in between, no calibration by TFLite."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quantpipe.errors import HardwareError
from quantpipe.graph.view import Graph, Node
from quantpipe.intake.tflite.layout import laid
from quantpipe.intake.tflite.read_tables import FUNCTIONS, METADATA
from quantpipe.lowering.fragments import ops_of
from quantpipe.oprules import Family
from quantpipe.realize.tflite import elements, metadata, moves, products, reals
from quantpipe.realize.tflite.walk import FORM, Placed, Refusal, TfliteWalk, Writer
from quantpipe.types import Form, Kernel, QuantPlan, Topology

WRITERS: Mapping[str, Writer] = {
    **products.WRITERS,
    **elements.WRITERS,
    **moves.WRITERS,
    **dict.fromkeys(ops_of(Family.LOOKUP), elements.function),
}
"""Op -> what writes it in integers."""

SHOWN = 12


@dataclass(frozen=True, eq=False)
class TfliteFile:
    """Hold a written file.

    `transposes`: How many transpositions no layout could avoid. `operators`: Operator -> how often. `tensors`: Stored
    tensor of the graph -> tensor of the file and the order of its axes. `inputs`: Input -> the same. `outputs`: Output
    -> the same.
    """

    content: bytes = field(repr=False)
    transposes: int
    operators: Mapping[str, int]
    tensors: Mapping[str, Placed]
    inputs: Mapping[str, Placed]
    outputs: Mapping[str, Placed]


def write_model(
    graph: Graph,
    topology: Topology,
    plan: QuantPlan,
    *,
    whole: bool = False,
    provenance: Mapping[str, Any] | None = None,
) -> TfliteFile:
    """Write a plan as a TFLite file.

    `whole`: inputs and outputs are integers, as far as the plan stores them. `provenance` is recorded in the file.
    Raises HardwareError for nodes that TFLite cannot hold, all of them with the reasons.
    """
    walk = TfliteWalk(graph, topology, plan, whole=whole)
    refused: list[str] = []
    for node in graph.nodes:
        if node.name in topology.fused_into:
            continue
        kernel = topology.kernel_of.get(node.name)
        try:
            _write(walk, node, kernel)
        except Refusal as error:
            refused.append(f"{node.name} ({node.op}): {error.reason}")
            for output in (kernel.output,) if kernel is not None else node.outputs:
                form = Form.QUANTIZED if kernel is not None and output in plan.quantizers else Form.FLOAT
                order = tuple(range(len(graph.shapes.get(output, ()))))
                if output in graph.shapes:
                    walk.keep(output, form, order, walk.make(output, order, form))
    if refused:
        raise _all_refused(refused)
    return _file(walk, provenance or {})


def _write(walk: TfliteWalk, node: Node, kernel: Kernel | None) -> None:
    if kernel is None:
        if node.name in walk.topology.table_of:
            raise walk.refused(
                "its table has a scale for each row (hardware.tables); hardware.tables=null leaves it float"
            )
        if all(walk.graph.is_constant(t) for t in node.inputs if t) and not node.inputs:
            raise walk.refused("it has no inputs")
        writer = reals.WRITERS.get(node.op)
        if writer is None or node.domain not in ("", "ai.onnx"):
            raise walk.refused(f"it stays in float, and the {FORM} form writes no {node.op} in float")
        writer(walk, node)
        return
    if kernel.form is not Form.QUANTIZED:
        raise walk.refused("its result leaves as an accumulator; legal is a stored type in `out` of the hardware file")
    integer = WRITERS.get(node.op)
    if integer is None:
        raise walk.refused(f"the {FORM} form has no way to write {node.op} in integers")
    integer(walk, node, kernel)


def _all_refused(refused: list[str]) -> HardwareError:
    more = f"; and {len(refused) - SHOWN} more" if len(refused) > SHOWN else ""
    legal = ", ".join(sorted(WRITERS))
    return HardwareError(
        f"a .tflite file cannot hold {len(refused)} of the model's nodes: {'; '.join(refused[:SHOWN])}{more}. Legal in "
        f"integers are {legal}; in float {', '.join(sorted(reals.WRITERS))}; another realize writes the others",
        stage="realize",
        where=FORM,
    )


def _file(walk: TfliteWalk, provenance: Mapping[str, Any]) -> TfliteFile:
    outputs = {}
    for info in walk.graph.outputs:
        own = Form.QUANTIZED if walk.whole and info.name in walk.plan.quantizers else Form.FLOAT
        outputs[info.name] = walk.any(info.name, own)
    for info in walk.graph.inputs:
        if info.name not in walk.inputs:
            walk.any(info.name, Form.FLOAT)  # an input that nothing reads stays an input
    tensors = {t: walk.any(t) for t in walk.plan.quantizers if not walk.graph.is_constant(t) and walk.orders(t)}
    inputs = {info.name: walk.inputs[info.name] for info in walk.graph.inputs}
    told = {
        **provenance,
        "inputs": {t: _port(walk, t, p) for t, p in inputs.items()},
        "outputs": {t: _port(walk, t, p) for t, p in outputs.items()},
        "tensors": {t: {"index": p.tensor, "axes": list(p.order)} for t, p in tensors.items()},
        FUNCTIONS: walk.functions,
    }
    known = {metadata.NAME: _own_metadata(walk, provenance)} if provenance else {}
    content = walk.file.build(
        {t: p.tensor for t, p in inputs.items()},
        {t: p.tensor for t, p in outputs.items()},
        "quantized by quantpipe",
        {METADATA: json.dumps(told).encode(), **known},
        free=walk.free and not walk.single,
    )
    names = provenance.get("class_names") or ()
    if any(_labelled(walk, info.name, names) for info in walk.graph.outputs):
        content = metadata.with_labels(content, names)
    return TfliteFile(content, walk.transposes, dict(walk.file.count), tensors, inputs, outputs)


def _own_metadata(walk: TfliteWalk, provenance: Mapping[str, Any]) -> bytes:
    """Return the file's own TensorFlow Lite metadata: how inputs are normalized, and which outputs are classes."""
    mean, std = metadata.normalization(provenance.get("preprocessing") or {})
    names = provenance.get("class_names") or ()
    inputs = []
    for info in walk.graph.inputs:
        real = walk.graph.dtypes.get(info.name, "float32").startswith("float")
        fits = real and len(mean) in (1, *walk.graph.shapes[info.name][1:2])
        inputs.append(metadata.Port(info.name, "an input", mean if fits else (), std if fits else ()))
    outputs = [metadata.Port(i.name, "an output", labelled=_labelled(walk, i.name, names)) for i in walk.graph.outputs]
    return metadata.written(str(provenance.get("version", "")), inputs, outputs)


def _labelled(walk: TfliteWalk, output: str, names: Sequence[str]) -> bool:
    """Return whether the last axis of an output has one element per class."""
    return bool(names) and tuple(walk.graph.shapes[output][-1:]) == (len(names),)


def _port(walk: TfliteWalk, tensor: str, placed: Placed) -> dict[str, Any]:
    """Return the facts that a caller needs to feed an input or read an output."""
    found: dict[str, Any] = {
        "index": placed.tensor,
        "axes": list(placed.order),
        "layout": placed.layout,
        "shape": list(laid(walk.graph.shapes[tensor], placed.order)),
    }
    q = walk.plan.quantizers.get(tensor)
    if q is not None:
        found |= {"scale": float(q.scale), "zero_point": q.zero_point, "dtype": str(q.dtype), "range": [q.qmin, q.qmax]}
    return found
