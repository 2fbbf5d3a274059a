"""`command=sync`: what a tracking store has missed of finished runs, from their folders."""

from __future__ import annotations

from typing import cast

from quantpipe.artifacts import read_json
from quantpipe.pipeline.log_run import HASH, file_report, file_trials, open_record
from quantpipe.pipeline.run_folder import RunFolder
from quantpipe.pipeline.settings import COMPARED_GROUPS, Settings
from quantpipe.search.log import read_trials
from quantpipe.types import RunReport


def sync(settings: Settings) -> None:
    """File a finished run once more, in the run of the store that its folder names, or in a new one.

    Raises ConfigError where the store cannot be reached, and ArtifactError where a file of the run is missing or
    damaged.
    """
    files = RunFolder(settings.folder)
    report = cast("RunReport", read_json(files.report))
    choices = {key: str(value) for key, value in report["run"].items() if key in COMPARED_GROUPS and value is not None}
    model = report["run"]["model_hash"].rpartition(":")[2][:HASH]
    open_record(settings, choices, model, read_json(files.data))
    with settings.tracker as tracker:
        file_report(tracker, report, settings.folder, files.model, example=None)
        if files.trials.is_file():
            file_trials(tracker, sorted((line.trial for line in read_trials(files.trials)), key=lambda t: t.number))
