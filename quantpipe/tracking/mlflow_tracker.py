"""The tracker that files runs in MLflow.

It speaks through MlflowClient with explicit run ids and never through MLflow's global state (active run, working
directory, tracking address), because sweeps run jobs in one process, in many, and in changed directories.
"""

from __future__ import annotations

import contextlib
import getpass
import itertools
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from numpy.typing import NDArray

from quantpipe.artifacts import FileLock
from quantpipe.artifacts.unit import TEMP_SUFFIX
from quantpipe.errors import ConfigError, Interrupted, StorageError
from quantpipe.passwords import conceal, without_passwords
from quantpipe.tracking import address, clean
from quantpipe.tracking.model import log_onnx
from quantpipe.tracking.parent import finish_parent, join_parent
from quantpipe.tracking.protocol import Metrics
from quantpipe.tracking.setup import brief, make_client, within

_log = logging.getLogger(__name__)
_PARAMS_PER_CALL = 100
_METRICS_PER_CALL = 1000
_FAILURES_BEFORE_SILENCE = 2
_OPEN_SECONDS = 30.0
"""Until a store that is no file must have opened a run."""
_STATUSES = ("FINISHED", "FAILED", "KILLED")


@dataclass(frozen=True)
class TrackingConfig:
    """`conf/tracking/mlflow.yaml` and what the app adds: the launch folder and, in a sweep, the sweep folder."""

    uri: str | None
    experiment: str
    run_name: str | None
    log_model: bool
    launch_folder: Path
    parent_key: str | None


