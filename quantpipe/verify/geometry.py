"""Check that the nodes of a kernel have the attributes that the certificate states.

They say how windows move over a map (pads, strides, dilations), and how an op that only moves values does so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import onnx

from quantpipe.verify.files import expect
from quantpipe.verify.grammar import COPIED, OWN

WINDOW = ("auto_pad", "dilations", "kernel_shape", "pads", "strides")
"""Attributes that every form of an op with windows carries."""
WINDOWED = frozenset({"Conv", "ConvInteger", "QLinearConv", "MaxPool", "AveragePool"})
"""Ops that have them; an average is written as a convolution."""
TRANSPOSED = frozenset({"ConvTranspose"})


def check_geometry(
    node: str, kernel: Mapping[str, Any], claimed: Mapping[str, Any], written: Iterable[onnx.NodeProto], *, whole: bool
) -> None:
    """Check the attributes of a kernel's nodes against the certificate.

    `whole`: the certificate states all attributes of ops that are written as themselves; earlier versions do not.
    """
    op, kind = str(kernel["op"]), str(kernel["kind"])
    for made in written:
        own = {a.name: _plain(onnx.helper.get_attribute_value(a)) for a in made.attribute}
        itself = made.op_type == op and (kind in COPIED or op in TRANSPOSED)
        compared: Iterable[str] = ()
        if kind == "device" and made.domain not in OWN and whole:
            compared = sorted(own)
        elif itself and whole:
            compared = sorted({*own, *claimed})
        elif made.op_type in WINDOWED and op in WINDOWED:
            compared = (*WINDOW, "group") if "group" in claimed else WINDOW
        elif made.op_type == op and claimed:
            compared = sorted({*own, *claimed})
        windowed = made.op_type in WINDOWED and op in WINDOWED
        for name in compared:
            same = own.get(name) == claimed.get(name)
            expect(
                same or (windowed and _by_default(name, own.get(name)) and _by_default(name, claimed.get(name))),
                node,
                f"{name} of {made.name} is {own.get(name)}, the certificate has {claimed.get(name)}",
            )


def _by_default(name: str, value: Any) -> bool:
    """Whether an attribute of a window is absent, or has the value that ONNX defines for an absent one."""
    if value is None:
        return True
    if name in ("dilations", "strides"):
        return all(step == 1 for step in value)
    if name == "pads":
        return not any(value)
    return bool((name == "group" and value == 1) or (name == "auto_pad" and value == "NOTSET"))


def _plain(value: Any) -> Any:
    """As JSON holds it."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return list(value) if not isinstance(value, str | int | float) else value
