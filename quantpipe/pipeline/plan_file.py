"""Write plan.json from a plan.

It holds every number of the integer model except the integer weights, which are named by digest (they are in
model.onnx). The keys are an interface: docs/artifacts.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.artifacts import digest_array
from quantpipe.types import (
    MULTIPLIER_BITS,
    Accumulate,
    Average,
    Contract,
    Device,
    FixedPoint,
    Kernel,
    KernelPlan,
    Limit,
    Lookup,
    Move,
    Product,
    Program,
    QuantPlan,
    Requantize,
    Step,
    StepOp,
    Sum,
    Term,
    Topology,
    WeightTensor,
)


def plan_payload(plan: QuantPlan, topology: Topology) -> dict[str, Any]:
    """Return all of plan.json but its origin."""
    weighted = {k.node: {"op": k.op, "weight": k.weight} for k in topology.weighted}
    return {
        "quantizers": {
            t: {
                "scale": _number(q.scale),
                "zero_point": q.zero_point,
                "dtype": q.dtype,
                "bits": q.bits,
                "range": [q.qmin, q.qmax],
            }
            for t, q in plan.quantizers.items()
        },
        "weights": {
            t: {
                "scale": digest_array(w.scale) if w.has_real_blocks else _number(w.scale),
                "zero_point": 0 if w.has_real_blocks else w.zero.tolist(),
                "axis": w.axis,
                "channel_axis": topology.weight_of[t].channel_axis,
                "dtype": w.dtype,
                "bits": w.bits,
                "values": digest_array(w.values),
            }
            | _blocks(w)
            for t, w in plan.weights.items()
        },
        **({"tables": _tables(plan, topology)} if plan.tables else {}),
        "constants": {t: digest_array(values) for t, values in plan.constants.items()},
        "accumulators": {t: _number(scale) for t, scale in plan.raw_scales.items()},
        "narrowings": {t: _requantize(r) for t, r in plan.narrowings.items()},
        "kernels": {n: _placed(topology.kernel_of[n], k) | _kernel(k) for n, k in plan.kernels.items()},
        **({"weighted": weighted} if weighted else {}),
        **({"loops": _loops(plan, topology)} if plan.loops else {}),
        **({"caches": _caches(topology)} if topology.caches else {}),
        "rescales": list(plan.rescales),
        "raised": list(plan.raised),
    }


def _blocks(weight: WeightTensor) -> dict[str, Any]:
    """Return the block layout of a weight, if it is divided into blocks."""
    grid = weight.block
    if grid is None:
        return {}
    if weight.has_real_blocks:
        return {
            "block": {"size": grid.size, "zero_point": digest_array(grid.zero_point), "codes": [grid.low, grid.high]}
        }
    zero = grid.zero_point.tolist() if np.any(grid.zero_point) else 0
    codes = [grid.low, grid.high]
    return {"block": {"size": grid.size, "multiplier": grid.multiplier.tolist(), "zero_point": zero, "codes": codes}}


def _loops(plan: QuantPlan, topology: Topology) -> dict[str, Any]:
    """Return the products of states in the body of each loop."""
    return {
        node: {
            "state": topology.loop_of[node].state,
            **({"carried": list(topology.loop_of[node].carried)} if topology.loop_of[node].carried else {}),
            "products": [
                {"node": p.node, "weight": p.weight, "scale": _number(p.scale), "accumulator_bound": p.bound}
                for p in products
            ],
        }
        for node, products in plan.loops.items()
    }


def _caches(topology: Topology) -> list[dict[str, Any]]:
    """Return the caches whose inputs and outputs are integers; their numbers are those of the quantizers."""
    return [
        {"input": c.past, "output": c.present, "stored": c.dtype, "holds": "keys" if c.keys else "values"}
        for c in topology.caches
    ]


def _tables(plan: QuantPlan, topology: Topology) -> dict[str, Any]:
    """Return how each look-up table is stored; its numbers, one or two a row, by digest."""
    nodes = {site.tensor: site.nodes for site in topology.tables}
    return {
        t: {
            "shape": list(table.shape),
            "nodes": list(nodes[t]),
            "bits": table.bits,
            "dtype": table.dtype,
            "numbers": table.numbers,
            "layout": table.layout,
            "values": digest_array(table.values),
            "scale": digest_array(table.scale),
            "offset": None if table.offset is None else digest_array(table.offset),
        }
        for t, table in plan.tables.items()
    }


def _placed(kernel: Kernel, numbers: KernelPlan) -> dict[str, Any]:
    """Return a kernel's inputs (of an op that only moves values, with their ports) and outputs."""
    moves = isinstance(numbers, Move)
    reads = [{"tensor": o.tensor, "form": o.form} | ({"port": o.port} if moves else {}) for o in kernel.operands]
    made = {"tensor": kernel.output, "form": kernel.form}
    weight = {} if kernel.weight is None else {"weight": kernel.weight}
    return {"op": kernel.op, "reads": reads, "result": made, **weight}


