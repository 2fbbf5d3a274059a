"""What a structure may decide of one graph on one device, and the choices of how many scales a weight has."""

from __future__ import annotations

from collections.abc import Collection

from quantpipe.annotate.block_choices import block_choices
from quantpipe.errors import ConfigError
from quantpipe.graph.view import Graph
from quantpipe.types import Choice, HardwareSpec, Schema, Structure, Topology
from quantpipe.types.choice_key import ChoiceKind, choice_key, read_key
from quantpipe.types.structure import FLOAT, INTEGER, OWN, SHARED


def granularity_choices(reference: Topology, spec: HardwareSpec, schema: Schema) -> list[Choice]:
    """Return a choice for each weight of `reference` between the granularities that the device has."""
    first = schema.weights.granularity
    legal = (first.value, *(g.value for g in spec.weights.granularity if g is not first))
    if len(legal) < 2:
        return []
    kind = ChoiceKind.GRANULARITY
    return [
        Choice(choice_key(kind, site.tensor), kind, legal, site.edges, graded=False)
        for site in reference.weights
        if site.fixed is None
    ]


def refuse_illegal(
    structure: Structure, graph: Graph, spec: HardwareSpec, reference: Topology, *, joins: Collection[str]
) -> None:
    """Reject decisions that the graph or the device does not allow.

    Structures come from searches, and from files that a user may have edited or made elsewhere. `reference`: the
    topology in which the most runs in integers. `joins`: nodes whose operands may be rescaled. Raises ConfigError.
    """
    weights = {w.tensor for w in reference.weights}
    sizes = {choice.key: choice.options for choice in block_choices(reference, graph)}
    for key, option in structure.decided:
        kind, name = read_key(key) or (None, "")
        legal: tuple[str, ...] = ()
        if kind is ChoiceKind.FLOAT and name in graph.by_name:
            legal = (INTEGER, FLOAT)
        elif kind is ChoiceKind.ADD and name in graph.by_name:
            legal = tuple(t.value for t in spec.add_variants)
        elif kind is ChoiceKind.GRANULARITY and name in weights:
            legal = tuple(g.value for g in spec.weights.granularity)
        elif kind is ChoiceKind.RESCALE and name in joins:
            legal = (SHARED, OWN)
        elif kind is ChoiceKind.BLOCK:
            legal = tuple(str(size) for size in sizes.get(key, ()))
        if option not in legal:
            raise ConfigError(
                f"{key} is {option}; " + (f"legal are {', '.join(legal)}" if legal else "there is no such choice"),
                stage="annotate",
                where=spec.name,
            )
