"""Describe the faults at the places with the largest losses, as far as the numbers show them.

A share of an error shows how much is lost. The reason follows from other data: calibration statistics (outliers, masks,
parts far apart), and the plan (a weight whose scale was raised for its bias). Values that do not fit their range, and
sums that overflow, are further reasons.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quantpipe.explain.advice_order import HALF
from quantpipe.scoring.precision import RangeFinding, outliers_of
from quantpipe.types import AdviceRow, CauseRow, RaisedRow, TensorStats

SERIOUS = 0.02
"""Of the values of a tensor: fewer that saturate are what a range by `mse` cuts off with gain."""

BEYOND = 1.5
"""So many times as far as its range its values must reach, for the range to be at fault."""

RAISED = 2.0
"""Times by which a bias raises the scale of its weight, for that to be the fault."""


def name_faults(
    causes: Sequence[CauseRow],
    *,
    statistics: Mapping[str, TensorStats],
    raised: Sequence[RaisedRow] = (),
    findings: Sequence[RangeFinding] = (),
) -> None:
    """Add to each row a description of its fault, in place; rows without a clear fault get none.

    `statistics` are the calibration statistics of tensors, if known. `raised` are weights whose scales were raised for
    their biases; `findings` are about the ranges of operands.
    """
    by_bias = {row["node"]: row for row in raised if row["factor"] >= RAISED}
    told = {finding.tensor: finding.note for finding in reversed(findings)}
    told |= {finding.node: finding.note for finding in reversed(findings) if finding.said_of_node}
    for row in causes:
        if row["kind"] in ("weight", "bias"):
            row["fault"] = _of_bias(by_bias[row["node"]]) if row["node"] in by_bias else _saturated_bias(row)
        else:
            row["fault"] = (
                _overflow(row) or _range(row) or told.get(row["tensor"]) or told.get(row["node"]) or
                _outliers(row, statistics)
            )  # fmt: skip


def name_reasons(advice: Sequence[AdviceRow], causes: Sequence[CauseRow]) -> None:
    """Add to each change the reason why it helps: the fault at its place.

    An advised change gets the fault of the worst place, if it is about the whole run, or removes half of the loss
    including this place.
    """
    faults = {row["tensor"]: row["fault"] for row in causes}
    worst = next((row for row in causes if row["alone"] > 0 or row["overflow"]), None)
    for row in advice:
        own = (faults.get(member, "") for member in row["members"])
        found = next((fault for fault in own if fault), "")
        wide = not row["members"] or (not found and row["gain"] >= HALF)
        if wide and row["advised"] and worst is not None and worst["fault"]:
            found = f"mostly at {worst['tensor']}: {worst['fault']}"
        row["reason"] = found


def _of_bias(row: RaisedRow) -> str:
    channels = f"{row['channels']} channel{'' if row['channels'] == 1 else 's'}"
    return (
        f"the bias of {row['node']} is too large for its type at the scale input x weight. Therefore {channels} of the "
        f"weight got a scale up to {row['factor']:.3g} times as coarse"
    )


def _saturated_bias(row: CauseRow) -> str:
    return f"{row['overflow']:.0%} of its integers are at the end of their type" if row["overflow"] else ""


def _overflow(row: CauseRow) -> str:
    return f"its sums overflow, in {row['overflow']:.2%} of its elements" if row["overflow"] else ""


def _range(row: CauseRow) -> str:
    """Return a range that leaves out more than rare values."""
    before, after = row["before"], row["after"]
    clipped = row["clipping"] is not None and row["rounding"] is not None and row["clipping"] > row["rounding"]
    if before is None or after is None or not clipped or (row["saturated"] or 0.0) < SERIOUS:
        return ""
    reach, held = max(-before["min"], before["max"]), max(-after["min"], after["max"])
    if reach < BEYOND * held:
        return ""
    return (
        f"its range ends at {after['min']:.4g} and {after['max']:.4g}, and its values reach {before['min']:.4g} and "
        f"{before['max']:.4g}: {row['saturated']:.0%} of them saturate"
    )


def _outliers(row: CauseRow, statistics: Mapping[str, TensorStats]) -> str:
    stats = statistics.get(row["tensor"])
    return outliers_of(stats) or "" if stats is not None else ""
