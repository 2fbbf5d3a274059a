"""The tracker that files runs in MLflow.

It uses MlflowClient with explicit run ids and never MLflow's global state (active run, working directory, tracking
address). Sweeps run jobs in one process, in many, and in changed directories.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from numpy.typing import NDArray

from quantpipe.artifacts import FileLock
from quantpipe.errors import ConfigError, Interrupted, StorageError, refuse_unknown
from quantpipe.passwords import conceal, without_passwords
from quantpipe.tracking import address, clean
from quantpipe.tracking.filing import Filing
from quantpipe.tracking.parent import finish_parent, join_parent
from quantpipe.tracking.record import RecordFile
from quantpipe.tracking.registry import check_aliases, check_name
from quantpipe.tracking.setup import brief, make_client, within
from quantpipe.tracking.tags import EXPERIMENT_TAGS, VIEW, VIEW_TAG, standard_tags
from quantpipe.tracking.tracker import FOLDER, Metrics

_log = logging.getLogger(__name__)
_FAILURES_BEFORE_SILENCE = 2
_HANGING_SECONDS = 15.0
"""A call that fails after so long was not answered: the next ones would take as long."""
_OPEN_SECONDS = 30.0
"""Until a store that is no file must have opened a run."""
_STATUSES = ("FINISHED", "FAILED", "KILLED")
_MADE_UP = re.compile(r"[a-z]+-[a-z]+-\d+")
"""A name that MLflow gives a run for which nobody gave one, such as big-perch-692."""
_FAILURE = "quantpipe.failure"
"""The tag that says why a run failed."""

DEFAULT_SERVER = "http://127.0.0.1:5000"
"""Where `mlflow ui` serves a database."""


@dataclass(frozen=True)
class TrackingConfig:
    """State where and how a run is filed in MLflow.

    It holds the keys of `conf/tracking/mlflow.yaml` and what the app adds: the launch folder and, in a sweep, the sweep
    folder.
    """

    uri: str | None
    experiment: str
    run_name: str | None
    log_model: bool
    register: str | None
    aliases: tuple[str, ...]
    launch_folder: Path
    parent_key: str | None


class MlflowTracker:
    """File one run in MLflow.

    `launch_folder` is the folder in which the program was started; it contains `mlflow.db` and `mlruns`.

    `parent_key` names the sweep folder when the run is a job of a sweep: it becomes a child of the sweep's parent run.
    Under an outer run (`mlflow run` sets MLFLOW_RUN_ID) that run is used, and left to its owner to close; the jobs of a
    sweep become its children.

    `register` names a registered model of which the integer model becomes the next version, to which the `aliases`
    point then.
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
        **registry: Any,
    ) -> None:
        folder = Path(launch_folder).absolute()
        refuse_unknown(registry, ("register", "aliases"), "tracking")
        register, aliases = registry.get("register"), tuple(registry.get("aliases") or ())
        check_name(register)
        check_aliases(aliases)
        if register is not None and not log_model:
            raise ConfigError(
                "needs tracking.log_model=true: a registered model is a logged one", where="tracking.register"
            )
        self.config = TrackingConfig(
            *(uri, str(experiment), run_name, log_model, register, aliases, folder, parent_key)
        )
        self._address: address.Address | None = None
        self._client: Any = None
        self._filing: Filing | None = None
        self._experiment = self.config.experiment
        self._opened: str | None = None
        self._owned = self._ended = self._left_out = False
        self._failures = 0
        self._hangs = False
        self._record = RecordFile(None)

    @property
    def run_id(self) -> str | None:
        """Return the id of the run, or None before it is open."""
        return None if self._filing is None else self._filing.run_id

    @property
    def experiment(self) -> str | None:
        """Return the name of the experiment, or None before it is open."""
        return self._experiment

    @property
    def ui_command(self) -> str | None:
        """Return the command that shows the store in a browser, or None if no command does."""
        return (self._address or address.resolve(self.config.uri, self.config.launch_folder)).ui_command

    @property
    def runs_page(self) -> str | None:
        """Return the address of the table of runs, where `ui_command` serves it, with the columns that are compared."""
        if self._opened is None or self._address is None:
            return None
        base = DEFAULT_SERVER if self._address.artifacts is not None else self._address.shown
        if not base.startswith("http"):
            return None
        page = f"experiments/{self._opened}/runs?workflowType=machine_learning&viewStateShareKey={VIEW}"
        return f"{base.rstrip('/')}/#/{page}"

    @property
    def incomplete(self) -> bool:
        """Return whether something of the run could not be sent."""
        return self._left_out

    # ------------------------------------------------------------ the run

    def check(self) -> None:
        """Raise ConfigError where the store is not there or gives no answer. This imports nothing of MLflow."""
        self._address = address.resolve(self.config.uri, self.config.launch_folder)
        address.check_reachable(self._address)

    def start(self, name: str | None, params: Mapping[str, Any], tags: Mapping[str, str]) -> None:
        """Open a run in the store, or continue the run that a tag links to this run folder.

        A store that fails later causes a warning. Raises ConfigError where the store does not exist, does not answer,
        or rejects the run.
        """
        self.check()
        self._record = RecordFile(Path(tags[FOLDER]) if FOLDER in tags else None)
        all_tags = standard_tags(self.config.launch_folder)
        all_tags |= {key: clean.text(value, clean.MAX_TAG) for key, value in tags.items()}
        cleaned = {clean.name(key): clean.text(value) for key, value in params.items()}
        try:
            store, title = self._store, conceal(self.config.run_name or name or "") or None
            within(
                _OPEN_SECONDS if store.database is None else None, lambda: self._open(store, title, all_tags, cleaned)
            )
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
                raise ConfigError(f"MLflow rejects: {brief(error)}", stage="tracking", where=self._where()) from error
            _log.warning("MLflow: no run could be opened (%s); this run is kept in its folder only", brief(error))
            self._left_out = True
            return
        self.log_params(params)

    @property
    def _store(self) -> address.Address:
        return self._address or address.resolve(self.config.uri, self.config.launch_folder)

    def _open(self, store: address.Address, name: str | None, tags: dict[str, str], params: dict[str, str]) -> None:
        outer = os.environ.get("MLFLOW_RUN_ID")
        with self._one_at_a_time(store):
            self._client = make_client(store.uri)
            experiment_id = None if outer else self._experiment_id(store)
        if outer:
            run = self._client.get_run(outer)
            experiment_id = run.info.experiment_id
            self._experiment = self._client.get_experiment(experiment_id).name
        if outer and self.config.parent_key is None:
            for key, value in tags.items():
                if not key.startswith("mlflow."):
                    self._client.set_tag(outer, key, value)
            if name is not None and _MADE_UP.fullmatch(run.info.run_name or ""):
                self._client.update_run(outer, name=name)
            # `mlflow run -P` has written its own parameters.
            self._filing = Filing(self._client, run, store, self._record, dict(run.data.params))
            return
        if self.config.parent_key is not None:
            folder = Path(self.config.parent_key)
            own = standard_tags(self.config.launch_folder)
            parent = outer or join_parent(self._client, store, str(experiment_id), folder, tags=own)
            tags = tags | {"mlflow.parentRunId": parent}
        run = self._reopened(store, tags, params) or self._client.create_run(experiment_id, run_name=name, tags=tags)
        self._filing = Filing(self._client, run, store, self._record, dict(run.data.params))
        self._owned = True
        self._opened = str(experiment_id)
        self._record.begin(store.shown, self._experiment, self._filing.run_id)

    def _reopened(self, store: address.Address, tags: Mapping[str, str], params: Mapping[str, str]) -> Any:
        """Return the run that the folder is filed in, RUNNING again; None if no such run can be continued."""
        known = self._record.known
        if known is None or (known.uri, known.experiment) != (store.shown, self._experiment):
            return None
        from mlflow.exceptions import MlflowException

        try:
            run = self._client.get_run(known.run_id)
            if run.info.lifecycle_stage == "deleted" or any(
                run.data.params.get(key, value) != value for key, value in params.items()
            ):
                return None  # parameters cannot change: with others it is another run
            self._client.update_run(known.run_id, status="RUNNING")
            for key, value in tags.items():
                self._client.set_tag(known.run_id, key, value)
            if _FAILURE in run.data.tags:
                self._client.delete_tag(known.run_id, _FAILURE)
        except MlflowException:
            return None
        return run

    def _one_at_a_time(self, store: address.Address) -> contextlib.AbstractContextManager[Any]:
        """Return a lock: two jobs must not both make a new database's tables, and MLflow does not prevent it."""
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
                return str(self._client.create_experiment(name, artifact_location=location, tags=EXPERIMENT_TAGS))
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
        if VIEW_TAG not in found.tags:
            with contextlib.suppress(MlflowException):  # a view of the table; some servers accept no long tags
                self._client.set_experiment_tag(found.experiment_id, VIEW_TAG, EXPERIMENT_TAGS[VIEW_TAG])
        return str(found.experiment_id)

    def end(self, status: str = "FINISHED") -> None:
        """Close the run with a status of MLflow, and the sweep's parent with it where that is due."""
        if status not in _STATUSES:
            raise ValueError(f"status '{status}': one of {', '.join(_STATUSES)}")
        if self._filing is None or self._ended:
            return
        self._ended = True
        if not self._owned:
            return
        self._failures = 0  # however often it failed before, the run should not stay open
        self._record.note(complete=status == "FINISHED" and not self._left_out)
        patience = _HANGING_SECONDS if self._hangs else None
        close = self._client.set_terminated
        self._attempt("closing the run", lambda filing: within(patience, lambda: close(filing.run_id, status)))
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
        if value is not None and not stopped:
            self.set_tags({_FAILURE: f"{type(value).__name__}: {value}"})
        self.end("FINISHED" if value is None else "KILLED" if stopped else "FAILED")

    # ------------------------------------------------------------ what is logged

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Log parameters; a parameter that is known with another value keeps it, with a warning."""
        new = {clean.name(key): clean.text(value) for key, value in params.items()}
        known = {} if self._filing is None else self._filing.params
        for key in [key for key in new if known.get(key, new[key]) != new[key]]:
            _log.warning("MLflow: parameter '%s' stays '%.80s' (parameters cannot change)", key, known[key])
            del new[key]
        self._attempt("logging parameters", lambda filing: filing.send_params(new))

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags, in place of what they said before."""
        self._attempt("setting tags", lambda filing: filing.send_tags(tags))

    def log_datasets(self, name: str, records: Mapping[str, Mapping[str, Any]]) -> None:
        """Log which samples serve which split, with digest and count."""
        self._attempt("logging the samples", lambda filing: filing.send_datasets(name, records))

    def log_metrics(self, metrics: Metrics, step: int | None = None, *, on: str | None = None) -> None:
        """Log metrics at a step (None: 0); they belong to the logged model, and to the samples of the split `on`."""
        self._attempt("logging metrics", lambda filing: filing.send_metrics([(step or 0, metrics)], on))

    def log_trials(self, trials: Iterable[tuple[int, Metrics]]) -> None:
        """Log the metrics of trials, each as (step, metrics), that have not been logged in this run before."""
        self._attempt("logging the trials", lambda filing: filing.send_trials(trials))

    def log_curve(self, points: Sequence[tuple[int, Metrics]]) -> None:
        """Log metrics by step, such as the loss of each epoch."""
        if points:
            self._attempt("logging a curve", lambda filing: filing.send_metrics(points, of_model=False))

    def log_artifacts(self, folder: str | os.PathLike[str]) -> None:
        """Copy a folder to the run's artifacts."""
        self._attempt(f"copying {folder}", lambda filing: filing.send_folder(Path(folder)))

    def log_model(
        self, onnx_path: str | os.PathLike[str], input_example: Mapping[str, NDArray[Any]] | None = None
    ) -> None:
        """Log the ONNX model with an example of its inputs, where the settings ask for it."""
        named = (self.config.register, self.config.aliases)
        if self.config.log_model:
            self._attempt("logging the model", lambda f: f.send_model(Path(onnx_path), input_example, named))

    # ------------------------------------------------------------ helpers

    def _attempt(self, what: str, action: Callable[[Filing], object]) -> None:
        """Do it if there is a run to log to, and warn of failures.

        After two in a row, or one that took long, nothing more is tried.
        """
        if self._filing is None or self._failures >= _FAILURES_BEFORE_SILENCE:
            self._left_out |= self._filing is not None
            return
        begin = time.monotonic()
        try:
            action(self._filing)
        except Exception as error:  # whatever it is: the results are in the run folder, and tracking must not lose them
            self._hangs = time.monotonic() - begin >= _HANGING_SECONDS
            self._failures = _FAILURES_BEFORE_SILENCE if self._hangs else self._failures + 1
            self._left_out = True
            silent = self._failures >= _FAILURES_BEFORE_SILENCE
            rest = "nothing more is sent there" if silent else "the run goes on"
            _log.warning("MLflow: %s failed (%s); %s", what, brief(error), rest)
        else:
            self._failures = 0

    def _where(self) -> str:
        return f"tracking.uri={self._address.shown if self._address else without_passwords(str(self.config.uri))}"


def _transient(error: Exception) -> bool:
    """Return whether it may pass by itself, or is a full disk: no reason to stop the user's run."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import OperationalError

    if isinstance(error, MlflowException):
        return bool(error.error_code == "TEMPORARILY_UNAVAILABLE")
    return isinstance(error, OperationalError | OSError | StorageError)
