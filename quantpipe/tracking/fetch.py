"""Runs of a store by their ids: what a comparison needs of their artifacts."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

from quantpipe.errors import ConfigError
from quantpipe.tracking.address import check_reachable, resolve
from quantpipe.tracking.setup import brief, make_client

RUN_ID = re.compile(r"[0-9a-f]{32}")
_UNKNOWN = ("RESOURCE_DOES_NOT_EXIST", "NOT_FOUND")
_CLOSED = ("UNAUTHENTICATED", "CUSTOMER_UNAUTHORIZED", "PERMISSION_DENIED")
_WANTED = ("config.yaml", "data.json", "main.log", "evaluate/report.json", "evaluate/samples.npz")


def fetch_runs(uri: str | None, launch_folder: Path, run_id: str, into: Path) -> list[tuple[str, Path]]:
    """Return (id, folder) of a run, or of each child of a parent, with its small artifacts downloaded.

    Relative `uri` addresses start at `launch_folder`. Raises ConfigError where the store cannot be reached, requires a
    login, or has no such run.
    """
    store = resolve(uri, launch_folder)
    check_reachable(store)
    client = make_client(store.uri)
    try:
        children = _children(client, client.get_run(run_id))
        return [(child, _fetched(client, child, into / child)) for child in (children or [run_id])]
    except ConfigError:
        raise
    except Exception as error:
        raise _refused(store.shown, run_id, error) from error


def _refused(shown: str, run_id: str, error: Exception) -> ConfigError:
    """Tell an id that the store does not know from a login that is missing, and from a store that fails."""
    code = getattr(error, "error_code", None)
    if code in _UNKNOWN:
        said = f"{shown} has no run {run_id} ({brief(error)}); legal are ids of its runs, and folders"
    elif code in _CLOSED:
        said = (
            f"{shown} does not let us in to run {run_id} ({brief(error)}); give MLFLOW_TRACKING_USERNAME and "
            "MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, of somebody who may read it, or the run's folder"
        )
    else:
        said = (
            f"run {run_id} could not be asked for at {shown} ({brief(error)}): whether it is there is not known. "
            "Try again when the server answers, see to it that tracking.uri is an MLflow server, or give the "
            "run's folder"
        )
    return ConfigError(said, where="runs")


def _children(client: Any, run: Any) -> list[str]:
    wanted = f"tags.`mlflow.parentRunId` = '{run.info.run_id}'"
    found = client.search_runs([run.info.experiment_id], filter_string=wanted, order_by=["attributes.start_time ASC"])
    return [str(child.info.run_id) for child in found]


def _fetched(client: Any, run_id: str, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    there = {entry.path for place in ("", "evaluate") for entry in client.list_artifacts(run_id, place or None)}
    for name in _WANTED:
        if name in there:
            with tempfile.TemporaryDirectory(dir=folder) as aside:
                got = client.download_artifacts(run_id, name, aside)
                (folder / name).parent.mkdir(exist_ok=True)
                Path(got).replace(folder / name)
    return folder
