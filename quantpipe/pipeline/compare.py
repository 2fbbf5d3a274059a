"""`command=compare`, and the end of a sweep: what differs between runs, from their folders."""

from __future__ import annotations

import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, product
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from quantpipe.artifacts import read_json, read_npz, read_text
from quantpipe.errors import ArtifactError, QuantpipeError
from quantpipe.metrics.paired import holm, mcnemar, mean_interval, signed_rank
from quantpipe.pipeline.best_run import Contender, best_of
from quantpipe.pipeline.run_folder import RunFolder
from quantpipe.pipeline.settings import COMPARED_GROUPS
from quantpipe.types import ComparedRun, CompareReport, DifferenceRow, PairedRow
from quantpipe.version import __version__

IDLE = (
    "tracking",
    "executor",
    "command",
    "strategy",
    "stages",
    "verify",
    "verbosity",
    "check",
    "explain",
    "plugins",
    "runs",
)
"""Parts of a configuration that change no number of a report."""
OF_DEVICE = frozenset({"hardware", "schema"})
"""Parts of a configuration that follow from the device."""
ABSENT = "–"


@dataclass(frozen=True, eq=False)
class Found:
    """A run as far as its folder tells. `where`: the folder, or MLflow's id, as it was given."""

    where: str
    report: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    samples: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    problem: str | None = None
    given: Mapping[str, str] = field(default_factory=dict)
    """The overrides of a run that has not finished."""

    @property
    def choices(self) -> dict[str, str]:
        """Return the option of each group."""
        run = self.report.get("run") or self.given
        named = {group: run.get(group) for group in COMPARED_GROUPS}
        named["hardware"] = named["hardware"] or (self.config.get("hardware") or {}).get("name")
        return {group: str(value) for group, value in named.items() if value is not None}

    @property
    def evaluated_on(self) -> str | None:
        """Return the digest of the samples of the report."""
        return ((self.report.get("data") or {}).get("evaluate") or {}).get("digest")


def found_in(folder: Path, where: str) -> Found:
    """Return a run from its folder; the `problem` of an unfinished run states that.

    Raises ArtifactError for a folder that holds no run.
    """
    files = RunFolder(folder)
    if not (files.config.is_file() or (folder / ".hydra").is_dir()):
        raise ArtifactError(
            "is no folder of a run, nor of a sweep; legal is one that holds config.yaml, or folders that do",
            stage="compare",
            where=str(folder),
        )
    config: Any = {}
    try:
        if files.config.is_file():
            config = yaml.safe_load(read_text(files.config))
        if not files.report.is_file():
            return Found(where, config=config or {}, problem=_why_unfinished(folder), given=_given(folder))
        report = read_json(files.report)
        samples = read_npz(files.samples) if files.samples.is_file() else {}
    except (QuantpipeError, yaml.YAMLError) as error:
        return Found(where, config=config if isinstance(config, dict) else {}, problem=" ".join(str(error).split()))
    return Found(where, report, config if isinstance(config, dict) else {}, samples)


def compare(runs: Sequence[Found]) -> CompareReport:
    """Return how runs differ in configuration, strategy, accuracy, cost and speed."""
    whole = [run for run in runs if run.problem is None]
    labels = dict(zip(map(id, runs), _labels(), strict=False))
    comparable = len({run.evaluated_on for run in whole}) == 1 and len({_outputs_of(run) for run in whole}) == 1
    strategy, same = _strategy(whole)
    configuration = _configuration(runs)
    names = dict(zip(map(id, runs), _names(runs, configuration), strict=True))
    contenders = [Contender(labels[id(r)], names[id(r)], r.report, r.samples) for r in whole]
    decided = best_of(contenders) if whole and comparable else None
    best = next((run for run in whole if decided and labels[id(run)] == decided.label), None)
    paired = [] if best is None else _paired(best, [run for run in whole if run is not best], labels)
    return {
        "version": __version__,
        "runs": [_run(run, labels[id(run)], names[id(run)]) for run in runs],
        "best": None if decided is None else decided.label,
        "tied": [] if decided is None else list(decided.tied),
        "by": None if decided is None else decided.by,
        "verdict": None if decided is None else decided.verdict,
        "configuration": configuration,
        "strategy": strategy,
        "same_tensors": same,
        "paired": paired,
        "notes": [*_notes(whole), *_over_devices(runs, configuration)],
    }


