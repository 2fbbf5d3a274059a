"""Build the choice space of a topology and decode its assignments.

The choices are bits per scale group and per weight, and ranges where asked for. Every point is valid: tensors that must
agree are one choice, and each choice's options already respect both ends' types. Choices that lead to other topologies
are in `variants`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quantpipe.annotate.conditions import AnnotateOptions
from quantpipe.annotate.range_choices import owner_of, range_choice
from quantpipe.errors import ConfigError
from quantpipe.hardware.gain import Gains
from quantpipe.hardware.storage import storage_types
from quantpipe.types import (
    Choice,
    ChoiceSpace,
    OptionValue,
    Reason,
    ReasonKind,
    ScaleGroup,
    TableSite,
    Topology,
    WeightSite,
)
from quantpipe.types.choice_key import ChoiceKind, choice_key

AUTO = "auto"

STEPS = (-1, 0, 1)
"""Of thresholds, where they are asked for and none are given."""

Assignment = Mapping[str, OptionValue]
"""Choice key -> option."""


def choice_space(
    topology: Topology,
    options: AnnotateOptions,
    percents: Mapping[str, Sequence[int]] | None = None,
    structural: Sequence[Choice] = (),
    *,
    ranges: Mapping[str, Sequence[str]] | None = None,
    gains: Gains | None = None,
    raised: bool = False,
) -> ChoiceSpace:
    """Return the choices in graph order.

    Per group they are `bits:TENSOR` (its first tensor), `step:TENSOR`, `clip:TENSOR` and `range:TENSOR`; then come the
    weights with `bits:WEIGHT` and `range:WEIGHT`, and the structural choices.

    `options`: the settings of annotate, of which the bits and steps are read. `percents`: the shares of the estimated
    range to which a search may clip, 100 first, by key of the scale group; groups that are not there have no such
    choice. `ranges`: the options of the choice of a range, by key of the scale group or weight; others have no such
    choice. `gains`: where `annotate.choices` has `auto`, only bits that the device gains from are offered; None: all of
    them. `raised`: whether all bits are offered that there are, those beyond the device's default (`raise_to`) first.
    """
    choices: list[Choice] = []
    steps = tuple(sorted(steps_offered(options), key=lambda s: (s != 0, s)))
    for group in topology.groups:
        choices.append(_bits(group.key, group, group.tensors, options=options, gains=gains, raised=raised))
        if len(steps) > 1 and group.fixed is None:
            choices.append(Choice(step_key(group.key), ChoiceKind.STEP, steps, group.edges, graded=False))
        clips = tuple((percents or {}).get(group.key, ()))
        if len(clips) > 1 and group.fixed is None:
            choices.append(Choice(clip_key(group.key), ChoiceKind.CLIP, clips, group.edges, graded=False))
        choices += _range(group, ranges)
    for site in topology.weights:
        choices.append(_bits(site.tensor, site, (site.tensor,), options=options, gains=gains, raised=raised))
        choices += _range(site, ranges)
    choices += [_table_bits(t, options) for t in topology.tables if not {t.tensor, t.weight} & {*topology.weight_of}]
    if not choices:
        raise ConfigError(
            "no node of this model runs in integers on this hardware, so there is nothing to search; "
            f"{_why(topology)}. Legal are a model with such a node, and another device (command=check shows what it "
            "runs)",
            stage="annotate",
        )
    return ChoiceSpace((*choices, *structural))


def _why(topology: Topology) -> str:
    """The first few reasons, one node each. That the model is quantized already explains all others."""
    named: dict[Reason, str] = {}
    for node, reason in topology.float_nodes.items():
        named.setdefault(reason, node)
    ordered = sorted(named, key=lambda reason: reason.kind is not ReasonKind.QUANTIZED)
    return "; ".join(f"{named[reason]}: {reason}" for reason in ordered[:4])


def bits_key(tensor: str) -> str:
    """Return the key of the choice of bits of a tensor."""
    return choice_key(ChoiceKind.BITS, tensor)


def step_key(tensor: str) -> str:
    """Return the key of the choice of a threshold step of a tensor."""
    return choice_key(ChoiceKind.STEP, tensor)


def clip_key(tensor: str) -> str:
    """Return the key of the choice of the clipped range of a tensor."""
    return choice_key(ChoiceKind.CLIP, tensor)


def bits_of(topology: Topology, assignment: Assignment, reference: Topology | None = None) -> dict[str, int]:
    """Return the bits of each stored tensor and weight.

    `reference`: the topology whose groups the choices are (None: this one). What it does not store has the most bits
    that its group can have.
    """
    found: dict[str, int] = {}
    for group in topology.groups:
        owner = owner_of(group, reference)
        bits = int(assignment[bits_key(owner)]) if owner is not None else group.max_bits
        found |= dict.fromkeys(group.tensors, max(min(bits, group.widest), min(group.min_bits, group.max_bits)))
    found |= {site.tensor: int(assignment[bits_key(site.tensor)]) for site in topology.weights}
    for table in topology.tables:  # tied in the reference alone, it has no choice of its own
        owned = assignment.get(bits_key(table.weight or table.tensor))
        found[table.tensor] = table.bits[0] if owned is None else int(owned)
    return found | _of_types(topology, found)


def _of_types(topology: Topology, bits: Mapping[str, int]) -> dict[str, int]:
    """The bits of tensors with a range for each type: all bits of the type in which the kernels around have them."""
    groups = [g for g in topology.groups if g.narrower and bits[g.key] < g.max_bits]
    types = storage_types(topology).at(bits) if groups else {}
    return {t: min(max(types[m].bits for m in g.tensors), g.max_bits) for g in groups for t in g.tensors}


def steps_of(topology: Topology, assignment: Assignment, reference: Topology | None = None) -> dict[str, int]:
    """Return a mapping: group key -> threshold step (a power of two by which its range is scaled)."""
    return {g.key: int(assignment.get(step_key(owner_of(g, reference) or ""), 0)) for g in topology.groups}


def clips_of(topology: Topology, assignment: Assignment, reference: Topology | None = None) -> dict[str, int]:
    """Return a mapping: group key -> percent of the estimated range that is kept."""
    return {g.key: int(assignment.get(clip_key(owner_of(g, reference) or ""), 100)) for g in topology.groups}


def raised_choice(site: ScaleGroup | WeightSite) -> Choice:
    """Return the choice between the default's bits of a scale group or a weight and those it may be raised to."""
    return Choice(bits_key(site.key), ChoiceKind.BITS, (site.max_bits, site.widest), site.edges, graded=False)


