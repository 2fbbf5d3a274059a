"""The numbers of a kernel from a plug-in package, as its scale rule gives them."""

from __future__ import annotations

import numpy as np

from quantpipe import extend
from quantpipe.errors import HardwareError
from quantpipe.extend import Array, DeviceOp, Site
from quantpipe.oprules import OpRule
from quantpipe.oprules.plugin_op import facts_of
from quantpipe.plan.builder import PlanBuilder
from quantpipe.plan.requantize import limits
from quantpipe.types import Device, Form, Kernel


def plan_device(builder: PlanBuilder, kernel: Kernel, rule: OpRule) -> Device:
    """Plan a kernel of a plug-in package.

    Raises HardwareError where the hardware file has it read or pass on an accumulator. Raises ConfigError, naming the
    package, where its rule raises, or gives what the integer form cannot use.
    """
    op = extend.op_of(kernel.op)
    assert op is not None  # noqa: S101  (its rule is there; narrows the type)
    if kernel.form is not Form.QUANTIZED or any(o.form is not Form.QUANTIZED for o in kernel.operands):
        raise HardwareError(
            f"ops.{kernel.op} has an accumulator in `in` or `out`; an op of a plug-in package reads and gives stored "
            "integers of 8 or 16 bits",
            stage="plan",
            where=kernel.node,
        )
    node, out = builder.graph.by_name[kernel.node], builder.quantizers[kernel.output]
    low, high = limits(kernel, out)
    site = Site(
        facts=facts_of(op, node, builder.graph),
        operands={op.inputs[o.port]: builder.quantizers[o.tensor] for o in kernel.operands},
        result=out,
        low=low,
        high=high,
        weight=None if kernel.weight is None else builder.weights[kernel.weight],
        requantize=builder.spec.requantize,
    )
    found = extend.called(kernel.op, "numbers", op.numbers, site)
    return Device(kernel.node, extend.package_of(kernel.op), _checked(op, kernel, found))


def _checked(op: DeviceOp, kernel: Kernel, found: object) -> tuple[tuple[str, Array], ...]:
    """Return the numbers in the order of their names; each function must get every input that it asks for."""
    package = extend.package_of(kernel.op)
    if not isinstance(found, dict):
        raise extend.refused(
            package, f"numbers of its op {kernel.op} gave a {type(found).__name__}; legal is a dict of arrays by name"
        )
    numbers = {str(name): np.asarray(value) for name, value in found.items()}
    stored = {op.inputs[o.port] for o in kernel.operands} | ({op.weight} if kernel.weight is not None else set())
    for name, value in numbers.items():
        if value.dtype.kind not in "iufb" or not np.all(np.isfinite(value)):
            raise extend.refused(
                package,
                f"numbers of its op {kernel.op} gave {name!r} as {value.dtype} ({value.reshape(-1)[:4].tolist()}); "
                f"legal are finite numbers (node {kernel.node})",
            )
    for function in (op.integers, op.written):
        for name in function.input:
            if name not in numbers and name not in stored:
                raise extend.refused(
                    package,
                    f"the function {function.name} of its op {kernel.op} asks for {name!r}, which no stage has (node "
                    f"{kernel.node}); there are the stored {', '.join(sorted(filter(None, stored)))}, and from "
                    f"numbers {', '.join(sorted(numbers)) or 'nothing'}",
                )
    return tuple(sorted(numbers.items()))
