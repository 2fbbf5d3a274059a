"""Choices of how many input channels a block of a weight has, where each block has a float scale.

A choice `block:WEIGHT` offers the sizes that the device runs (`weights.block`), its default first. Smaller blocks lose
less and store more scales. Of sizes that hold a whole channel, the smallest is offered.
"""

from __future__ import annotations

from dataclasses import replace

from quantpipe.graph.view import Graph
from quantpipe.types import Blocks, Choice, Structure, Topology, WeightSite
from quantpipe.types.choice_key import ChoiceKind, choice_key


def block_choices(topology: Topology, graph: Graph) -> list[Choice]:
    """Return the choices of a topology, in graph order; weights without another size are left out."""
    found = []
    for site in topology.weights:
        if site.block is None or not site.block.are_real or site.frozen or site.fixed is not None:
            continue
        sizes = _sizes(site.block, graph.shapes[site.tensor][1 - site.channel_axis])
        if len(sizes) > 1:
            key = choice_key(ChoiceKind.BLOCK, site.tensor)
            found.append(Choice(key, ChoiceKind.BLOCK, sizes, site.edges, graded=False))
    return found


def with_block(site: WeightSite, structure: Structure) -> WeightSite:
    """Return a weight with blocks of the size that is decided; itself where nothing is."""
    size = structure.block(site.tensor)
    return site if size is None or site.block is None else replace(site, block=replace(site.block, size=size))


def _sizes(block: Blocks, inputs: int) -> tuple[int, ...]:
    """Return the sizes that give different blocks, the default first."""
    every = sorted({block.size, *block.given_sizes})
    different = [size for size in every if all(other >= size or other < inputs for other in every)]
    return (block.size, *(size for size in different if size != block.size))