def _kernel(kernel: KernelPlan) -> dict[str, Any]:
    found: dict[str, Any] = {"kind": type(kernel).__name__.lower()}
    output = getattr(kernel, "output", None)
    if isinstance(output, Requantize):
        found["requantize"] = _requantize(output)
    if isinstance(kernel, Accumulate | Contract | Sum | Product | Average):
        found["accumulator_bound"] = kernel.bound
    if isinstance(kernel, Accumulate | Contract):
        found["accumulator_scale"] = _number(kernel.acc_scale)
    if isinstance(kernel, Accumulate | Sum):
        found["overflow"] = _limit(kernel.limit)
    if isinstance(kernel, Accumulate):
        found["bias"] = None if kernel.bias is None else [int(b) for b in kernel.bias]
        found["saturating_pairs"] = 0 if kernel.pairs is None else len(kernel.pairs.owner)
    if isinstance(kernel, Sum):
        scale = None if kernel.scale is None else _number(kernel.scale)
        terms = [_term(t) for t in kernel.terms]
        found |= {"terms": terms, "scale": scale, "offset": float(kernel.offset), "rounding": kernel.rounding}
        found |= {"whole": True} if kernel.whole else {}
    if isinstance(kernel, Average):
        found["count"] = kernel.count
    if isinstance(kernel, Lookup):
        found |= {"table": kernel.table.tolist(), "axis": kernel.axis, "defined": kernel.defined, "formed": kernel.kind}
    if isinstance(kernel, Program):
        found |= {"formed": kernel.kind, "accumulator_scale": _number(kernel.acc_scale)}
        found |= {"accumulator_bound": kernel.bound, "steps": [_step(step) for step in kernel.steps]}
    if isinstance(kernel, Device):
        found |= {"package": kernel.package, "numbers": {n: v.tolist() for n, v in kernel.numbers}}
    if isinstance(kernel, Lookup | Move):
        found["range"] = [kernel.low, kernel.high]
    return found


def _step(step: Step) -> dict[str, Any]:
    found: dict[str, Any] = {"op": step.op, "operands": list(step.operands), "range": [step.low, step.high]}
    if step.numbers is not None:
        found["numbers"] = step.numbers.tolist()
    if step.axes:
        found["axes"] = list(step.axes)
    return found | ({"rounding": step.rounding} if step.op is StepOp.SHIFT else {})


def _requantize(r: Requantize) -> dict[str, Any]:
    found = {
        "kind": r.kind,
        "multiplier": _number(r.multiplier),
        "shift": r.shift,
        "zero_point": r.zero_point,
        "range": [r.low, r.high],
        "rounding": r.rounding,
        "zero_first": r.zero_first,
    }
    if r.by_channel is not None:
        found["channel_range"] = [bound.tolist() for bound in r.by_channel]
    return found if r.fixed is None else found | _fixed(r.fixed)


def _fixed(fixed: FixedPoint) -> dict[str, Any]:
    fewer = {} if fixed.bits == MULTIPLIER_BITS else {"multiplier_bits": fixed.bits}
    ratio = {"single_ratio": True} if fixed.single_ratio else {}
    return {"q31": fixed.multiplier.tolist(), "left_shift": fixed.shift.tolist(), **fewer, **ratio}


def _term(term: Term) -> dict[str, Any]:
    found = {
        "tensor": term.tensor,
        "form": term.form,
        "scale": _number(term.scale),
        "zero_point": term.zero_point,
        "shift": term.shift,
        "ratio": _number(term.ratio),
    }
    return found if term.fixed is None else found | _fixed(term.fixed)


def _limit(limit: Limit | None) -> dict[str, Any] | None:
    return None if limit is None else {"accumulator": limit.label, "overflow": limit.overflow}


def _number(value: NDArray[Any]) -> Any:
    return np.asarray(value, np.float64).tolist()
