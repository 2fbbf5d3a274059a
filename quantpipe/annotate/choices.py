"""The choice space of a topology: bits per scale group and per weight, and ranges where asked for.

Every point is valid: tensors that must agree are one choice, and each choice's options already respect both ends'
types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quantpipe.annotate.conditions import AnnotateOptions
from quantpipe.errors import ConfigError
from quantpipe.oprules.float_ops import QUANTIZED
from quantpipe.types import Choice, ChoiceSpace, Topology

BITS = "bits"
STEP = "threshold_step"
CLIP = "clip_percent"


def choice_space(topology: Topology, options: AnnotateOptions, percents: Sequence[int] = ()) -> ChoiceSpace:
    """Choices in graph order: per group `bits:TENSOR` (its first tensor), `step:TENSOR`, `clip:TENSOR`; then weights.

    `percents`: to what share of the estimated range a search may clip, 100 first; none where it may not.
    """
    choices: list[Choice] = []
    for group in topology.groups:
        choices.append(_bits(group.key, group.max_bits, group.edges, max(options.min_bits, group.min_bits)))
        if len(options.threshold_steps) > 1 and group.fixed is None:
            steps = sorted(options.threshold_steps, key=lambda s: (s != 0, s))
            choices.append(Choice(step_key(group.key), STEP, tuple(steps), group.edges, graded=False))
        if len(percents) > 1 and group.fixed is None:
            choices.append(Choice(clip_key(group.key), CLIP, tuple(percents), group.edges, graded=False))
    choices += [_bits(w.tensor, w.max_bits, w.edges, max(options.min_bits, w.min_bits)) for w in topology.weights]
    if not choices:
        raise ConfigError(
            f"no node of this model runs in integers on this hardware, so there is nothing to search; {_why(topology)}",
            stage="annotate",
        )
    return ChoiceSpace(tuple(choices))


def _why(topology: Topology) -> str:
    """The first few reasons, one node each. That the model is quantized already explains all others."""
    named: dict[str, str] = {}
    for node, reason in topology.float_nodes.items():
        named.setdefault(reason, node)
    ordered = sorted(named, key=lambda reason: reason != QUANTIZED)
    return "; ".join(f"{named[reason]}: {reason}" for reason in ordered[:4])


def bits_key(tensor: str) -> str:
    return f"bits:{tensor}"


def step_key(tensor: str) -> str:
    return f"step:{tensor}"


def clip_key(tensor: str) -> str:
    return f"clip:{tensor}"


def bits_of(topology: Topology, assignment: Mapping[str, int]) -> dict[str, int]:
    """Tensor -> bits, for stored tensors and weights."""
    found = {t: assignment[bits_key(g.key)] for g in topology.groups for t in g.tensors}
    return found | {w.tensor: assignment[bits_key(w.tensor)] for w in topology.weights}


def steps_of(topology: Topology, assignment: Mapping[str, int]) -> dict[str, int]:
    """Group key -> threshold step (a power of two by which its range is scaled)."""
    return {g.key: assignment.get(step_key(g.key), 0) for g in topology.groups}


def clips_of(topology: Topology, assignment: Mapping[str, int]) -> dict[str, int]:
    """Group key -> percent of the estimated range that is kept."""
    return {g.key: assignment.get(clip_key(g.key), 100) for g in topology.groups}


def _bits(tensor: str, most: int, edges: tuple[str, ...], floor: int) -> Choice:
    least = min(floor, most)
    return Choice(bits_key(tensor), BITS, tuple(range(most, least - 1, -1)), edges)
