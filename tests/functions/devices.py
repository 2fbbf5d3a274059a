"""Shipped hardware with functions in integers: what tests run programs and formulas on."""

from __future__ import annotations

from typing import Any

from quantpipe.oprules import OP_RULES, Family
from quantpipe.types import HardwareSpec
from tests.ops.line import hardware, hardware_data

ROWS = (
    "Softmax",
    "LogSoftmax",
    "LpNormalization",
    "LayerNormalization",
    "RMSNormalization",
    "InstanceNormalization",
    "LRN",
)
NORMS = dict.fromkeys(ROWS[2:], "integer_sqrt")
BASES: dict[str, str] = {"multiplier": "ort_cpu", "fixed": "tflite_int8", "single": "cmsis_nn", "shift": "vta",
                         "wide": "mixed_npu"}  # fmt: skip
"""One shipped file per way to requantize, and one of 16 bits."""


def device(base: str, functions: dict[str, str], **changes: Any) -> HardwareSpec:
    """A shipped device that runs some functions in integers as said."""
    data = hardware_data(BASES[base])
    stored = data["ops"]["Relu"][0]["in"][0]
    averages = {op: kind for op, kind in functions.items() if OP_RULES[op].family is Family.AVERAGE}
    own = {op: [{"in": [stored], "out": [stored]} | ({"function": kind} if op in averages else {})]
           for op, kind in functions.items() if kind != "float"}  # fmt: skip
    kinds = {**(data.get("functions") or {}), **{op: kind for op, kind in functions.items() if op not in averages}}
    return hardware(BASES[base], ops={**data["ops"], **own}, functions=kinds, **{"realize": "integer", **changes})
