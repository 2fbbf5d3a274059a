"""`command=compare`, and what a sweep ends with: the runs, the table on the terminal, the page."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from quantpipe.app.console import plain
from quantpipe.artifacts import write_bytes
from quantpipe.errors import ConfigError
from quantpipe.pipeline.compare import Found, compare, found_in
from quantpipe.report import compare_page, compared
from quantpipe.tracking import RUN_ID, fetch_runs, filed_in
from quantpipe.types import CompareReport

PAGE, DATA = "compare.html", "compare.json"


def found_runs(given: Sequence[str], launch: Path, uri: str | None) -> list[Found]:
    """Return the named runs: folders of runs and of sweeps, and ids of MLflow runs.

    Relative paths start at `launch`; `uri` is the store of the ids. Raises a QuantpipeError that names any name without
    a run, and why.
    """
    found = [run for name in given for run in _named(name, launch, uri)]
    if len(found) < 2:
        raise ConfigError(
            f"gives {len(found)} run; two are needed at least: folders, ids of MLflow, or one sweep with several jobs",
            where="runs",
        )
    return found


def _named(name: str, launch: Path, uri: str | None) -> Iterator[Found]:
    folder = launch / Path(name).expanduser()
    if RUN_ID.fullmatch(name) and not folder.is_dir():
        with tempfile.TemporaryDirectory(prefix="quantpipe-") as into:
            for run_id, place in fetch_runs(uri, launch, name, Path(into)):
                yield found_in(place, run_id)
        return
    jobs = jobs_of(folder)
    if jobs:
        for job in jobs:
            yield found_in(job, str(job))
    else:
        yield found_in(folder, name)


def jobs_of(folder: Path) -> list[Path]:
    """Return the folders of a sweep's jobs, in their order; none where the folder is a run's own."""
    if (folder / "config.yaml").is_file() or not folder.is_dir():
        return []
    found = {place.parent for name in (".hydra", "config.yaml") for place in folder.glob(f"*/{name}")}
    return sorted(found, key=lambda path: (len(path.name), path.name))


def show(report: CompareReport, folder: Path) -> None:
    """Print the table, and write the page and its numbers into a folder."""
    out = plain()
    out.print(compared(report))
    write(report, folder)
    out.print(f"page    {folder / PAGE}", soft_wrap=True)


def write(report: CompareReport, folder: Path) -> list[Path]:
    """Write the page and its numbers into a folder, and return both paths."""
    paths = [folder / PAGE, folder / DATA]
    write_bytes(paths[0], compare_page(report).encode())
    write_bytes(paths[1], (json.dumps(report, indent=1) + "\n").encode())
    return paths


def compared_sweep(folder: Path) -> CompareReport | None:
    """Return how the jobs of a sweep compare; None where there are fewer than two."""
    jobs = jobs_of(folder)
    return compare([found_in(job, str(job)) for job in jobs]) if len(jobs) > 1 else None


def run_id_of(where: str) -> str | None:
    """Return the id under which MLflow has the run of a folder."""
    record = filed_in(Path(where))
    return None if record is None else record.run_id
