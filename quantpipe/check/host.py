"""Determine a model's needs on x86 processors without VNNI.

These add pairs of uint8 x int8 products in int16, where they saturate. With `isa: any` no pair can; other models need
onnxruntime's exact kernels there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quantpipe.graph.op_tables import DYNAMIC
from quantpipe.graph.view import Graph
from quantpipe.plan import UNSIGNED, kernels_with_wide_pairs
from quantpipe.types import HardwareSpec, Isa, QuantPlan, Topology

KEEP = "To keep int8, use hardware.isa=vnni"


def host_warning(graph: Graph, topology: Topology, plan: QuantPlan, spec: HardwareSpec) -> str | None:
    """Return a sentence where kernels of a model for onnxruntime's CPUs would saturate on some of them; else None."""
    nodes = kernels_with_wide_pairs(graph, topology, plan) if spec.runs_here else []
    if not nodes:
        own = [n.name for n in graph.nodes if n.op in DYNAMIC]
        remedy = None if spec.isa is Isa.ANY else "use hardware.isa=any"
        return _stored_unsigned(topology, plan, own, remedy) if remedy is None or own else None
    more = len(nodes) - 1
    first = nodes[0] + (f" and {more} other{'s' if more > 1 else ''}" if more else "")
    return (
        f"on x86 processors without VNNI, pairs of uint8 x int8 products of {first} can saturate in int16. The file "
        'names the session option that the model needs there ("session.x64quantprecision": "1", slower); with '
        "hardware.isa=any no pair saturates, and a default session computes the same integers on every processor"
    )


def _stored_unsigned(topology: Topology, plan: QuantPlan, own: Sequence[str], remedy: str | None) -> str | None:
    """Name the kernels whose given integers are exact everywhere as uint8 only, and the price of that.

    `own`: the model's nodes that quantize at run time. `remedy`: None means that it depends on the first weight.
    """
    rows = [row for row in plan.raised if row["reason"].endswith(UNSIGNED)]
    if not rows:
        return None
    channels = sum(row["channels"] for row in rows)
    kept = f"Exact kernels for int8 would change {own[0]}, which quantizes at run time" if own else KEEP
    return (
        f"int8 weights of {rows[0]['node']}{f' and {len(rows) - 1} more' if len(rows) > 1 else ''} would "
        f"saturate in int16 on x86 processors without VNNI ({channels} channels). They are stored as uint8 with zero "
        f"point 128: the same integers everywhere, in slower kernels. {kept}. To let "
        f"quantpipe choose weights that do not saturate, {remedy or _remedy(topology, plan, rows[0]['tensor'])}"
    )


def _remedy(topology: Topology, plan: QuantPlan, tensor: str) -> str:
    """Return what makes the integers of a weight free: they are the model's, have zero points, or are recovered."""
    site = topology.weight_of[tensor]
    if site.frozen or site.fixed is not None:
        return "use import.keep=scales"
    if np.any(plan.weights[tensor].zero_point != 1 << 7):
        return "use a schema with symmetric weights"
    return "search and recover again with this hardware file"
