"""Let calibrators of layers decide, where the threshold option or a plug-in package has some."""

from __future__ import annotations

import time
from dataclasses import replace

from quantpipe import extend
from quantpipe.annotate.range_choices import OUTPUT_ERROR
from quantpipe.calibrate.decided import DecidedEstimator
from quantpipe.calibrate.other_estimators import layer_estimator
from quantpipe.pipeline.context import RunContext
from quantpipe.recover.layer_units import Choosing
from quantpipe.recover.layer_views import calibrate_layers
from quantpipe.types import Profile


def decide_layers(context: RunContext, profile: Profile) -> None:
    """Fill in the decisions of the run's calibrators, at the bits that a search begins with."""
    settings = context.settings
    if isinstance(context.estimator, DecidedEstimator):
        general = getattr(settings.estimator, "layer", None)
        choosing = Choosing(general, f"threshold={type(settings.estimator).__name__}")
        if general is not None or any(extend.calibrator_of(k.op) is not None for k in context.topology.kernels):
            _decide(context, profile, choosing)
    if OUTPUT_ERROR in context.others:
        general = layer_estimator(settings.estimator).layer
        _decide(
            replace(context, estimator=context.others[OUTPUT_ERROR], others={}),
            profile,
            Choosing(general, OUTPUT_ERROR),
        )


def _decide(context: RunContext, profile: Profile, choosing: Choosing) -> None:
    """Fill the decisions of one calibrator into the run's estimator."""
    settings, table = context.settings, context.thresholds(profile)
    started = time.perf_counter()
    found = calibrate_layers(
        context.problem,
        table,
        table.strategy(context.space.decode(context.space.start)),
        context.inputs.calibrate,
        choosing=choosing,
        memory_mb=settings.calibrate.memory_mb,
        progress=context.console.progress("calibrate"),
    )
    context.console.stage(
        "calibrate",
        f"{len(found.ranges)} ranges and {len(found.weights)} weights decided layer by layer in "
        f"{time.perf_counter() - started:.1f} s",
    )
