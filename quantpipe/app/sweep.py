"""Finish a sweep once its last job has ended: compare its jobs, and close its parent run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from quantpipe.app import compare_command as compare
from quantpipe.app.console import say
from quantpipe.errors import QuantpipeError
from quantpipe.report import compare_note
from quantpipe.tracking import RUN_ID, finish_sweep
from quantpipe.types import CompareReport

BEST = "quantpipe.best_run"
_open: list[DictConfig] = []
"""The sweep that runs in this process, until its end has been told."""


class SweepEnd(Callback):
    """Hydra calls this in the launching process, whatever the launcher."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Keep which sweep begins: Hydra does not tell the end of one whose job fails."""
        _open.append(config)

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Compare the jobs, and close the sweep's parent run in MLflow."""
        end_sweep()


def sweep_is_open() -> bool:
    """Return whether a sweep runs whose end has not been told."""
    return bool(_open)


def end_sweep() -> None:
    """Compare the jobs of the sweep that runs here, and close its parent run; once, and only where there is one."""
    while _open:
        config = _open.pop()
        launch = Path(config.hydra.runtime.cwd)
        folder = launch / config.hydra.sweep.dir
        tags: dict[str, str] = {}
        files: list[Path] = []
        if OmegaConf.select(config, "command") in ("run", "replay"):
            try:
                report = compare.compared_sweep(folder)
                if report is not None:
                    compare.show(report, folder)
                    tags, files = _tags(report), [folder / compare.PAGE, folder / compare.DATA]
            except QuantpipeError as error:  # the jobs are done, and what is wrong is with their comparison alone
                say(f"the jobs could not be compared: {error}", head="warning: ")
        uri, best = OmegaConf.select(config, "tracking.uri"), tags.get(BEST)
        finish_sweep(folder, uri, launch, tags=tags, files=files, best=best if RUN_ID.fullmatch(best or "") else None)


def _tags(report: CompareReport) -> dict[str, str]:
    """Return the parent run's summary of its jobs: the table, and the best job."""
    best = next((run for run in report["runs"] if run["label"] == report["best"]), None)
    tags = {"mlflow.note.content": compare_note(report)}
    if best is not None:
        run_id = compare.run_id_of(best["where"])
        tags |= {"quantpipe.best": best["name"], BEST: run_id or best["where"]}
    return tags
