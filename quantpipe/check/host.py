"""Whether the CPU at hand, left to itself, computes what a plan says.

x86 CPUs without VNNI add pairs of uint8 x int8 products in int16, where they saturate. quantpipe has onnxruntime run
its slower, exact kernels there, so that a device's figures do not depend on the machine that measures them; but whoever
deploys the model on such a CPU has to ask for these, too.
"""

from __future__ import annotations

from quantpipe.graph.execute import pairs_saturate
from quantpipe.graph.view import Graph
from quantpipe.plan.pairs import needs_wide_pairs
from quantpipe.types import Accumulate, QuantPlan, Topology


def host_warning(graph: Graph, topology: Topology, plan: QuantPlan) -> str | None:
    """Return a sentence where kernels of the plan would saturate on this CPU; None where it computes them exactly."""
    if not pairs_saturate():
        return None
    nodes = [
        kernel.node
        for kernel in topology.kernels
        if isinstance(made := plan.kernels.get(kernel.node), Accumulate)
        and needs_wide_pairs(
            graph, topology, kernel, plan.weights[made.weight], data=plan.quantizers[kernel.operands[0].tensor]
        )
    ]
    if not nodes:
        return None
    more = len(nodes) - 1
    first = nodes[0] + (f" and {more} other{'s' if more > 1 else ''}" if more else "")
    return (
        "this machine's CPU has no VNNI: left to itself it adds pairs of uint8 x int8 products in int16, and those of "
        f"{first} can saturate. quantpipe has onnxruntime run its exact kernels, so all figures are those of the "
        "device described; deployed on such a CPU, the model needs the session option "
        '"session.x64quantprecision": "1", or give hardware.isa=avx2 hardware.weights.reduce_range=true, with which '
        "nothing saturates"
    )
