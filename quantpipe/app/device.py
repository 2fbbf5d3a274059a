"""Derive settings from the hardware: the cost of the objective, and with it the offered bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantpipe.hardware.gain import COUNTS_BITS, own_cost
from quantpipe.search import OWN_COST, form_of
from quantpipe.types import HardwareSpec


def with_bits(annotate: Mapping[str, Any], cost: Any) -> dict[str, Any]:
    """Return the options of annotate with all bits on offer where the cost counts bits.

    Who asks for such a cost wants every number of them, also those that the device gains nothing from.
    """
    kinds = annotate.get("choices")
    if cost not in COUNTS_BITS or not isinstance(kinds, list) or "bits" in kinds:
        return dict(annotate)
    return {**annotate, "choices": ["bits" if kind == "auto" else kind for kind in kinds]}


def with_cost(objective: Mapping[str, Any], spec: HardwareSpec) -> dict[str, Any]:
    """Return the objective with the cost and the form that `auto` comes to."""
    asked = objective.get("cost")
    found = {**objective, "cost": own_cost(spec) if asked == OWN_COST else asked}
    if "form" in found:
        found["form"] = form_of(found["form"], found.get("cost_limit"), found.get("weight"))
    return found
