"""File a run in MLflow: its settings, every candidate, the report's numbers, the files, the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from numpy.typing import NDArray

from quantpipe.artifacts import digest_json
from quantpipe.pipeline.effort import seconds_by_stage
from quantpipe.pipeline.inputs import Inputs
from quantpipe.pipeline.settings import Console, Settings
from quantpipe.pipeline.timeline import TRACKING, part_of
from quantpipe.report.note import run_note
from quantpipe.tracking import FOLDER, Tracker
from quantpipe.types import RunReport, Trial, by_model
from quantpipe.version import __version__

NUMBERS: Mapping[str, tuple[str, ...]] = {
    "agreement": ("differing", "elements"),
    "proof": ("proved", "kernels"),
    "free_running": ("top1", "kl", "sqnr_db"),
    "model": (
        "float_bytes", "realized_bytes", "bops", "mean_weight_bits", "mean_activation_bits", "float_nodes",
        "integer_nodes",
    ),
    "latency": ("float_ms", "realized_ms", "ratio"),
    "cost": ("cycles", "weight_bytes", "peak_activation_bytes"),
    "precision": ("loss_before", "loss_after"),
    "search": ("evaluations", "seconds"),
    "recovery": ("before", "after", "seconds"),
    "calibrate": ("seconds", "peak_rss_mb"),
    "effort": ("seconds", "processor_seconds", "passes", "float_pass_seconds", "peak_mb"),
}  # fmt: skip
"""By part of the report, what is filed of it as PART/NAME; report.json, which is filed too, has all."""
JUDGED = ("float", "simulated", "realized", "agreement", "free_running", "outputs", "latency")
"""Groups of metrics that are of the samples of the split `evaluate`."""
NEARNESS = ("sqnr_db", "mse", "cosine", "equal")
"""What is filed of each output, where there are several."""
HASH = 16
"""Digits of a model's hash that are shown."""


def start_tracking(settings: Settings, inputs: Inputs, console: Console) -> None:
    """Open the run's record, with its name and what is worth comparing between runs."""
    model = inputs.graph.model_hash.rpartition(":")[2][:HASH]
    with part_of(console, TRACKING):
        open_record(settings, settings.choices, model, inputs.data_record())


def open_record(settings: Settings, choices: Mapping[str, str], model: str, data: Mapping[str, Any]) -> None:
    """Open the record of a run.

    `choices` are the options of the groups, `model` is the beginning of the model's hash, and `data` describes the
    samples of each split.
    """
    tags = {
        FOLDER: str(settings.folder),
        "quantpipe.version": __version__,
        "quantpipe.hardware_digest": digest_json(settings.spec).rpartition(":")[2][:HASH],
    }
    params = {**_parameters(settings, choices), "model_hash": model}
    settings.tracker.start(_run_name(settings, choices), params, tags)
    settings.tracker.log_datasets(choices.get("dataset", "samples"), data)


def file_trials(tracker: Tracker, trials: Iterable[Trial]) -> None:
    """File candidates as metric steps."""
    tracker.log_trials(
        (t.number, {"search/tried_value": t.score.value, "search/tried_cost": t.score.cost}) for t in trials
    )


def file_report(
    tracker: Tracker, report: RunReport, folder: Path, model: Path, *, example: Mapping[str, NDArray[Any]] | None
) -> None:
    """File bits as parameters, the run folder as artifacts, the model with its signature, numbers as its metrics.

    `example` is one sample of the model's inputs.
    """
    tracker.log_params(_bits(report))
    tracker.log_artifacts(folder)
    tracker.log_model(model, example)
    numbers = _numbers(report)
    judged = {name: value for name, value in numbers.items() if name.partition("/")[0] in JUDGED}
    tracker.log_metrics(judged, on="evaluate")
    tracker.log_metrics({name: value for name, value in numbers.items() if name not in judged})
    curves = [step["curve"] for step in report["recover"] if "curve" in step]
    tracker.log_curve([(epoch + 1, {"train/loss": loss}) for curve in curves for epoch, loss in enumerate(curve)])
    tracker.log_curve(best_so_far(report["search"]))
    tracker.set_tags(_findings(report))


def best_so_far(search: Mapping[str, Any]) -> list[tuple[int, dict[str, float]]]:
    """Return value and cost of the best candidate so far, from the first candidate to the last one.

    Each entry holds the number of candidates tried, and the two numbers. Empty where one candidate was tried.
    """
    values, costs = search.get("trace") or (), search.get("trace_cost") or ()
    found = [
        (int(number) + 1, {"search/best_value": value, "search/best_cost": cost})
        for (number, value), (_, cost) in zip(values, costs, strict=True)
        if value is not None and cost is not None
    ]
    tried = int(search.get("evaluations") or 0)
    if tried < 2 or not found:
        return []
    return found if found[-1][0] >= tried else [*found, (tried, found[-1][1])]


