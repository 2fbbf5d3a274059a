"""Format the measured gain and cost of a change as a row of the answer of `command=explain`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from quantpipe.types import AdviceRow


@dataclass(frozen=True)
class MeasuredLoss:
    """Hold a model's loss on the samples of the search, its accuracy, and its device cost if known."""

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
        """Return the change in words."""

    @property
    def overrides(self) -> tuple[str, ...]:
        """Return the overrides that make it."""


def advice_row(change: Told, before: MeasuredLoss, after: MeasuredLoss) -> AdviceRow:
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
