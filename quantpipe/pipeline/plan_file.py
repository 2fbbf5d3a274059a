"""Write plan.json from a plan.

It holds every number of the integer model except the integer weights, which are named by digest (they are in
model.onnx). The keys are an interface, in `types/plan_file.py`.
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
    BlockGrid,
    Contract,
    Device,
    FixedPoint,
    Kernel,
    KernelPlan,
    Lookup,
    LoopProduct,
    LoopSite,
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
from quantpipe.types.plan_file import (
    BlockPart,
    FixedPart,
    LoopPart,
    LoopProductPart,
    NumbersPart,
    PlacedPart,
    PlanFile,
    ProgramStepPart,
    ReadPart,
    RequantizePart,
    RowTablePart,
    TermPart,
    WeightedPart,
    WeightPart,
)


def plan_payload(plan: QuantPlan, topology: Topology) -> PlanFile:
    """Return all of plan.json but its origin."""
    found: PlanFile = {
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
        "weights": {t: _weight(w, topology.weight_of[t].channel_axis) for t, w in plan.weights.items()},
        "constants": {t: digest_array(values) for t, values in plan.constants.items()},
        "accumulators": {t: _number(scale) for t, scale in plan.raw_scales.items()},
        "narrowings": {t: _requantize(r) for t, r in plan.narrowings.items()},
        "kernels": {n: {**_placed(topology.kernel_of[n], k), **_numbers(k)} for n, k in plan.kernels.items()},
        "rescales": list(plan.rescales),
        "raised": list(plan.raised),
    }
    if plan.tables:
        found["tables"] = _tables(plan, topology)
    if topology.weighted or topology.cells:
        found["weighted"] = {k.node: _weighted(k, topology) for k in topology.weighted}
        for cell in topology.cells:
            weight, state = cell.weights
            part: WeightedPart = {"op": cell.op, "weight": weight, "state_weight": state, "dynamic": True}
            found["weighted"][cell.node] = part
    if plan.loops:
        found["loops"] = {node: _loop(products, topology.loop_of[node]) for node, products in plan.loops.items()}
    if topology.caches:
        found["caches"] = [
            {"input": c.past, "output": c.present, "stored": c.dtype, "holds": "keys" if c.keys else "values"}
            for c in topology.caches
        ]
    return found


def _weighted(kernel: Kernel, topology: Topology) -> WeightedPart:
    found: WeightedPart = {"op": kernel.op, "weight": kernel.weight or ""}
    return {**found, "dynamic": True} if kernel.node in topology.dynamic else found


def _weight(weight: WeightTensor, channel_axis: int) -> WeightPart:
    found: WeightPart = {
        "scale": digest_array(weight.scale) if weight.has_real_blocks else _number(weight.scale),
        "zero_point": 0 if weight.has_real_blocks else weight.zero.tolist(),
        "axis": weight.axis,
        "channel_axis": channel_axis,
        "dtype": weight.dtype,
        "bits": weight.bits,
        "values": digest_array(weight.values),
    }
    if weight.block is not None:
        found["block"] = _block(weight.block, has_real_scales=weight.has_real_blocks)
    return found


def _block(grid: BlockGrid, *, has_real_scales: bool) -> BlockPart:
    codes = [grid.low, grid.high]
    if has_real_scales:
        return {"size": grid.size, "zero_point": digest_array(grid.zero_point), "codes": codes}
    zero = grid.zero_point.tolist() if np.any(grid.zero_point) else 0
    return {"size": grid.size, "multiplier": grid.multiplier.tolist(), "zero_point": zero, "codes": codes}


def _loop(products: tuple[LoopProduct, ...], site: LoopSite) -> LoopPart:
    """Return the products of states in the body of a loop."""
    rows: list[LoopProductPart] = [
        {"node": p.node, "weight": p.weight, "scale": _number(p.scale), "accumulator_bound": p.bound} for p in products
    ]
    found: LoopPart = {"state": site.state, "products": rows}
    if site.carried:
        found["carried"] = list(site.carried)
    return found


def _tables(plan: QuantPlan, topology: Topology) -> dict[str, RowTablePart]:
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


def _placed(kernel: Kernel, numbers: KernelPlan) -> PlacedPart:
    """Return a kernel's inputs (of an op that only moves values, with their ports) and outputs."""
    reads: list[ReadPart] = [{"tensor": o.tensor, "form": o.form} for o in kernel.operands]
    if isinstance(numbers, Move):
        for read, operand in zip(reads, kernel.operands, strict=True):
            read["port"] = operand.port
    found: PlacedPart = {
        "op": kernel.op,
        "reads": reads,
        "result": {"tensor": kernel.output, "form": kernel.form},
    }
    if kernel.weight is not None:
        found["weight"] = kernel.weight
    return found


