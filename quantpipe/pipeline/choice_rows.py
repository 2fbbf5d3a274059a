"""The report's part on what each choice of the space came to."""

from __future__ import annotations

from typing import Any

import numpy as np

from quantpipe.types import ChoiceRow, ChoiceSpace, Strategy, Topology
from quantpipe.types.choice_key import STRUCTURAL, ChoiceKind


def choice_rows(space: ChoiceSpace, topology: Topology, strategy: Strategy) -> list[ChoiceRow]:
    """Return the chosen option per choice: bits of stored tensors and weights, and structural options."""
    found: list[ChoiceRow] = []
    for choice in space:
        name, edges = choice.subject, list(choice.edges)
        if choice.kind in STRUCTURAL:
            option = strategy.structure.by_key.get(choice.key, choice.options[0])
            found.append({"key": name, "kind": choice.kind, "value": option, "threshold": None, "edges": edges})
        if choice.kind != ChoiceKind.BITS or name not in strategy.bits:
            continue
        threshold: Any = None
        if name in strategy.ranges:
            threshold = strategy.ranges[name].threshold
        elif name in topology.weight_of and topology.weight_of[name].axis is None:
            threshold = float(np.abs(strategy.weights[name]).max())
        kind = _kind(topology, name)
        value = strategy.bits[name]
        found.append({"key": name, "kind": kind, "value": value, "threshold": threshold, "edges": edges})
    return found


def _kind(topology: Topology, name: str) -> str:
    if name in topology.weight_of:
        return "weight"
    return "table" if any(name == t.tensor for t in topology.tables) else "activation"
