"""Write a kernel of a plug-in package: a call of its own function on stored integers and the numbers of the plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx
import onnx_ir as ir

from quantpipe import extend
from quantpipe.extend import DeviceOp
from quantpipe.graph.view import Node
from quantpipe.lowering.context import Context
from quantpipe.types import Device, Kernel


def op_of(kernel: Kernel) -> DeviceOp:
    """Return the installed op of a kernel."""
    op = extend.op_of(kernel.op)
    assert op is not None  # noqa: S101  (the planner has asked it for numbers; narrows the type)
    return op


def write_call(
    context: Context,
    node: Node,
    *,
    function: onnx.FunctionProto,
    stored: Mapping[str, ir.Value],
    constants: Callable[[str, extend.Array], ir.Value],
    output: str,
) -> ir.Value:
    """Write one node whose definition is a function of the package; return the stored result.

    `stored` holds stored operands and weight by the names of the op's inputs; `constants` writes a number under a name.
    """
    plan = context.plan.kernels[node.name]
    assert isinstance(plan, Device)  # noqa: S101  (the planner pairs families with plans; narrows the type)
    numbers = dict(plan.numbers)
    inputs = [
        stored[name] if name in stored else constants(f"{node.name}.{name}", numbers[name]) for name in function.input
    ]
    return context.builder.call(function, node, inputs, output)
