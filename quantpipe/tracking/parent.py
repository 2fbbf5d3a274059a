"""The parent run of a sweep: made by the job that comes first, found by the others through a file in the sweep folder.

Jobs may be processes on several machines; a file lock lets one of them make the parent while the others wait. The
parent is RUNNING when a job starts and FINISHED when one ends. So it ends FINISHED whichever job comes last, even if
the launching process is gone by then. The file names the store without its password. A job that joins or closes the
parent knows the full address from the configuration or the environment.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quantpipe.artifacts import FileLock, write_bytes
from quantpipe.tracking import clean
from quantpipe.tracking.address import Address, resolve
from quantpipe.tracking.setup import brief, make_client

_log = logging.getLogger(__name__)
_FILE = ".mlflow_parent.json"


def join_parent(client: Any, store: Address, experiment_id: str, sweep_folder: Path, *, tags: dict[str, str]) -> str:
    """Return the id of the sweep's parent run, made now if this store has no such run yet.

    `sweep_folder` names the parent; `tags` are used for a new one.
    """
    with FileLock(sweep_folder / ".mlflow_parent.lock", wait=True):
        known = _known(sweep_folder)
        if known.get("uri") == store.shown and _reopened(client, known.get("run_id")):
            return str(known["run_id"])
        name = "/".join(sweep_folder.absolute().parts[-2:])  # Hydra's <date>/<time>
        parent = client.create_run(experiment_id, run_name=name, tags=tags | {"quantpipe.sweep": str(sweep_folder)})
        record = {"run_id": parent.info.run_id, "experiment_id": experiment_id, "uri": store.shown}
        write_bytes(sweep_folder / _FILE, json.dumps(record).encode())
        return str(parent.info.run_id)


def finish_parent(sweep_folder: str | os.PathLike[str], store: Address) -> None:
    """Close the sweep's parent run, if it has one in this store."""
    known = _known(Path(sweep_folder))
    if known.get("uri") != store.shown:
        return
    try:
        make_client(store.uri).set_terminated(known["run_id"], "FINISHED")
    except Exception as error:  # tracking never fails a run
        _log.warning("MLflow: the sweep's parent run could not be closed (%s)", brief(error))


def finish_sweep(
    sweep_folder: Path,
    uri: str | None,
    launch_folder: Path,
    *,
    tags: Mapping[str, str] | None = None,
    files: Sequence[Path] = (),
    best: str | None = None,
) -> None:
    """Close the parent run once the whole sweep is over, in the store that `tracking.uri` names.

    `tags` and `files` are what the jobs come to; `best` is the id of the best one's run, whose metrics the parent has,
    too: a list shows parents first, and is sorted by them.
    """
    store = resolve(uri, launch_folder)
    known = _known(sweep_folder)
    if known.get("uri") != store.shown:
        return
    try:
        client = make_client(store.uri)
        for key, value in (tags or {}).items():
            client.set_tag(known["run_id"], key, clean.text(value, clean.MAX_TAG))
        for path in files:
            client.log_artifact(known["run_id"], str(path))
        for name, result in _results(client, best).items():
            client.log_metric(known["run_id"], name, result)
    except Exception as error:  # tracking never fails a run
        _log.warning("MLflow: the comparison could not be filed (%s)", brief(error))
    finish_parent(sweep_folder, store)


def _results(client: Any, run_id: str | None) -> dict[str, float]:
    """Return the metrics of a run, without the metrics of single candidates."""
    found = client.get_run(run_id).data.metrics if run_id is not None else {}
    return {key: value for key, value in found.items() if not key.startswith("search/tried")}


def _known(sweep_folder: Path) -> dict[str, Any]:
    try:
        record = json.loads((sweep_folder / _FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _reopened(client: Any, run_id: Any) -> bool:
    """Return whether the run is still in the store; it is set to RUNNING."""
    from mlflow.exceptions import MlflowException

    try:
        client.update_run(run_id, status="RUNNING")
    except MlflowException:
        return False
    return True
