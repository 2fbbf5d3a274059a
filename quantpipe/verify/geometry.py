"""Check that the nodes of a kernel have the attributes that the certificate states.

They say how windows move over a map (pads, strides, dilations), and how an op that only moves values does so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import onnx

from quantpipe.verify.files import expect

WINDOW = ("auto_pad", "dilations", "kernel_shape", "pads", "strides")
"""Attributes that every form of an op with windows carries."""
WINDOWED = frozenset({"Conv", "ConvInteger", "QLinearConv", "MaxPool", "AveragePool"})
"""Ops that have them; an average is written as a convolution."""


def check_geometry(node: str, op: str, claimed: Mapping[str, Any], written: Iterable[onnx.NodeProto]) -> None:
    """Check the attributes of a kernel's nodes against the certificate.

    Args:
        node: the kernel, as errors name it.
        op: its op.
        claimed: the attributes that the certificate states.
        written: the model's nodes that the kernel consists of.

    Raises:
        Wrong: where a node differs.
    """
    for made in written:
        own = {a.name: _plain(onnx.helper.get_attribute_value(a)) for a in made.attribute}
        compared: Iterable[str] = ()
        if made.op_type in WINDOWED and op in WINDOWED:
            compared = WINDOW
        elif made.op_type == op and claimed:
            compared = sorted({*own, *claimed})
        for name in compared:
            expect(
                own.get(name) == claimed.get(name),
                node,
                f"{name} of {made.name} is {own.get(name)}, the certificate has {claimed.get(name)}",
            )


def _plain(value: Any) -> Any:
    """As JSON holds it."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return list(value) if not isinstance(value, str | int | float) else value
