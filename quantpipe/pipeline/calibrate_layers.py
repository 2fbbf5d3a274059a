"""Let calibrators of layers decide, where the threshold option or a plug-in package has some."""

from __future__ import annotations

import time

from quantpipe import extend
from quantpipe.calibrate.decided import DecidedEstimator
from quantpipe.pipeline.context import RunContext
from quantpipe.plan import Problem
from quantpipe.recover.layer_units import Choosing
from quantpipe.recover.layer_views import calibrate_layers
from quantpipe.types import Profile


def decide_layers(job: RunContext, profile: Profile) -> None:
    """Fill in the decisions of the run's calibrators, at the bits that a search begins with."""
    if not isinstance(job.estimator, DecidedEstimator):
        return
    settings, table = job.settings, job.thresholds(profile)
    choosing = Choosing(getattr(settings.estimator, "layer", None), f"threshold={type(settings.estimator).__name__}")
    if choosing.general is None and all(extend.calibrator_of(k.op) is None for k in job.topology.kernels):
        return
    started = time.perf_counter()
    found = calibrate_layers(
        Problem(job.graph, job.topology, settings.spec, settings.schema),
        table,
        table.strategy(job.space.decode(job.space.start)),
        job.inputs.calibrate,
        choosing=choosing,
        memory_mb=settings.calibrate.memory_mb,
        progress=job.console.progress("calibrate"),
    )
    job.console.stage(
        "calibrate",
        f"{len(found.ranges)} ranges and {len(found.weights)} weights decided layer by layer in "
        f"{time.perf_counter() - started:.1f} s",
    )
