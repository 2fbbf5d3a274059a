"""Why something is not as one might wish: for programs a kind, for people a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ReasonKind(StrEnum):
    """Say what a reason comes from.

    The first ones say why a node stays in float, the last two why a kernel is not one kernel of the runtime.
    """

    KEPT = "kept"
    """The user or the hardware file keeps it in float."""
    NOT_ASKED = "not_asked"
    """The user names the ops to quantize, and its own is not among them."""
    CHOSEN = "chosen"
    """The search, or the strategy, leaves it in float."""
    UNKNOWN_OP = "unknown_op"
    """No table knows the op."""
    QUANTIZED = "quantized"
    """It is part of a model that is quantized already."""
    OP = "op"
    """No integer form of the op is known."""
    TYPE = "type"
    """It computes other values than float32."""
    NODE = "node"
    """Its op has an integer form, which its attributes or inputs do not allow."""
    DEVICE = "device"
    """The device does not take it."""
    AROUND = "around"
    """It could run in integers; what is around it makes float the better place."""
    WEIGHT_ONLY = "weight_only"
    """It multiplies real numbers by integer weights."""
    DYNAMIC = "dynamic"
    """Its input gets a scale from the samples of each run, and its weight is in integers."""
    SLOW = "slow"
    """The runtime computes it in float, or in a slow kernel."""
    WRITTEN_OUT = "written_out"
    """The realized model writes it out in several ops."""


@dataclass(frozen=True)
class Reason:
    """`kind` is what decisions are made by; `text` is for people, and nothing reads it. As a string it is its text."""

    kind: ReasonKind
    text: str

    def __str__(self) -> str:
        return self.text
