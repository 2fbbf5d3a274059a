"""Recovered weights as a search gives them to its candidates (`search.weights=recovered`), for the whole run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from quantpipe.pipeline.context import RunContext
from quantpipe.pipeline.settings import Settings
from quantpipe.plan import NO_OVERRIDES, Overrides
from quantpipe.recover import LayerOptions, Moments, Variants, float_moments
from quantpipe.types import Strategy


def candidate_layer(settings: Settings) -> LayerOptions:
    """Return how a candidate's layers are solved: as in the step `gptq`."""
    return settings.recover.layer("gptq")


def rounding_origin(settings: Settings) -> dict[str, str]:
    """Return a log's record of its candidates' weights; nothing where they are rounded to the nearest."""
    if settings.search.weights == "nearest":
        return {}
    return {"weights": f"{settings.search.weights}: {candidate_layer(settings)!r}, {settings.recover.rows} rows"}


def moments_of(context: RunContext) -> Mapping[str, Moments] | None:
    """Return the moments of the layers' inputs on the calibration samples; None where no candidate needs them."""
    settings = context.settings
    if settings.search.weights == "nearest":
        return None
    context.console.stage("moments", "of every layer's input in the float model")
    return float_moments(
        context.graph,
        context.topology,
        context.inputs.calibrate,
        settings.recover.rows,
        memory_mb=settings.calibrate.memory_mb,
        seed=settings.seed,
        progress=context.console.progress("moments"),
    )


def rounded(context: RunContext, strategy: Strategy) -> Overrides:
    """Return the weights that the search gave this strategy, made again."""
    return rounder(context)(strategy)


def rounder(context: RunContext) -> Callable[[Strategy], Overrides]:
    """Return a function that gives several strategies their weights, with one collection of moments."""
    moments = moments_of(context)
    if moments is None:
        return lambda strategy: NO_OVERRIDES
    settings = context.settings
    planner = context.problem.planner
    variants = Variants(
        context.graph, context.topology, settings.schema, planner, moments=moments, options=candidate_layer(settings)
    )
    return lambda strategy: variants.on(context.variants.at(strategy.structure)).overrides(strategy)