def _numbers(kernel: KernelPlan) -> NumbersPart:
    found: NumbersPart = {"kind": type(kernel).__name__.lower()}
    output = getattr(kernel, "output", None)
    if isinstance(output, Requantize):
        found["requantize"] = _requantize(output)
    if isinstance(kernel, Accumulate | Contract | Sum | Product | Average):
        found["accumulator_bound"] = kernel.bound
    if isinstance(kernel, Accumulate | Contract):
        found["accumulator_scale"] = _number(kernel.acc_scale)
    if isinstance(kernel, Accumulate | Sum):
        limit = kernel.limit
        found["overflow"] = None if limit is None else {"accumulator": limit.label, "overflow": limit.overflow}
    if isinstance(kernel, Accumulate):
        found["bias"] = None if kernel.bias is None else [int(b) for b in kernel.bias]
        found["saturating_pairs"] = 0 if kernel.pairs is None else len(kernel.pairs.owner)
    if isinstance(kernel, Sum):
        found["terms"] = [_term(t) for t in kernel.terms]
        found["scale"] = None if kernel.scale is None else _number(kernel.scale)
        found["offset"], found["rounding"] = float(kernel.offset), kernel.rounding
        if kernel.whole:
            found["whole"] = True
    if isinstance(kernel, Average):
        found["count"] = kernel.count
    if isinstance(kernel, Lookup):
        found["table"], found["axis"] = kernel.table.tolist(), kernel.axis
        found["defined"], found["formed"] = kernel.defined, kernel.kind
    if isinstance(kernel, Program):
        found["formed"], found["accumulator_scale"] = kernel.kind, _number(kernel.acc_scale)
        found["accumulator_bound"], found["steps"] = kernel.bound, [_step(step) for step in kernel.steps]
    if isinstance(kernel, Device):
        found["package"], found["numbers"] = kernel.package, {n: v.tolist() for n, v in kernel.numbers}
    if isinstance(kernel, Lookup | Move):
        found["range"] = [kernel.low, kernel.high]
    return found


def _step(step: Step) -> ProgramStepPart:
    found: ProgramStepPart = {"op": step.op, "operands": list(step.operands), "range": [step.low, step.high]}
    if step.numbers is not None:
        found["numbers"] = step.numbers.tolist()
    if step.axes:
        found["axes"] = list(step.axes)
    if step.op is StepOp.SHIFT:
        found["rounding"] = step.rounding
    return found


def _requantize(r: Requantize) -> RequantizePart:
    found: RequantizePart = {
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
    return {**found, **_fixed(r.fixed)}


def _fixed(fixed: FixedPoint | None) -> FixedPart:
    if fixed is None:
        return {}
    found: FixedPart = {"q31": fixed.multiplier.tolist(), "left_shift": fixed.shift.tolist()}
    if fixed.bits != MULTIPLIER_BITS:
        found["multiplier_bits"] = fixed.bits
    if fixed.single_ratio:
        found["single_ratio"] = True
    return found


def _term(term: Term) -> TermPart:
    return {
        "tensor": term.tensor,
        "form": term.form,
        "scale": _number(term.scale),
        "zero_point": term.zero_point,
        "shift": term.shift,
        "ratio": _number(term.ratio),
        **_fixed(term.fixed),
    }


def _number(value: NDArray[Any]) -> Any:
    return np.asarray(value, np.float64).tolist()
