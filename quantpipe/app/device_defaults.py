"""Derive settings from the hardware: the cost of the objective, and with it the offered bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantpipe.errors import ConfigError
from quantpipe.hardware.gain import COUNTS_BITS, own_cost
from quantpipe.hardware.predictor import PREDICTED
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
    """Return the objective with the cost and the form that `auto` comes to; a latency is predicted where it is fitted.

    Raises ConfigError for a predicted cost that the hardware file has no figures of.
    """
    asked = objective.get("cost")
    fitted = {quantity: name for name, quantity in PREDICTED.items() if quantity in spec.cost.layers}
    if isinstance(asked, str) and asked in PREDICTED and asked not in fitted.values():
        raise ConfigError(
            f"is {asked}, and the hardware file of {spec.name} has no cost.layers.{PREDICTED[asked]}. Fit it to "
            "measured layers with command=identify identify.times=FILE.csv (docs/hardware.md), or give another cost",
            where="objective.cost",
        )
    asked = fitted.get("latency", asked) if asked == "latency" else asked
    found = {**objective, "cost": own_cost(spec) if asked == OWN_COST else asked}
    if "form" in found:
        found["form"] = form_of(found["form"], found.get("cost_limit"), found.get("weight"))
    return found
