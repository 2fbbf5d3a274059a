"""Hold the kernels of plug-in packages against the packages' own words: interpreter and float reference.

For each kernel the simulated and the realized integers are compared, element by element, with the package's interpreter
on the same stored operands. Their real values are compared with the reference on the operands' real values. Where they
differ, the run ends and names the package: quantpipe cannot decide which of the two is right.

Files of this feature, both `plugin_op.py`: `oprules` (rows of ops), `evaluate` (compares kernels). `intake/patterns.py`
joins patterns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from quantpipe import extend, intmath
from quantpipe.arrays import Array, along
from quantpipe.extend import DeviceOp
from quantpipe.graph.build import GraphBuilder, ir_dtype
from quantpipe.graph.execute import Session
from quantpipe.graph.normalize import expose
from quantpipe.graph.view import Graph
from quantpipe.lowering import Rendered
from quantpipe.oprules.plugin_op import facts_of
from quantpipe.plan.requantize import limits
from quantpipe.simulate.simulator import Simulation, bind
from quantpipe.types import Device, Kernel, QuantPlan, Samples, Topology

SAMPLES = 4
"""Samples that an interpreter is run on; NumPy is slow, and the other comparison takes more."""


def check_plug_ins(
    graph: Graph, topology: Topology, plan: QuantPlan, simulation: Simulation, *, realized: Rendered, samples: Samples
) -> None:
    """Compare every kernel of a plug-in package with the package's interpreter and reference, on a few samples.

    Raises ConfigError that names the package, the node and the first element that differs.
    """
    kernels = [k for k in topology.kernels if isinstance(plan.kernels.get(k.node), Device)]
    batch = next(iter(samples.batches(graph.fixed_batch or SAMPLES)), None) if kernels else None
    if batch is None:
        return
    model = bind(simulation.rendered.model, simulation.weights)
    runs = (
        ("simulated", model, simulation.rendered.integers, {**batch.inputs, **simulation.scalars}),
        ("realized", realized.model, realized.integers, batch.inputs),
    )
    for form, written, names, feeds in runs:
        found = _stored(plan, kernels, written, names, feeds=feeds)
        for kernel in kernels:
            _check(graph, plan, kernel, found, form=form)


def _stored(
    plan: QuantPlan, kernels: Sequence[Kernel], model: ir.Model, names: Mapping[str, str], *, feeds: Mapping[str, Array]
) -> dict[str, Array]:
    """Return tensor -> its stored integers, int64."""
    tensors = dict.fromkeys(t for k in kernels for t in (*(o.tensor for o in k.operands), k.output))
    read = {t: names[t] for t in tensors if t in names}
    values = Session(expose(model, list(dict.fromkeys(read.values())))).run(
        feeds, list(dict.fromkeys(read.values())), stored=True
    )
    found = {}
    for tensor in tensors:
        q = plan.quantizers[tensor]
        if tensor not in read:
            found[tensor] = plan.constants[tensor].astype(np.int64)
            continue
        array = values[read[tensor]]
        centred = array.dtype.kind == "f"
        found[tensor] = np.asarray(array, np.int64) + (q.zero_point if centred else 0)
    return found


def _check(graph: Graph, plan: QuantPlan, kernel: Kernel, found: Mapping[str, Array], *, form: str) -> None:
    op, numbers = extend.op_of(kernel.op), plan.kernels[kernel.node]
    assert op is not None and isinstance(numbers, Device)  # noqa: S101  (chosen so)
    stored = {op.inputs[o.port]: found[o.tensor] for o in kernel.operands}
    if kernel.weight is not None and op.weight is not None:
        stored[op.weight] = plan.weights[kernel.weight].values.astype(np.int64)
    attributes = facts_of(op, graph.by_name[kernel.node], graph).attributes
    expected = np.asarray(
        extend.called(kernel.op, "interpret", op.interpret, stored, dict(numbers.numbers), attributes), np.int64
    )
    function = op.integers if form == "simulated" else op.written
    own = found[kernel.output]
    _expect_equal(kernel, own, expected, f"the {form} model (function {function.name})")
    _expect_reference(graph, plan, kernel, op, stored=stored, own=own)


def _expect_equal(kernel: Kernel, found: Array, expected: Array, one: str) -> None:
    package = extend.package_of(kernel.op)
    if found.shape != expected.shape:
        raise extend.refused(
            package,
            f"its op {kernel.op} at node {kernel.node}: {one} gives the shape {list(found.shape)}, its interpreter "
            f"{list(expected.shape)}",
        )
    wrong = np.argwhere(found != expected)
    if len(wrong):
        place = tuple(int(i) for i in wrong[0])
        raise extend.refused(
            package,
            f"its op {kernel.op} at node {kernel.node}: {len(wrong)} of {found.size} elements differ, the first at "
            f"{list(place)}, where {one} gives {int(found[place])} and its interpreter {int(expected[place])}; legal "
            "is the same arithmetic in both",
        )


def _expect_reference(
    graph: Graph, plan: QuantPlan, kernel: Kernel, op: DeviceOp, *, stored: Mapping[str, Array], own: Array
) -> None:
    """Compare with the reference on the operands' real values, stored as the result is, up to `steps` off."""
    out = plan.quantizers[kernel.output]
    real = reference_of(graph, kernel, op, real=_real(plan, kernel, op, stored))
    low, high = limits(kernel, out)
    wanted = intmath.round_real(np.clip(real.astype(np.float64) / float(out.scale) + out.zero_point, low, high))
    off = np.abs(wanted - own)
    if off.shape == own.shape and np.all(off <= op.steps):
        return
    place = tuple(int(i) for i in np.argwhere(~(off <= op.steps))[0])
    raise extend.refused(
        extend.package_of(kernel.op),
        f"its op {kernel.op} at node {kernel.node}: its integers are up to {float(np.nanmax(off)):g} steps away from "
        f"its reference. The first element is at {list(place)}, with the integer {int(own[place])} and the reference "
        f"{float(wanted[place]):g}; legal are {op.steps:g} steps (`steps`)",
    )


