"""Session options that a model file asks for: carried in its metadata, and set by every session of quantpipe.

A default session on x86 runs a Q/DQ file with int8 activations in float wherever the runtime cannot rewrite it to
uint8. So the file carries the option that fuses int8 as it is. Whoever deploys the file sets the options in
`metadata_props["quantpipe.session_options"]` (a JSON object, option -> value).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType

import onnx_ir as ir

from quantpipe.graph.op_tables import DYNAMIC, DYNAMIC_BY_THREAD

KEY = "quantpipe.session_options"
"""Of the metadata entry."""

INT8_KERNELS = {"session.qdqisint8allowed": "1"}
"""Fuse int8 Q/DQ as it stands."""

REAL_ACTIVATIONS = {"session.qdq_matmulnbits_accuracy_level": "1"}
"""Multiply real numbers by weights in blocks as they are: the default (level 4) quantizes them to 8 bits first."""

AS_REAL_NUMBERS = {"session.disable_quant_qdq": "1"}
"""Run Q/DQ pairs as they are written: the runtime would put integer kernels, with integer biases, in their place."""

EXACT_PAIRS = {"session.x64quantprecision": "1"}
"""Kernels that add products of uint8 and int8 in 32 bits on x86 CPUs without VNNI, too."""

WITHOUT: Mapping[str, str] = MappingProxyType(
    {
        "session.qdqisint8allowed": "without it, int8 nodes run in float on x86",
        "session.qdq_matmulnbits_accuracy_level": "without it, activations beside blocks are rounded to 8 bits",
        "session.disable_quant_qdq": "without it, integer kernels replace the pairs that the file spells out",
        "session.x64quantprecision": "without it, sums saturate on x86 processors without VNNI",
    }
)
"""Option -> what a session without it does."""


def carry(model: ir.Model, options: Mapping[str, str]) -> None:
    """Write into a model which session options it needs; `{}` where a default session is exact on every processor."""
    model.metadata_props[KEY] = json.dumps(dict(options), sort_keys=True)


def carried(model: ir.Model) -> dict[str, str]:
    """Return the session options that a model asks for; none where its metadata hold nothing of the kind."""
    try:
        found = json.loads(model.metadata_props.get(KEY, "{}"))
    except json.JSONDecodeError:
        return {}
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}


def runs_as_declared(model: ir.Model) -> bool:
    """Return whether the metadata of a model name its session options, and exact kernels are not among them."""
    return KEY in model.metadata_props and not EXACT_PAIRS.items() <= carried(model).items()


def quantizes_itself(model: ir.Model) -> bool:
    """Return whether a model has ops that quantize at run time: kernels other than a default session's change them."""
    return any(node.op_type in DYNAMIC for node in model.graph.all_nodes())


def differs_by_threads(model: ir.Model) -> bool:
    """Return whether a model has ops that quantize each thread's rows at run time by a scale of their own."""
    return any(node.op_type in DYNAMIC_BY_THREAD for node in model.graph.all_nodes())


def name_of(options: Mapping[str, str]) -> str:
    """Return how a report calls a session with these options."""
    return ", ".join(f"{option}={value}" for option, value in sorted(options.items())) or "default"