def _names(runs: Sequence[Found], differences: Sequence[DifferenceRow]) -> list[str]:
    """Return short labels that distinguish the runs; each difference is listed only as far as still needed.

    So the schema is not named where it follows from the hardware.
    """
    known: list[tuple[str, ...]] = [() for _ in runs]
    for row in differences:
        finer = [(*words, _word(row["key"], value)) for words, value in zip(known, row["values"], strict=True)]
        if _told_apart(finer, runs) > _told_apart(known, runs):
            known = finer
    return [" ".join(value for value in words if value) for words in known]


def _word(key: str, value: str) -> str:
    """Return a value by its name, if that is sufficient."""
    return "" if value == ABSENT else f"{key}={value}" if value in ("none", "default", "auto", "null") else value


def _told_apart(names: Sequence[tuple[str, ...]], runs: Sequence[Found]) -> int:
    """Return how many runs differ in name; runs with little data are left out, unless all others are one."""
    whole = [name for name, run in zip(names, runs, strict=True) if run.problem is None]
    return len(set(whole if len(whole) > 1 else names))


def _run(run: Found, label: str, name: str) -> ComparedRun:
    report = run.report
    found: dict[str, float | None] = {}
    if run.problem is None:
        metrics, model, latency = report["metrics"], report["model"], report.get("latency") or {}
        search = report.get("search") or {}
        found = {
            "float_top1": metrics["float"].get("top1"),
            **{name: metrics["realized"].get(name) for name in ("top1", "kl", "sqnr_db")},
            **{
                name: model.get(name) for name in ("realized_bytes", "mean_weight_bits", "mean_activation_bits", "bops")
            },
            "float_nodes": model.get("float_nodes"),
            "cycles": (report.get("cost") or {}).get("cycles"),
            "latency_ms": None if latency.get("of") == "reference" else latency.get("realized_ms"),
            "latency_ratio": None if latency.get("of") == "reference" else latency.get("ratio"),
            "latency_ratio_low": None if latency.get("of") == "reference" else latency.get("ratio_low"),
            "latency_ratio_high": None if latency.get("of") == "reference" else latency.get("ratio_high"),
            "differing": report["agreement"]["differing"],
            "evaluations": search.get("evaluations"),
            "search_seconds": search.get("seconds"),
        }
    return {
        "label": label,
        "name": name or Path(run.where).name,
        "where": run.where,
        "problem": run.problem,
        "meets": None if run.problem else not (report.get("search") or {}).get("shortfall"),
        "figures": found,
        "interval": list((report.get("intervals") or {}).get("realized") or []) or None,
        "metric": (report.get("search") or {}).get("metric"),
        "trace": _trace(report.get("search") or {}, "trace"),
        "trace_cost": _trace(report.get("search") or {}, "trace_cost"),
    }


def _trace(search: Mapping[str, Any], key: str) -> list[list[float]]:
    """Return [candidates tried, number of the best so far] of a search, from its first candidate to its last one."""
    found = [[number + 1, value] for number, value in search.get(key) or ()]
    return [*found, [search["evaluations"], found[-1][1]]] if found else []


def _labels() -> Iterator[str]:
    """Yield A, B, …, Z, AA, AB, …."""
    for length in count(1):
        for letters in product(string.ascii_uppercase, repeat=length):
            yield "".join(letters)


def _outputs_of(run: Found) -> tuple[Any, ...]:
    return run.report["run"].get("model_hash"), run.report["run"].get("output")


def _notes(whole: Sequence[Found]) -> Iterator[str]:
    if len({run.report["run"].get("model_hash") for run in whole}) > 1:
        yield "the runs are of different models, so none of them is called the best, and no test is made"
    elif len({run.evaluated_on for run in whole}) > 1:
        yield "the runs were evaluated on different samples, so that their figures cannot be compared by a test"
    if len({run.report.get("version") for run in whole}) > 1:
        yield "the runs are of different versions of quantpipe"


def _over_devices(runs: Sequence[Found], differences: Sequence[DifferenceRow]) -> Iterator[str]:
    """Yield the mean accuracy over the devices, for each set of runs that are equal in everything else."""
    rest = [row for row in differences if row["key"].partition(".")[0] not in OF_DEVICE]
    alike: dict[tuple[Any, ...], list[Found]] = {}
    for number, run in enumerate(runs):
        if run.problem is None and run.report["metrics"]["realized"].get("top1") is not None:
            own = tuple(row["values"][number] for row in rest)
            alike.setdefault((_outputs_of(run), run.evaluated_on, own), []).append(run)
    for (*_, own), some in alike.items():
        of = {run.choices.get("hardware", ABSENT): float(run.report["metrics"]["realized"]["top1"]) for run in some}
        if len(of) < len(some) or len(of) < 2:
            continue
        name = " ".join(filter(None, (_word(row["key"], value) for row, value in zip(rest, own, strict=True))))
        worst = min(of, key=lambda device: of[device])
        mean, deviation = (100 * float(value) for value in (np.mean([*of.values()]), np.std([*of.values()], ddof=1)))
        yield (
            f"{name or 'accuracy'}: {mean:.1f} ± {deviation:.1f} % over {len(of)} devices (mean and standard "
            f"deviation), lowest {100 * of[worst]:.1f} % on {worst}"
        )