def _real(plan: QuantPlan, kernel: Kernel, op: DeviceOp, stored: Mapping[str, Array]) -> dict[str, Array]:
    """Return the real values of the stored operands and of the weight, by the names of the op's inputs."""
    found = {}
    for operand in kernel.operands:
        q, name = plan.quantizers[operand.tensor], op.inputs[operand.port]
        found[name] = ((stored[name] - q.zero_point) * np.float64(q.scale)).astype(np.float32)
    if kernel.weight is not None and op.weight is not None:
        weight = plan.weights[kernel.weight]
        scale = along(weight.scale, weight.axis or 0, weight.values.ndim)
        found[op.weight] = (weight.centred().astype(np.float64) * scale).astype(np.float32)
    return found


def reference_of(graph: Graph, kernel: Kernel, op: DeviceOp, *, real: Mapping[str, Array]) -> Array:
    """Return the result of an op's reference for real operands, by the names of the op's inputs.

    The graph provides the node's attributes and further constants.
    """
    node = graph.by_name[kernel.node]
    builder = GraphBuilder("reference", graph.opset, 10)
    inputs: list[ir.Value | None] = []
    feeds: dict[str, Array] = {}
    for name, tensor in zip(op.inputs, node.inputs, strict=False):
        if not tensor:
            inputs.append(None)
            continue
        array = real[name] if name in real else graph.constant(tensor)
        value = builder.input(name, array.dtype.name, [None] * array.ndim)
        feeds[value.name or ""] = array
        inputs.append(value)
    (output,) = builder.copy(node, inputs)
    output.type = ir.TensorType(ir_dtype("float32"))
    found = Session(builder.build([output]), where=kernel.node).run(feeds)
    return next(iter(found.values()))
