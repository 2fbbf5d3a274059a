"""Choices of a range: other ranges than the estimated one, which cost a device nothing.

A choice `range:NAME` is about a scale group (by its first tensor) or about a weight. Its options are words, the
estimated range first; a word is a factor on that range, or the whole range that the values have.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from quantpipe.types import Choice, OptionValue, PowerOfTwo, ScaleGroup, TensorSchema, Topology, WeightSite
from quantpipe.types.choice_key import ChoiceKind, choice_key

ESTIMATED, WHOLE = "estimated", "whole"
"""What the estimator gives; everything that calibration saw, or all values of a weight."""
HALVED, DOUBLED, NARROWER, WIDER = "halved", "doubled", "narrower", "wider"

FACTORS: Mapping[str, float] = MappingProxyType({HALVED: 0.5, DOUBLED: 2.0, NARROWER: 0.75, WIDER: 1.25})
"""What an option multiplies the estimated range by."""


PERCENTILE, OUTPUT_ERROR = "percentile", "output_error"
"""What other estimators give, at their defaults; offered where `annotate.choices` has `estimators`."""

OTHERS = (PERCENTILE, OUTPUT_ERROR)


def range_key(name: str) -> str:
    """Return the key of the choice of a range: of a scale group by its first tensor, or of a weight."""
    return choice_key(ChoiceKind.RANGE, name)


def range_options(schema: TensorSchema, site: ScaleGroup | WeightSite, *, estimators: bool = False) -> tuple[str, ...]:
    """Return the ranges that are worth trying under a schema, the estimated one first.

    Scales that are powers of two differ by one exponent at least. A weight is known whole, so nothing is wider than
    its values. With `estimators`, ranges by other estimators follow; outliers of a weight are no tail of samples, so it
    has no percentile.
    """
    return (*_scaled(schema, site), *((OTHERS if isinstance(site, ScaleGroup) else (OUTPUT_ERROR,)) * estimators))


def _scaled(schema: TensorSchema, site: ScaleGroup | WeightSite) -> tuple[str, ...]:
    """The estimated range, and those that are a factor of it or everything that was seen."""
    if schema.power_of_two is not PowerOfTwo.NONE:
        return (ESTIMATED, HALVED, DOUBLED, WHOLE) if isinstance(site, ScaleGroup) else (ESTIMATED, HALVED, DOUBLED)
    return (ESTIMATED, NARROWER, WIDER, WHOLE) if isinstance(site, ScaleGroup) else (ESTIMATED, NARROWER, WHOLE)


def range_choice(site: ScaleGroup | WeightSite, options: Collection[str] = (ESTIMATED, WHOLE)) -> Choice:
    """Return the choice of a range; without options, between the estimated one and the whole one."""
    return Choice(range_key(site.key), ChoiceKind.RANGE, tuple(options), site.edges, graded=False)


def offers_ranges(site: ScaleGroup | WeightSite) -> bool:
    """Return whether the range of a scale group or a weight is free: nobody states it, and it has one of its own."""
    return site.fixed is None and (isinstance(site, ScaleGroup) or (site.block is None and not site.frozen))


def ranges_of(
    topology: Topology, assignment: Mapping[str, OptionValue], reference: Topology | None = None
) -> dict[str, str]:
    """Return a mapping: key of a scale group or weight -> option of its range, where it is not the estimated one.

    `reference`: the topology whose groups the choices are about (None: this one).
    """
    chosen = {key: str(o) for key, o in assignment.items() if o in FACTORS or o in (WHOLE, *OTHERS)}
    if not chosen:
        return {}
    owners = {group.key: owner_of(group, reference) for group in topology.groups}
    owners |= {site.tensor: site.tensor for site in topology.weights}
    pairs = ((key, chosen.get(range_key(owner or ""))) for key, owner in owners.items())
    return {key: option for key, option in pairs if option is not None}


def owner_of(group: ScaleGroup, reference: Topology | None) -> str | None:
    """Return the key of the reference's group that this one is a part of; None where it holds none of its tensors."""
    if reference is None:
        return group.key
    return next((reference.group_of[t].key for t in group.tensors if t in reference.group_of), None)