def _range(site: ScaleGroup | WeightSite, ranges: Mapping[str, Sequence[str]] | None) -> list[Choice]:
    offered = (ranges or {}).get(site.key, ())
    return [range_choice(site, offered)] if len(offered) > 1 else []


def steps_offered(options: AnnotateOptions) -> tuple[int, ...]:
    """Return the steps by which a search may scale ranges; 0 alone where it may not."""
    return STEPS if "threshold" in options.choices and options.threshold_steps == (0,) else options.threshold_steps


def _bits(
    tensor: str,
    site: ScaleGroup | WeightSite,
    tensors: Sequence[str],
    *,
    options: AnnotateOptions,
    gains: Gains | None,
    raised: bool,
) -> Choice:
    most = site.max_bits
    least = min(max(options.min_bits, site.min_bits), most)
    if raised and site.widest > most:
        found = tuple(range(site.widest, least - 1, -1))
    elif ChoiceKind.BITS in options.choices or (AUTO in options.choices and gains is None):
        found = tuple(range(most, least - 1, -1))
    elif AUTO in options.choices and gains is not None:
        found = gains.options(tensors, most, least)
    else:
        found = (most,)
    return Choice(bits_key(tensor), ChoiceKind.BITS, found, site.edges)


def _table_bits(site: TableSite, options: AnnotateOptions) -> Choice:
    """The widths of a table that the device reads: all of them are worth a choice, as each is stored in fewer bytes."""
    searched = ChoiceKind.BITS in options.choices or AUTO in options.choices
    found = tuple(b for b in site.bits if b >= options.min_bits) if searched else site.bits[:1]
    return Choice(bits_key(site.tensor), ChoiceKind.BITS, found or site.bits[:1], site.edges)
