"""Count the sums that overflowed their accumulator in the simulated model.

There is one entry per accumulator that some input can overflow.
"""

from __future__ import annotations

import numpy as np

from quantpipe.calibrate.passes import run_size
from quantpipe.graph.execute import Session
from quantpipe.graph.normalize import expose
from quantpipe.graph.view import Graph
from quantpipe.simulate.simulator import Simulation, bind
from quantpipe.types import Accumulate, DType, Limit, Overflow, OverflowRow, QuantPlan, Samples, Sum, Topology


def overflow_report(
    graph: Graph, topology: Topology, plan: QuantPlan, simulation: Simulation, *, samples: Samples
) -> list[OverflowRow]:
    """Count overflows per accumulator, in graph order.

    A row has its type, what it does, the static `bound` of its sums, how many `elements` were seen, how many
    `overflowed`, and that `share`.
    """
    found = {}
    for kernel in topology.kernels:
        numbers = plan.kernels.get(kernel.node)
        limit = numbers.limit if isinstance(numbers, Accumulate | Sum) else None
        if isinstance(numbers, Accumulate) and numbers.pairs is not None:
            limit = Limit(DType.INT16, Overflow.SATURATE)
        if limit is not None and isinstance(numbers, Accumulate | Sum) and kernel.output in simulation.limits:
            found[kernel.output] = _entry(kernel.node, kernel.output, limit, numbers.bound)
    if not found:
        return []
    names = [n for t in found for n in simulation.limits[t]]
    model = bind(simulation.rendered.model, simulation.weights)
    session = Session(expose(model, list(dict.fromkeys(names))), where="simulated model")
    for batch in samples.batches(run_size(graph, [*found, *found])):
        values = session.run({**batch.inputs, **simulation.scalars}, names)
        for tensor, entry in found.items():
            before, after = (values[n].astype(np.float64) for n in simulation.limits[tensor])
            entry["elements"] += before.size
            entry["overflowed"] += int(np.count_nonzero(before != after))
    for entry in found.values():
        entry["share"] = entry["overflowed"] / max(entry["elements"], 1)
    return list(found.values())


def _entry(node: str, tensor: str, limit: Limit, bound: int) -> OverflowRow:
    return {
        "node": node,
        "tensor": tensor,
        "accumulator": limit.label,
        "overflow": limit.overflow.value,
        "bound": bound,
        "elements": 0,
        "overflowed": 0,
        "share": 0.0,
    }
