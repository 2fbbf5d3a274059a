"""What a change was measured to gain and cost, as a row of the answer of `command=explain`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from quantpipe.types import AdviceRow


@dataclass(frozen=True)
class Measured:
    """What a model loses on the samples of the search, its accuracy, and its cost on the device where known."""

    loss: float
    accuracy: float | None
    cost: float | None = None


class Told(Protocol):
    """A change, in words and as it is pasted."""

    @property
    def role(self) -> str:
        """Return the role of the nodes that it concerns."""

    @property
    def members(self) -> tuple[str, ...]:
        """Return the tensors or nodes of that role."""

    @property
    def words(self) -> str:
        """Return what is changed."""

    @property
    def overrides(self) -> tuple[str, ...]:
        """Return the overrides that make it."""


def advice_row(change: Told, before: Measured, after: Measured) -> AdviceRow:
    """Return the row of a change; `gain` is the share of the loss before that it takes away."""
    return {
        "role": change.role,
        "members": list(change.members),
        "change": change.words,
        "overrides": list(change.overrides),
        "loss_before": before.loss,
        "loss_after": after.loss,
        "gain": (before.loss - after.loss) / before.loss if before.loss else 0.0,
        "accuracy_after": after.accuracy,
        "cost_before": before.cost,
        "cost_after": after.cost,
        "advised": False,
        "reason": "",
    }
