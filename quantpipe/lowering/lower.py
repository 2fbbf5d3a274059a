"""Write a plan as an ONNX graph: one walk over the float graph, shared by the simulated and all realized forms.

The walk keeps every tensor in the forms its readers want (`context.py`) and asks a `Dialect` how each op and each
conversion is written.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import onnx_ir as ir

from quantpipe.errors import HardwareError
from quantpipe.graph.build import ir_dtype
from quantpipe.graph.half_ports import half_ports
from quantpipe.graph.session_options import carry
from quantpipe.graph.view import Graph, Node
from quantpipe.intake.rewrites.explicit import write_out
from quantpipe.lowering.context import Context, Dialect, Rendered
from quantpipe.lowering.embedding_table import look_up
from quantpipe.lowering.recurrent_loop import write_loop
from quantpipe.oprules.masks import OF_SHAPES
from quantpipe.types import Form, QuantPlan, Topology


def render(
    graph: Graph, topology: Topology, plan: QuantPlan, dialect: Dialect, *, stored: Collection[str] = ()
) -> Rendered:
    """Write the whole graph.

    `stored` ports (of a section of a graph) carry integers in every dialect; all others are as in the float model. The
    inputs of the result are the graph's own, then the stored ones, then those that the dialect declares. Raises
    HardwareError for an op that the dialect cannot lower.
    """
    context = Context(graph, topology, plan, dialect)
    for value in graph.model.graph.inputs:
        if value.name in graph.input_names and value.name not in stored:
            context.set(value.name, Form.FLOAT, context.builder.adopt_input(value))
    entering = [i for i in graph.inputs if i.name in stored]
    ports = [context.builder.input(f"{i.name}_stored", _held_in(plan, i.name), i.shape) for i in entering]
    for info, port in zip(entering, ports, strict=True):
        context.set(info.name, Form.QUANTIZED, dialect.enter(context, info.name, port))
    for node in graph.nodes:
        kernel = topology.kernel_of.get(node.name)
        if kernel is not None:
            lowering = dialect.ops.get(node.op)
            if lowering is None:
                raise HardwareError(
                    f"the {dialect.name} form has no way to write {node.op}; keep it in float with "
                    f"annotate.float_ops=[{node.op}] or choose another realize",
                    stage="realize",
                    where=node.name,
                )
            context.set(kernel.output, kernel.form, lowering(context, node, kernel))
        elif node.name in topology.table_of:
            context.set(node.outputs[0], Form.FLOAT, look_up(context, node))
        elif node.name in topology.weighted_of:
            real = dialect.weigh(context, node, topology.weighted_of[node.name])
            context.set(node.outputs[0], Form.FLOAT, real)
        elif node.name in topology.loop_of:
            _keep(context, node, write_loop(context, node))
        elif node.name in topology.cell_of:
            _keep(context, node, dialect.dynamic_cell(context, node))
        elif node.name not in topology.fused_into:
            _copy_float(context, node)
    outputs, entered = [], {info.name for info in entering}
    for info in graph.outputs:
        # What came in stored and leaves is an output of the whole model, which is real.
        if info.name in stored and info.name not in entered:
            value = dialect.leave(context, info.name, context.get(info.name, Form.QUANTIZED))
            value.type, value.shape = ir.TensorType(ir_dtype(_held_in(plan, info.name))), ir.Shape(list(info.shape))
            outputs.append(value)
            continue
        value = context.get(info.name, Form.FLOAT)
        original = next(v for v in graph.model.graph.outputs if v.name == info.name)
        value.type, value.shape = original.type, original.shape
        outputs.append(value)
    model = context.builder.build(outputs)
    write_out(model)
    carry(model, dialect.session_options(context))
    return Rendered(model, context.stored(), inexact=dialect.inexact)


def _held_in(plan: QuantPlan, tensor: str) -> str:
    """Return the NumPy type of a stored tensor, narrower than its group's if the plan gives it fewer bits."""
    return np.dtype(plan.quantizers[tensor].dtype.numpy).name


def _copy_float(context: Context, node: Node) -> None:
    for tensor in node.captured:
        context.get(tensor, Form.FLOAT)  # sub-graphs read outer tensors by name, so these must exist in real form
    if node.name in context.topology.half_nodes:
        _write_half(context, node)
        return
    read = context.shaped if node.op in OF_SHAPES else context.real
    _keep(context, node, context.builder.copy(node, [read(t) for t in node.inputs]))


def _write_half(context: Context, node: Node) -> None:
    """Write a node in float16, with its other inputs (shapes, axes, scales of a Resize) as they are."""
    ports = half_ports(node, context.graph.opset)
    inputs = [context.half(t) if p in ports else context.real(t) for p, t in enumerate(node.inputs)]
    results = context.builder.copy(node, inputs, [f"{t}/float16" if t else "" for t in node.outputs])
    for name, value in zip(node.outputs, results, strict=True):
        if name:
            context.set_half(name, value)


def _keep(context: Context, node: Node, results: Sequence[ir.Value]) -> None:
    for name, value in zip(node.outputs, results, strict=True):
        if name:
            context.set(name, Form.FLOAT, value)