def _numbers(report: RunReport) -> dict[str, float | None]:
    """Return the metrics of a report, few and meant: in groups, as charts are."""
    parts = cast("Mapping[str, Mapping[str, Any] | None]", report)
    models = dict(cast("Mapping[str, Mapping[str, float | None]]", by_model(report["metrics"])))
    top1 = models["float"].get("top1")
    numbers: dict[str, float | None] = {}
    alike = models["simulated"] == models["realized"]
    for part in ("realized",) if alike else ("simulated", "realized"):
        numbers |= {f"{part}/{name}": value for name, value in models[part].items()}
        low, high = (report.get("intervals") or {}).get(part, (None, None))
        numbers |= {f"{part}/top1_low": low, f"{part}/top1_high": high}
    numbers["float/top1"] = top1  # behind the run's own: a comparison of MLflow opens with the first of all
    numbers |= {f"float/{name}": models["float"][name] for name in ("map", "map50") if name in models["float"]}
    for part, names in NUMBERS.items():
        found = parts.get(part) or {}
        numbers |= {f"{part}/{name}": found[name] for name in names if isinstance(found.get(name), int | float)}
    spent = report["effort"]["rows"] if "effort" in report else []
    numbers |= {f"effort/{stage}_seconds": seconds for stage, seconds in seconds_by_stage(spent).items()}
    search = parts["search"] or {}
    numbers |= {"search/chosen_value": search.get("best_value"), "search/chosen_cost": search.get("best_cost")}
    if few := report.get("run", {}).get("realized_samples"):
        numbers["realized/samples"] = float(few)  # its metrics are not of all samples
    rows = cast("Sequence[Mapping[str, Any]]", report.get("outputs") or ())
    for row in rows if len(rows) > 1 else ():
        numbers |= {f"outputs/{row['output']} {k}": v for k, v in row.items() if k in NEARNESS}
    return numbers


def _bits(report: RunReport) -> dict[str, str]:
    """Return how many tensors and weights have how many bits: `8`, or `4 (3), 8 (20)`; strategy.json has them all."""
    found = {}
    for kind, name in (("weight", "bits.weights"), ("activation", "bits.activations")):
        counts = Counter(int(row["value"]) for row in report.get("choices", ()) if row["kind"] == kind)
        several = len(counts) > 1
        text = ", ".join(f"{bits} ({number})" if several else f"{bits}" for bits, number in sorted(counts.items()))
        found[name] = text or "none"
    return found


def _findings(report: RunReport) -> dict[str, str]:
    agreement, search = report["agreement"], report["search"]
    return {
        "quantpipe.agreement": f"{agreement['differing']} of {agreement['elements']} elements differ",
        "quantpipe.target": str(search.get("shortfall") or "met"),
        "mlflow.note.content": run_note(report),
    }


def _run_name(settings: Settings, choices: Mapping[str, str]) -> str:
    """Return a name that begins with the differences of runs: lists cut a name after some twenty characters.

    Hardware and search are always included. Then follow the options and keys that the command line gave, which are the
    only differences between the jobs of a sweep, and the model.
    """
    search = "replay" if settings.command == "replay" else choices.get("search", "")
    given = settings.changed
    words = [_word(group, given[group]) for group in TOLD if group in given]
    keys = [f"{key.rpartition('.')[2]}={value}" for key, value in given.items() if _tells(key, value)]
    return " ".join(part for part in (settings.spec.name, search, *words, *keys, settings.model.stem) if part)


TOLD = ("schema", "threshold", "precision", "objective", "recover", "train", "realize", "effort", "dataset")
"""Groups whose options tell runs apart, where they were given."""
UNTOLD = ("tracking", "executor", "evaluate", "command", "verbosity", "plugins", "strategy", "experiments")
"""Parts of the configuration whose keys tell no runs apart, or say so elsewhere."""
LONGEST_VALUE = 16


def _word(group: str, option: str) -> str:
    """Return an option by its name, if that is sufficient."""
    return f"{group}={option}" if option in ("none", "default", "auto") else option


def _tells(key: str, value: str) -> bool:
    top = key.partition(".")[0]
    is_option = key in (*TOLD, "hardware", "search", "model")
    return not is_option and top not in UNTOLD and 0 < len(value) <= LONGEST_VALUE


def _parameters(settings: Settings, choices: Mapping[str, str]) -> dict[str, object]:
    """Return parameters worth comparing between runs: the option of each group, the seed, and every changed key."""
    idle = ("tracking", "executor", "verbosity")  # they change no result
    replayed = {"search": "replay", "objective": "replay", "threshold": "replay"}
    return {
        **{key: value for key, value in settings.changed.items() if key.partition(".")[0] not in idle},
        **{key: value for key, value in choices.items() if key not in idle},
        "hardware": settings.spec.name,
        "model": settings.model.name,
        "schema": settings.schema.name,
        "realize": settings.backend,
        "command": settings.command,
        "seed": settings.seed,
        **(replayed if settings.command == "replay" else {}),
    }