def _paired(best: Found, others: Sequence[Found], labels: Mapping[int, str]) -> list[PairedRow]:
    rows = [row for run in others if (row := _pair(best, run, labels[id(run)])) is not None]
    for of, to in (("p", "p_holm"), ("loss_p", "loss_p")):
        for row, adjusted in zip(rows, holm([row[of] for row in rows]), strict=True):  # type: ignore[literal-required]
            row[to] = adjusted  # type: ignore[literal-required]
    return rows


def _pair(best: Found, run: Found, label: str) -> PairedRow | None:
    one, other = best.samples, run.samples
    if "loss" not in one or "loss" not in other or len(one["loss"]) != len(other["loss"]):
        return None
    size, losses = len(one["loss"]), (other["loss"] - one["loss"]).astype(np.float64)
    loss_p = signed_rank(losses)
    if all("label" in part and "found_class" in part for part in (one, other)):
        right = [part["found_class"] == part["label"] for part in (one, other)]
        only_best, only_this, p = mcnemar(*right)
        mean, low, high = mean_interval(right[1].astype(np.float64) - right[0])
        counts: tuple[int | None, int | None] = (only_best, only_this)
    else:
        p, counts = loss_p, (None, None)
        mean, low, high = mean_interval(losses)
    return {
        "label": label,
        "test": "Wilcoxon" if counts[0] is None else "McNemar",
        "samples": size,
        "only_best": counts[0],
        "only_this": counts[1],
        "difference": mean,
        "low": low,
        "high": high,
        "p": p,
        "p_holm": p,
        "loss_difference": float(np.mean(losses)),
        "loss_p": loss_p,
    }


def _configuration(runs: Sequence[Found]) -> list[DifferenceRow]:
    """Return differing options of groups, then differing keys of equal groups, and of the rest."""
    rows = _differing([run.choices for run in runs], runs)
    exchanged = {row["key"] for row in rows}
    parts = [
        {
            key: value
            for key, value in _flat(run.config)
            if (top := key.partition(".")[0]) not in IDLE and top not in exchanged
        }
        for run in runs
    ]
    return rows + _differing(parts, runs)


def _differing(parts: Sequence[Mapping[str, str]], runs: Sequence[Found]) -> list[DifferenceRow]:
    """Return the values that are not equal everywhere; unknown values of an unfinished run are no difference."""
    rows: list[DifferenceRow] = []
    for key in dict.fromkeys(key for part in parts for key in part):
        values = [part.get(key, ABSENT) for part in parts]
        known = {v for v, run in zip(values, runs, strict=True) if not (run.problem and v == ABSENT)}
        rows += [{"key": key, "values": values}] if len(known) > 1 else []
    return rows


def _flat(node: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(node, Mapping) and node:
        for key, value in node.items():
            yield from _flat(value, f"{prefix}.{key}" if prefix else str(key))
    elif prefix:
        yield prefix, str(node)


def _strategy(whole: Sequence[Found]) -> tuple[list[DifferenceRow], int]:
    """Return differing choices (bits of tensors and weights, structure), and how many are equal."""
    parts = [{f"{c['kind']} {c['key']}": str(c["value"]) for c in run.report.get("choices") or ()} for run in whole]
    rows = _differing(parts, whole)
    return rows, len({key for part in parts for key in part}) - len(rows)


def _given(folder: Path) -> dict[str, str]:
    """Return the overrides that Hydra has written into the folder of a job."""
    try:
        texts = yaml.safe_load((folder / ".hydra" / "overrides.yaml").read_text(encoding="utf-8")) or ()
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return {key.lstrip("+"): value for key, _, value in (str(text).partition("=") for text in texts)}


def _why_unfinished(folder: Path) -> str:
    """Return the last error in main.log, or that there is no error."""
    try:
        lines = (folder / "main.log").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    errors = [line.partition("ended by ")[2] for line in lines if "ERROR" in line and "ended by " in line]
    return f"not finished: {errors[-1]}" if errors else "not finished"
