"""Plan weights whose scales are given by a user or by a quantized model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from quantpipe.annotate.constraints import WHERE, Constraint, ConstraintKind
from quantpipe.annotate.given import FittedWeight, fitted_weight
from quantpipe.errors import ConfigError
from quantpipe.graph.view import Graph
from quantpipe.hardware.storage import weight_only_types
from quantpipe.plan.given_blocks import given_blocks
from quantpipe.types import DType, GivenWeight, HardwareSpec, ImportedGrid, Schema, Symmetry, WeightSite


def settled(
    site: WeightSite, graph: Graph, spec: HardwareSpec, schema: Schema, *, stated: Constraint | None
) -> WeightSite:
    """Return the site of a weight with its scales, where they are known beforehand.

    `graph`: the clean model, with what a quantized file gives of it. `stated`: what the user states of the weight,
    which comes first. Raises ConfigError for stated scales that the device cannot have.
    """
    if stated is not None and stated.kind is ConstraintKind.UNIFORM:
        found = fitted_weight(_stated(site, stated, graph), site.channel_axis, site.dtype, spec=spec, schema=schema)
        if found.thresholds is None or found.change:
            raise ConfigError(
                f"the weight {site.tensor!r} cannot have this uniform scale on {spec.name} under the schema "
                f"{schema.name}: it has {found.change}",
                where=WHERE,
            )
        return _with(site, found)
    given = graph.imported
    weight = given.kept_weights.get(site.tensor) if given is not None else None
    if given is None or weight is None or stated is not None:
        return site
    if site.block is not None and site.block.are_real:
        given_site = site
        site = _with_given_blocks(site, weight, graph, spec)
        how = schema.weights if spec.weights.symmetric else replace(schema.weights, symmetry=Symmetry.ASYMMETRIC)
        blocks = given_blocks(weight, site, how)
        if isinstance(blocks, str):
            return given_site
        return replace(site, max_bits=blocks.bits, min_bits=blocks.bits, frozen=True, raised_bits=0)
    found = fitted_weight(weight, site.channel_axis, site.dtype, spec=spec, schema=schema)
    return site if found.thresholds is None else replace(_with(site, found), frozen=given.keep.integers)


def _with_given_blocks(site: WeightSite, weight: GivenWeight, graph: Graph, spec: HardwareSpec) -> WeightSite:
    """Return the site with the block size and the bits of a given weight, as far as the device has them."""
    block, types = site.block, weight_only_types(spec, graph.by_name[site.nodes[0]].op)
    if block is not None and weight.block in block.given_sizes:
        block = replace(block, size=weight.block)
    return replace(site, block=block, max_bits=max((site.max_bits, *(kind.bits for kind in types))))


def _with(site: WeightSite, found: FittedWeight) -> WeightSite:
    bits = found.bits
    return replace(
        site, axis=found.axis, max_bits=bits, min_bits=bits, fixed=found.thresholds, block=None, raised_bits=0
    )


def _stated(site: WeightSite, stated: Constraint, graph: Graph) -> GivenWeight:
    """A statement as a weight of which only the scales are given."""
    shape, kind = graph.shapes[site.tensor], stated.dtype or DType.INT8
    count, scales, zeros = shape[site.channel_axis], stated.scales, stated.zeros
    if len(scales) not in (1, count) or len(zeros) not in (1, len(scales)):
        raise ConfigError(
            f"the weight {site.tensor!r} has {count} output channels, and is given {len(scales)} scales and "
            f"{len(zeros)} zero points; legal is one of each, or one for each channel",
            where=WHERE,
        )
    if kind.signed is not site.dtype.signed or kind.bits > site.dtype.bits:
        raise ConfigError(
            f"the weight {site.tensor!r} is stored as {site.dtype} on this hardware, not as {kind}", where=WHERE
        )
    if any(not kind.qmin <= z <= kind.qmax for z in zeros):
        raise ConfigError(
            f"the weight {site.tensor!r} is given the zero point {zeros[0]}; {kind} holds {kind.qmin} to {kind.qmax}",
            where=WHERE,
        )
    scale, zero = np.asarray(scales, np.float32), np.asarray(zeros, np.int64)
    several = len(scales) > 1
    scale, zero = (scale, np.broadcast_to(zero, len(scales))) if several else (scale[0], zero[0])
    low = kind.qmin + int(kind.signed and bool(np.all(zero == 0)))
    grid = ImportedGrid(
        np.asarray(scale), np.asarray(zero), kind, low, kind.qmax, site.channel_axis if several else None
    )
    values = np.full(shape, low, kind.numpy)  # both ends must fit
    values.flat[-1] = kind.qmax
    return GivenWeight(site.tensor, values, grid)
