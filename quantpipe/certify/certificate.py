"""Write certificate.json.

It holds the claims of all kernels, what is only checked on samples, and where the model holds each tensor. The keys are
an interface, in `types/certificate_file.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantpipe.artifacts.digest import digest_array
from quantpipe.certify.claims import Claims
from quantpipe.certify.real_part import real_part, written_floats
from quantpipe.graph.view import Graph, Node
from quantpipe.lowering import Rendered
from quantpipe.lowering.embedding_table import OF_TABLES
from quantpipe.lowering.fragments import TRANSPOSED
from quantpipe.oprules import Family, rule_of
from quantpipe.types import (
    Device,
    HardwareSpec,
    Kernel,
    KernelPlan,
    Lookup,
    Move,
    ProofPart,
    QuantPlan,
    ReasonRow,
    Topology,
)
from quantpipe.types.certificate_file import CertificateSummary, CertifiedKernel, FloatNode, ModelClaims, WrittenNode

WINDOW = ("auto_pad", "dilations", "kernel_shape", "pads", "strides")
"""Attributes that convolutions and pools carry in every form."""


def certificate(
    graph: Graph, topology: Topology, plan: QuantPlan, spec: HardwareSpec, *, realized: Rendered, form: str
) -> ModelClaims:
    """Return all of certificate.json but its origin and the digests of the files that it is about."""
    claims = Claims(graph, topology, plan, spec, form)
    kernels: dict[str, CertifiedKernel] = {}
    for k in topology.kernels:
        if k.node in plan.kernels:
            attributes = _attributes(graph.by_name[k.node], plan.kernels[k.node])
            kernels[k.node] = {"op": k.op, **claims.of(k), "attributes": attributes}
            if parameters := _parameters(k, graph, plan.kernels[k.node]):
                kernels[k.node]["parameters"] = parameters
    real = [n for n in graph.nodes if n.name not in topology.kernel_of and n.name not in topology.fused_into]
    names = frozenset(n.name for n in real)
    written = written_floats(realized.model, names)
    unwritten = WrittenNode()
    floats: list[FloatNode] = [
        {"node": n.name, "op": n.op, "reason": str(topology.float_nodes.get(n.name, "it runs in float")),
         **written.get(n.name, unwritten)}
        for n in real
    ]  # fmt: skip
    return {
        "form": form,
        "values": {t: v for t, v in realized.integers.items() if not t.endswith(OF_TABLES)},
        "kernels": kernels,
        "float_nodes": floats,
        "summary": _summary(kernels, floats),
        **real_part(realized.model, topology, names),
    }


def _attributes(node: Node, numbers: KernelPlan) -> dict[str, Any]:
    """Return how windows move over a map, and how an op that only moves values does so, as plain data.

    What other ops say is written otherwise in some forms, or in the numbers.
    """
    whole = node.op in TRANSPOSED or isinstance(numbers, Move | Lookup | Device)
    windowed = any(name in node.attributes for name in WINDOW) and node.op not in TRANSPOSED
    names = tuple(node.attributes) if whole else (*WINDOW, "group") if windowed else ()
    return {name: node.attr(name) for name in sorted(names) if name in node.attributes}


def _parameters(kernel: Kernel, graph: Graph, numbers: KernelPlan) -> dict[str, str]:
    """Return the digests of constants that define how an op moves values (shapes, ends, repeats), by input port.

    A single float is a value that the op writes, and is among the numbers, as the bounds of a clamp are.
    """
    node = graph.by_name[kernel.node]
    rule = rule_of(node)
    if not isinstance(numbers, Move) or rule is None or rule.family is not Family.MOVE:
        return {}
    data = {operand.port for operand in kernel.operands}
    known = {p: graph.constant(t) for p, t in enumerate(node.inputs) if t and p not in data and graph.is_constant(t)}
    return {str(p): digest_array(a) for p, a in known.items() if a.dtype.kind in "iub" or a.size != 1}


def _summary(kernels: Mapping[str, CertifiedKernel], floats: list[FloatNode]) -> CertificateSummary:
    proved = sum(bool(k["proved"]) for k in kernels.values())
    return {
        "kernels": len(kernels),
        "proved": proved,
        "checked": len(kernels) - proved,
        "float_nodes": len(floats),
    }


def proof_summary(claims: ModelClaims, samples: int) -> ProofPart:
    """Return the report's part on the certificate.

    That is how much is proved, on how many samples the rest is checked, and why it is not proved.
    """
    left: list[ReasonRow] = [
        {"node": node, "reason": entry["reason"] or ""}
        for node, entry in claims["kernels"].items()
        if not entry["proved"]
    ]
    narrowed = [c for k in claims["kernels"].values() for c in (k.get("requantize"), k.get("narrowing")) if c]
    nodes: list[ReasonRow] = [{"node": f["node"], "reason": f["reason"]} for f in claims["float_nodes"]]
    summary = claims["summary"]
    return {
        "kernels": summary["kernels"],
        "proved": summary["proved"],
        "checked": summary["checked"],
        "float_nodes": summary["float_nodes"],
        "samples": samples,
        "departing": sum(claim.get("departing") or 0 for claim in narrowed),
        "on_samples": left + nodes,
    }
