"""What a golden file holds of a run: the decisions, and every number of the integer model, as plain data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
from onnx import numpy_helper

from quantpipe.artifacts import digest_array, plain
from quantpipe.pipeline.plan_file import plan_payload
from quantpipe.types import Topology
from tests.golden.cases import CASES, Case

FOLDER = Path(__file__).parent / "plans"

LARGE = 80
"""Elements from which on an array of the model is named by its digest where it may be."""


def file_of(name: str) -> Path:
    """The golden file of a case."""
    return FOLDER / f"{name}.json"


def content_of(name: str) -> dict[str, Any]:
    """Run a case up to its integer model, and say what came out."""
    case = CASES[name]
    pipeline = case.pipeline()
    annotation = pipeline.annotate()
    outcome = pipeline.recover()
    realization = pipeline.realize()
    recovers = case.options.get("recover", "none") != "none"
    payload = plan_payload(realization.plan, annotation.topology)
    strategy = outcome.strategy
    found: dict[str, Any] = {
        "structure": _structure(annotation.topology) | {"options": {c.key: c.options for c in annotation.space}},
        "strategy": {
            "bits": strategy.bits,
            "ranges": {key: [r.low, r.high] for key, r in strategy.ranges.items()},
            "weights": strategy.weights,
            "decided": dict(strategy.structure.decided),
        },
        "plan": {key: _by_name(part) for key, part in payload.items()},
        "model": _model(realization.model, case, exact_weights=not recovers),
    }
    if recovers:
        for weight, array in realization.plan.weights.items():
            found["plan"]["weights"][weight]["values"] = array.values.ravel().tolist()
    if recovers:
        found["recovery"] = {"steps": {s["step"]: {"kept": s["kept"]} for s in outcome.recovery["steps"]}}
    if "search" in case.options:
        found["search"] = {"evaluations": {"count": outcome.report["evaluations"]}}
    result: dict[str, Any] = plain(found)
    return result


def _structure(topology: Topology) -> dict[str, Any]:
    return {
        "nodes": topology.node_conds,
        "edges": topology.edge_conds,
        "float_nodes": dict.fromkeys(topology.float_nodes, True),
        "kernels": {k.node: [k.op, k.form, list(k.fused), [o.rescaled for o in k.operands]] for k in topology.kernels},
        "groups": {g.key: [g.dtype, g.max_bits, g.min_bits, list(g.tensors)] for g in topology.groups},
        "sites": {w.tensor: [w.dtype, w.max_bits, w.min_bits, w.axis] for w in topology.weights},
    }


def _model(model: onnx.ModelProto, case: Case, exact_weights: bool) -> dict[str, Any]:
    """The nodes of the realized model, and its constants: by digest where they have to be equal to the last bit."""
    arrays = {}
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        by_digest = case.exact or (exact_weights and array.size >= LARGE and array.dtype.itemsize == 1)
        content = digest_array(array)[:23] if by_digest else array.ravel().tolist()
        arrays[tensor.name] = [str(array.dtype), list(array.shape), content]
    return {"nodes": {node.name: _node(node) for node in model.graph.node}, "initializers": arrays}


def _node(node: onnx.NodeProto) -> list[Any]:
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    words = {name: value.decode() if isinstance(value, bytes) else value for name, value in attributes.items()}
    return [node.op_type, list(node.input), list(node.output), words]


def _by_name(part: Any) -> dict[str, Any]:
    """A list as a mapping, so that each entry has a line of its own."""
    return dict(part) if isinstance(part, Mapping) else {f"{i}": entry for i, entry in enumerate(part)}


def as_json(content: Mapping[str, Any]) -> str:
    """Sorted, one line for each edge, tensor, kernel and constant. A number is written so that it reads back as the
    same."""
    parts = []
    for part, sections in sorted(content.items()):
        blocks = []
        for section, entries in sorted(sections.items()):
            lines = [f"   {json.dumps(key)}: {json.dumps(value, sort_keys=True)}" for key, value in _sorted(entries)]
            body = "{\n" + ",\n".join(lines) + "\n  }" if lines else "{}"
            blocks.append(f"  {json.dumps(section)}: {body}")
        parts.append(f" {json.dumps(part)}: {{\n" + ",\n".join(blocks) + "\n }")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _sorted(entries: Any) -> list[tuple[str, Any]]:
    return sorted(entries.items())
