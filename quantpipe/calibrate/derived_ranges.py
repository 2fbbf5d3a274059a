"""Derive ranges of some ports of plug-in ops from ranges of other ports, by a work list.

A derived range may be the source of the next one, so kernels are visited until nothing changes. A range that a user or
the device gives stays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import numpy as np

from quantpipe import extend
from quantpipe.extend import DeviceOp
from quantpipe.graph.view import Graph
from quantpipe.oprules.plugin_op import facts_of
from quantpipe.types import Form, Kernel, Range, Topology

VISITS = 8
"""Visits of a kernel after which its ranges are said to depend on each other in a circle."""


def derive_ranges(graph: Graph, topology: Topology, ranges: Mapping[str, Range]) -> dict[str, Range]:
    """Return the ranges that plug-in ops derive, by key of the scale group.

    Raises ConfigError, with the name of the package, for a function that raises or returns no finite range with 0
    within. It also raises for two ranges of one group, and for ranges that depend on each other in a circle.
    """
    deriving = [(k, op) for k in topology.kernels if (op := extend.op_of(k.op)) is not None and op.derive]
    found: dict[str, Range] = {}
    by: dict[str, str] = {}
    waiting, visits = deque(reversed(deriving)), dict.fromkeys((k.node for k, _ in deriving), 0)
    while waiting:
        kernel, op = waiting.popleft()
        visits[kernel.node] += 1
        ports, facts = _ports(kernel, op, graph), facts_of(op, graph.by_name[kernel.node], graph)
        for port, function in op.derive.items():
            group = topology.group_of.get(ports.get(port, ""))
            if group is None or group.fixed is not None:
                continue
            known = {n: {**ranges, **found}[topology.group_of[t].key] for n, t in ports.items()
                     if n != port and t in topology.group_of}  # fmt: skip
            made = extend.called(kernel.op, f"derive of {port}", function, known, facts)
            _refuse(made, kernel, port)
            if made == found.get(group.key):
                continue
            if by.setdefault(group.key, f"{kernel.node}:{port}") != f"{kernel.node}:{port}":
                why = f"its op {kernel.op} gives {ports[port]!r} another range than {by[group.key].split(':')[0]} does"
                raise extend.refused(extend.package_of(kernel.op), f"{why} (derive); legal is one range for a scale")
            if visits[kernel.node] > VISITS:
                why = f"its op {kernel.op} derives ranges that depend on each other in a circle, at {kernel.node}"
                raise extend.refused(extend.package_of(kernel.op), f"{why}; legal are ranges that settle")
            found[group.key] = made
            queued = {k.node for k, _ in waiting}
            waiting += [pair for pair in deriving if pair[0].node not in queued and _reads(pair[0], group.tensors)]
    return found


def _ports(kernel: Kernel, op: DeviceOp, graph: Graph) -> dict[str, str]:
    """Return the stored tensors of a kernel by the names of the op's definition."""
    found = {op.inputs[o.port]: o.tensor for o in kernel.operands if o.form is Form.QUANTIZED}
    return found | ({str(op.reference.output[0]): kernel.output} if kernel.form is Form.QUANTIZED else {})


def _reads(kernel: Kernel, tensors: tuple[str, ...]) -> bool:
    return kernel.output in tensors or any(o.tensor in tensors for o in kernel.operands)


def _refuse(made: object, kernel: Kernel, port: str) -> None:
    fits = isinstance(made, Range) and np.isfinite([made.low, made.high]).all() and made.low <= 0 <= made.high
    if not fits:
        raise extend.refused(
            extend.package_of(kernel.op),
            f"derive of {port} of its op {kernel.op} gave {made!r}; legal is a Range of finite numbers with 0 within",
        )
