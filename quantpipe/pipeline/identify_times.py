"""`command=identify` with measured layer times: fit the latency and energy figures of a hardware file."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from quantpipe.artifacts import read_json, write_text
from quantpipe.conform.layer_times import fit, held_out, read_times, refuse_few, refuse_total, with_figures
from quantpipe.errors import ConfigError
from quantpipe.graph.layer_times import layer_times
from quantpipe.hardware.predictor import QUANTITIES, LayerWork, layer_works
from quantpipe.pipeline.context import RunContext
from quantpipe.pipeline.inputs import load
from quantpipe.pipeline.replay import finished_run
from quantpipe.pipeline.settings import Console, Settings
from quantpipe.types import TimesReport
from quantpipe.version import __version__

STAGE, FOLDER = "identify", "identify"
ROUNDS = 7
QUANTILE = 0.25
"""Of a layer's rounds: other work on the machine only adds time, and the fastest round alone depends on luck."""


@dataclass(frozen=True, eq=False)
class _Run:
    context: RunContext
    works: Mapping[str, LayerWork]
    latency_ms: float | None


def identify_times(runs: Mapping[str, Settings], console: Console, times: Path | None, repeats: int) -> TimesReport:
    """Fit the figures of the runs' hardware file to layer times, and write the file with them.

    `runs` are finished runs by the name of their folder, all for one device. `times` is a CSV file; None: the layers
    are measured here. Raises ConfigError for runs of several devices, DataError for times that do not fit.
    """
    names = {settings.spec.name for settings in runs.values()}
    if len(names) > 1:
        raise ConfigError(f"are of several devices ({', '.join(sorted(names))}); legal are runs of one", where="runs")
    opened = {name: _opened(settings, console) for name, settings in runs.items()}
    first = next(iter(opened.values())).context
    folder = first.settings.folder / FOLDER
    origin = first.origin("identify/times", {}, ("hardware",))
    if times is None:
        times = folder / "layer_times.csv"
        write_text(times, _measured_here(opened, console, repeats), origin)
    layers, ignored = read_times(times, {name: run.works for name, run in opened.items()})
    refuse_few(layers, str(times))
    for name, run in opened.items():
        refuse_total([one for one in layers if one.network == name], run.latency_ms, str(times))
    known = [q for q in QUANTITIES if any(q in one.took for one in layers)]
    console.stage(STAGE, f"{len(layers)} layers of {len(opened)} networks, {', '.join(known)}")
    figures = {q: fit(layers, q) for q in known}
    content = with_figures(first.settings.spec.name, first.settings.config["hardware"], figures)
    path = folder / f"{content['name']}.yaml"
    write_text(path, yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120), origin)
    return {
        "version": __version__,
        "runs": [str(settings.folder) for settings in runs.values()],
        "times": str(times),
        "hardware": first.settings.spec.name,
        "file": str(path),
        "fits": [held_out(layers, q) for q in known],
        "kinds": dict(Counter(one.work.kind for one in layers)),
        "ignored": ignored,
    }


def layers_of_runs(runs: Mapping[str, Settings], console: Console) -> dict[str, Mapping[str, LayerWork]]:
    """Return the work of every layer of some finished runs, by the name of the run and the node."""
    return {name: _opened(settings, console).works for name, settings in runs.items()}


def _opened(settings: Settings, console: Console) -> _Run:
    console.stage("model", str(settings.model))
    context = RunContext.of(settings, load(settings), console)
    found = finished_run(context, STAGE)
    context = context.with_topology_of(found.strategy).recovered_network(found.overrides)
    here = settings.spec.runs_here
    latency = read_json(context.files.report).get("latency", {}).get("realized_ms") if here else None
    return _Run(context, layer_works(context.topology, context.graph, found.strategy.bits), latency)


def _measured_here(runs: Mapping[str, _Run], console: Console, repeats: int) -> str:
    """Return a CSV file of the layers' times in onnxruntime, by its profiler on one thread.

    All networks are measured in turn, `ROUNDS` times, and the lower quartile of each layer's rounds counts. So other
    work on the machine disturbs no layer and no network as a whole.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("network", "node", "microseconds"))
    for run in runs.values():
        if not run.context.settings.spec.runs_here:
            raise ConfigError(
                f"is here, and {run.context.settings.spec.name} is another device than onnxruntime on this machine; "
                "legal is a CSV file with times of the device",
                where="identify.times",
            )
    found: dict[str, list[Mapping[str, float]]] = {name: [] for name in runs}
    for number in range(ROUNDS):
        for name, run in runs.items():
            console.stage("profile", f"{name}, {repeats} runs ({number + 1} of {ROUNDS})")
            found[name].append(layer_times(run.context.files.model, _one_batch(run.context), repeats))
    for name, run in runs.items():
        batch = run.context.graph.fixed_batch or 1
        for node in found[name][0]:
            value = float(np.quantile([took.get(node, 0.0) for took in found[name]], QUANTILE))
            if node in run.works and value > 0:
                writer.writerow((name, node, f"{value / batch:.4f}"))
    return text.getvalue()


def _one_batch(context: RunContext) -> dict[str, Any]:
    """Return inputs of one batch of evaluation samples, in the types that the model takes."""
    feeds = next(iter(context.inputs.evaluate.batches(context.graph.fixed_batch or 1))).inputs
    kinds = {port.name: port.given for port in context.graph.inputs if port.given is not None}
    return {port: np.asarray(value).astype(kinds.get(port, value.dtype)) for port, value in feeds.items()}