class MlflowTracker:
    """Files one run in MLflow. `launch_folder` is where the program was started: `mlflow.db` and `mlruns` stand there.

    `parent_key` names the sweep folder when the run is a job of a sweep: it becomes a child of the sweep's parent run.
    Under an outer run (`mlflow run` sets MLFLOW_RUN_ID) that run is used, and left to its owner to close; the jobs of a
    sweep become its children.
    """

    def __init__(
        self,
        uri: str | None = None,
        experiment: str = "quantpipe",
        run_name: str | None = None,
        log_model: bool = True,
        *,
        launch_folder: str | os.PathLike[str] = ".",
        parent_key: str | None = None,
    ) -> None:
        folder = Path(launch_folder).absolute()
        self.config = TrackingConfig(uri, str(experiment), run_name, log_model, folder, parent_key)
        self._address: address.Address | None = None
        self._client: Any = None
        self._run: Any = None
        self._experiment = self.config.experiment
        self._params: dict[str, str] = {}
        self._owned = self._ended = False
        self._failures = 0

    @property
    def run_id(self) -> str | None:
        """Return the id of the run, or None before it is open."""
        return None if self._run is None else str(self._run.info.run_id)

    @property
    def experiment(self) -> str | None:
        """Return the name of the experiment, or None before it is open."""
        return self._experiment

    @property
    def ui_command(self) -> str | None:
        """Return the command that shows the store in a browser, or None where there is none."""
        return (self._address or address.resolve(self.config.uri, self.config.launch_folder)).ui_command

    # ------------------------------------------------------------ the run

    def start(self, name: str | None, params: Mapping[str, Any], tags: Mapping[str, str]) -> None:
        """Open a run in the store; a store that cannot be reached later is warned of.

        Raises:
            ConfigError: where the store is not there, gives no answer, or refuses.
        """
        self._address = address.resolve(self.config.uri, self.config.launch_folder)
        address.check_reachable(self._address)
        all_tags = _standard_tags() | {key: clean.text(value, clean.MAX_TAG) for key, value in tags.items()}
        try:
            store, title = self._address, conceal(self.config.run_name or name or "") or None
            within(_OPEN_SECONDS if store.database is None else None, lambda: self._open(store, title, all_tags))
        except TimeoutError as error:
            raise ConfigError(
                f"MLflow's store gives no answer in {_OPEN_SECONDS:g} s; see whether it runs, or give tracking=none",
                stage="tracking",
                where=self._where(),
            ) from error
        except ConfigError:
            raise
        except Exception as error:
            if not _transient(error):
                raise ConfigError(f"MLflow refuses: {brief(error)}", stage="tracking", where=self._where()) from error
            _log.warning("MLflow: no run could be opened (%s); this run is kept in its folder only", brief(error))
            return
        self.log_params(params)

    def _open(self, store: address.Address, name: str | None, tags: dict[str, str]) -> None:
        outer = os.environ.get("MLFLOW_RUN_ID")
        with self._one_at_a_time(store):
            self._client = make_client(store.uri)
            experiment_id = None if outer else self._experiment_id(store)
        if outer:
            run = self._client.get_run(outer)
            experiment_id = run.info.experiment_id
            self._experiment = self._client.get_experiment(experiment_id).name
        if outer and self.config.parent_key is None:
            self._params = dict(run.data.params)  # `mlflow run -P` has written its own
            for key, value in tags.items():
                if not key.startswith("mlflow."):
                    self._client.set_tag(outer, key, value)
            self._run = run
            return
        if self.config.parent_key is not None:
            folder = Path(self.config.parent_key)
            parent = outer or join_parent(self._client, store, str(experiment_id), folder, tags=_standard_tags())
            tags = tags | {"mlflow.parentRunId": parent}
        self._run = self._client.create_run(experiment_id, run_name=name, tags=tags)
        self._owned = True

    def _one_at_a_time(self, store: address.Address) -> contextlib.AbstractContextManager[Any]:
        """Two jobs must not both make the tables of a new database: MLflow itself does not guard against it."""
        if store.database is None:
            return contextlib.nullcontext()
        return FileLock(store.database.with_name(f".{store.database.name}.lock"), wait=True)

    def _experiment_id(self, store: address.Address) -> str:
        from mlflow.exceptions import MlflowException

        name = self.config.experiment
        found = self._client.get_experiment_by_name(name)
        if found is None:
            location = None if store.artifacts is None else (store.artifacts / clean.name(name)).as_uri()
            try:
                return str(self._client.create_experiment(name, artifact_location=location))
            except MlflowException:  # another job was faster
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        if found.lifecycle_stage == "deleted":
            raise ConfigError(
                f"the experiment '{name}' is in MLflow's trash: restore it (mlflow experiments restore "
                f"--experiment-id {found.experiment_id}) or choose another tracking.experiment",
                stage="tracking",
                where=self._where(),
            )
        return str(found.experiment_id)

    def end(self, status: str = "FINISHED") -> None:
        """Close the run with a status of MLflow, and the sweep's parent with it where that is due."""
        if status not in _STATUSES:
            raise ValueError(f"status '{status}': one of {', '.join(_STATUSES)}")
        if self._run is None or self._ended:
            return
        self._ended = True
        if not self._owned:
            return
        self._failures = 0  # however often it failed before, the run should not stay open
        self._attempt("closing the run", lambda: self._client.set_terminated(self.run_id, status))
        reached = not self._failures
        store, parent = self._address, self.config.parent_key
        if reached and store is not None and parent is not None and "MLFLOW_RUN_ID" not in os.environ:
            finish_parent(parent, store)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        stopped = isinstance(value, KeyboardInterrupt | Interrupted)
        self.end("FINISHED" if value is None else "KILLED" if stopped else "FAILED")

    # ------------------------------------------------------------ what is logged

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Log parameters; a parameter that is known with another value keeps it, with a warning."""
        new = {clean.name(key): clean.text(value) for key, value in params.items()}
        for key in [key for key in new if self._params.get(key, new[key]) != new[key]]:
            _log.warning("MLflow: parameter '%s' stays '%.80s' (parameters cannot change)", key, self._params[key])
            del new[key]
        self._attempt("logging parameters", lambda: self._send_params(new))

    def log_metrics(self, metrics: Metrics, step: int | None = None) -> None:
        """Log metrics at a step (None: 0)."""
        self._attempt("logging metrics", lambda: self._send_metrics([(step or 0, metrics)]))

    def log_trials(self, trials: Iterable[tuple[int, Metrics]]) -> None:
        """Log the metrics of trials, each as (step, metrics)."""
        self._attempt("logging the trials", lambda: self._send_metrics(trials))

    def log_artifacts(self, folder: str | os.PathLike[str]) -> None:
        """Copy a folder to the run's artifacts."""
        self._attempt(f"copying {folder}", lambda: self._send_folder(Path(folder)))

    def log_model(
        self, onnx_path: str | os.PathLike[str], input_example: Mapping[str, NDArray[Any]] | None = None
    ) -> None:
        """Log the ONNX model with an example of its inputs, where the settings ask for it."""
        store = self._address
        if self.config.log_model and store is not None:
            self._attempt(
                "logging the model",
                lambda: log_onnx(
                    self._client, store.uri, self._run, onnx_path, params=self._params, example=input_example
                ),
            )

    def _send_params(self, params: dict[str, str]) -> None:
        from mlflow.entities import Param

        for chunk in _chunks((Param(key, value) for key, value in params.items()), _PARAMS_PER_CALL):
            self._client.log_batch(self.run_id, params=chunk)
        self._params |= params

    def _send_metrics(self, steps: Iterable[tuple[int, Metrics]]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        points = (Metric(key, value, now, step) for step, metrics in steps for key, value in clean.numbers(metrics))
        for chunk in _chunks(points, _METRICS_PER_CALL):
            self._client.log_batch(self.run_id, metrics=chunk)

    def _send_folder(self, folder: Path) -> None:
        for entry in sorted(folder.iterdir()):
            if self._is_bookkeeping(entry):
                continue
            if entry.is_dir():
                self._client.log_artifacts(self.run_id, str(entry), artifact_path=entry.name)
            else:
                self._client.log_artifact(self.run_id, str(entry))

    # ------------------------------------------------------------ helpers

    def _attempt(self, what: str, action: Callable[[], object]) -> None:
        """Do it if there is a run to log to. A failure is a warning; after two in a row nothing more is tried."""
        if self._run is None or self._failures >= _FAILURES_BEFORE_SILENCE:
            return
        try:
            action()
        except Exception as error:  # whatever it is: the results are in the run folder, and tracking must not lose them
            self._failures += 1
            silent = self._failures >= _FAILURES_BEFORE_SILENCE
            rest = "nothing more is sent there" if silent else "the run goes on"
            _log.warning("MLflow: %s failed (%s); %s", what, brief(error), rest)
        else:
            self._failures = 0

    def _is_bookkeeping(self, entry: Path) -> bool:
        """Locks and half-written files; and the store itself, when the run folder is the launch folder."""
        store = (self._address.database, self._address.artifacts) if self._address else ()
        return entry.absolute() in store or entry.name.endswith((".lock", TEMP_SUFFIX))

    def _where(self) -> str:
        return f"tracking.uri={self._address.shown if self._address else without_passwords(str(self.config.uri))}"


def _chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    rest = iter(items)
    while chunk := list(itertools.islice(rest, size)):
        yield chunk


def _standard_tags() -> dict[str, str]:
    """What MLflow's own front end would have set: who ran what."""
    tags = {"mlflow.source.name": clean.text(sys.argv[0], clean.MAX_TAG), "mlflow.source.type": "LOCAL"}
    with contextlib.suppress(OSError, KeyError, ImportError):  # a container may have no user names
        tags["mlflow.user"] = getpass.getuser()
    return tags


def _transient(error: Exception) -> bool:
    """Whether it may pass by itself, or tell of a full disk: no reason to stop the user's run."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import OperationalError

    if isinstance(error, MlflowException):
        return bool(error.error_code == "TEMPORARILY_UNAVAILABLE")
    return isinstance(error, OperationalError | OSError | StorageError)
