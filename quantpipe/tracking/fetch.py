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
_WANTED = ("config.yaml", "data.json", "main.log", "evaluate/report.json", "evaluate/samples.npz")


def fetch_runs(uri: str | None, launch_folder: Path, run_id: str, into: Path) -> list[tuple[str, Path]]:
    """Return (id, folder) of a run, or of the children of a parent, with their small artifacts in the folder.

    Args:
        uri: The store, as `tracking.uri` has it.
        launch_folder: The folder that relative addresses start from.
        run_id: The id of the run.
        into: A folder for what is fetched.

    Raises:
        ConfigError: The store cannot be reached, or has no such run.
    """
    store = resolve(uri, launch_folder)
    check_reachable(store)
    client = make_client(store.uri)
    try:
        run = client.get_run(run_id)
    except Exception as error:
        raise ConfigError(
            f"{store.shown} has no run {run_id} ({brief(error)}); legal are ids of its runs, and folders", where="runs"
        ) from error
    children = _children(client, run)
    return [(child, _fetched(client, child, into / child)) for child in (children or [run_id])]


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
