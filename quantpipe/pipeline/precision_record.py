"""Records of the decisions before the search, for the folder, the terminal and the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import cast

from quantpipe.annotate.choices import bits_key
from quantpipe.annotate.range_choices import range_key
from quantpipe.annotate.tail import NEVER, TAIL
from quantpipe.pipeline.context import RunContext
from quantpipe.scoring.precision import (
    FindingKind,
    PrecisionMove,
    RangeFinding,
    Selection,
    moves_of,
    named,
    raised_moves,
    range_moves,
)
from quantpipe.types import FindingRow, PrecisionRecord, PrecisionTrialRow, RoleRow
from quantpipe.types.choice_key import ChoiceKind, choice_key, read_key


def why(loss: float, certain: Sequence[RangeFinding], refused: str | None) -> str:
    """Return why a decision is needed.

    `loss` is the loss of the start, in nats; `certain` are operands without a reliable range. `refused` is why the
    device cannot express the start; None if it can.
    """
    if refused is not None:
        return f"in integers wherever the device has them, it cannot express the model: {refused}"
    if certain:
        return f"{len(certain)} operands depend on an input and never varied in calibration"
    return f"in integers wherever the device has them, the outputs lose {loss:.3g}"


def nodes_of(said: Sequence[RangeFinding], *kinds: FindingKind) -> frozenset[str]:
    """Return the nodes of which findings of these kinds speak."""
    return frozenset(finding.node for finding in said if finding.kind in kinds)


def floats_of(context: RunContext, hosted: frozenset[str]) -> tuple[str, ...]:
    """Return the nodes that the device may run in float and, of `hosted`, those that only its host may, in order."""
    may = {*context.variants.may_float, *hosted}
    return tuple(node.name for node in context.graph.nodes if node.name in may)


def record_of(
    context: RunContext, selection: Selection, said: Sequence[RangeFinding], measured: PrecisionRecord
) -> PrecisionRecord:
    """Return the record of the decisions, as precision.json holds it.

    `context` has everything that could be decided. `measured` has the evaluations and seconds.
    """
    first, last = selection.tried[0], selection.taken
    tail = selection.tail if selection.tail <= selection.moved else frozenset()
    floats = [node.name for node in context.graph.nodes if node.name in selection.moved]
    groups = [group for group in context.variants.reference.groups if range_key(group.key) in selection.moved]
    wider: list[RoleRow] = [
        {"role": f"{len(move.nodes)} ranges after {move.op}", "nodes": len(move.nodes), "share": None,
         "why": "the whole range loses less than the estimated one"}
        for move in range_moves(context.graph, groups)
    ]  # fmt: skip
    raised = [key.subject for found in selection.moved if (key := read_key(found)) and key.kind is ChoiceKind.BITS]
    return {
        "mode": "auto",
        "loss_before": first.loss,
        "loss_after": last.loss,
        "cost_before": first.cost,
        "cost_after": last.cost,
        **measured,
        "float": floats,
        "ranges": [group.key for group in groups],
        "raised": sorted(raised),
        "roles": [
            *_tail_rows(context, tail),
            *(_role(move, said) for move in moves_of(context.graph, frozenset(floats) - tail)),
            *wider,
            *_raised_rows(context, frozenset(raised)),
            *(
                _outlier_row(context, finding)
                for finding in said
                if first.loss > selection.above and _is_outlier(finding)
            ),
        ],
        "findings": [cast("FindingRow", asdict(finding)) for finding in said],
        "trials": [cast("PrecisionTrialRow", {**asdict(t), "nodes": len(t.nodes)}) for t in selection.tried],
        "notes": _notes(said, floats),
    }


def _raised_rows(context: RunContext, raised: frozenset[str]) -> list[RoleRow]:
    reference = context.variants.reference
    widest = {bits_key(site.key): site.widest for site in reference.raisable}
    return [
        {
            "role": f"{widest[move.nodes[0]]} bits after {move.op}: {move.nodes[0]}",
            "nodes": len(move.nodes),
            "share": None,
            "why": "measured; hardware.activations.raise_to=null leaves all tensors at hardware.activations.bits",
        }
        for move in raised_moves(context.graph, reference, raised)
    ]


def _tail_rows(context: RunContext, tail: frozenset[str]) -> list[RoleRow]:
    if not tail:
        return []
    share = sum(move.share for move in moves_of(context.graph, tail))
    first = next(node.name for node in context.graph.nodes if node.name in tail)
    role = f"{choice_key(ChoiceKind.FLOAT, TAIL)}: everything after the last layers, from {first} on"
    return [
        {
            "role": role,
            "nodes": len(tail),
            "share": share,
            "why": f"measured; annotate.float_tail={NEVER} keeps it in integers",
        }
    ]


def _role(move: PrecisionMove, said: Sequence[RangeFinding]) -> RoleRow:
    kinds = dict.fromkeys(str(finding.kind) for finding in said if finding.node in move.nodes)
    reason = ", ".join(kinds) or "measured"
    return {"role": f"{named(move)} in float", "nodes": len(move.nodes), "share": move.share, "why": reason}


def _is_outlier(finding: RangeFinding) -> bool:
    return finding.kind is FindingKind.OUTLIERS


def _outlier_row(context: RunContext, finding: RangeFinding) -> RoleRow:
    """Return the row of a tensor with outliers, which changes nothing here: other options cost nothing, float does."""
    later = any("equalize" in str(step) for step in context.settings.recover.steps)
    mends = "equalize (recovery) rescales channels with very different ranges"
    return {
        "role": f"no node yet: outliers in {finding.tensor}",
        "nodes": 0,
        "share": None,
        "why": f"{finding.note}; {mends}{'' if later else ', as recover=auto does'}",
    }


def _notes(said: Sequence[RangeFinding], floats: Sequence[str]) -> list[str]:
    constant = [finding for finding in said if finding.kind is FindingKind.CONSTANT]
    tensors = dict.fromkeys(finding.tensor for finding in constant)
    if not tensors:
        return []
    alone = len(tensors) == 1
    count = "one tensor that depends on an input" if alone else f"{len(tensors)} tensors that depend on inputs"
    kept = all(finding.node in floats for finding in constant)
    return [
        f"{count} {'was' if alone else 'were'} constant in all calibration samples (the first: {next(iter(tensors))}), "
        "so that no range can be known: "
        f"{'their readers stay in float' if kept else 'the range is that one value'}. "
        "Calibrate on samples in which they vary, such as padded samples for a mask"
    ]
