"""What a model needs where it is deployed on x86 processors without VNNI.

These add pairs of uint8 x int8 products in int16, where they saturate. With `isa: any` no pair can; other models need
onnxruntime's exact kernels there.
"""

from __future__ import annotations

from quantpipe.graph.view import Graph
from quantpipe.plan import kernels_with_wide_pairs
from quantpipe.types import HardwareSpec, QuantPlan, Topology


def host_warning(graph: Graph, topology: Topology, plan: QuantPlan, spec: HardwareSpec) -> str | None:
    """Return a sentence where kernels of a model for onnxruntime's CPUs would saturate on some of them; else None."""
    nodes = kernels_with_wide_pairs(graph, topology, plan) if spec.runs_here else []
    if not nodes:
        return None
    more = len(nodes) - 1
    first = nodes[0] + (f" and {more} other{'s' if more > 1 else ''}" if more else "")
    return (
        f"on x86 processors without VNNI, pairs of uint8 x int8 products of {first} can saturate in int16. The file "
        'names the session option that the model needs there ("session.x64quantprecision": "1", slower); with '
        "hardware.isa=any no pair saturates, and a default session computes the same integers on every processor"
    )
