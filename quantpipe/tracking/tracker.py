"""The protocol of a tracker, and the tracker that does nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from numpy.typing import NDArray

Metrics = Mapping[str, float | None]
"""Metric name -> value. What is None or not finite is left out: a plot cannot show it."""

FOLDER = "quantpipe.folder"
"""The tag that names the run folder."""


class Tracker(Protocol):
    """Files one run: parameters, metrics, candidates, artifacts, the model.

    Only `start` may raise (ConfigError: the user's address or experiment is unusable). Later failures are warnings,
    because the run's results are in its folder anyway.
    """

    @property
    def run_id(self) -> str | None:
        """Return the run's id, None before `start` and without a store."""

    @property
    def experiment(self) -> str | None:
        """Return the name of the experiment that the run belongs to."""

    @property
    def ui_command(self) -> str | None:
        """Return the exact command (or address) that shows the runs."""

    @property
    def runs_page(self) -> str | None:
        """Return the address of the table of runs with the columns that are compared; None before `start`."""

    @property
    def incomplete(self) -> bool:
        """Return whether something of the run could not be sent."""

    def check(self) -> None:
        """Raise ConfigError where the store cannot be reached; nothing is opened, and it is quick."""

    def start(self, name: str | None, params: Mapping[str, Any], tags: Mapping[str, str]) -> None:
        """Open the run, or go on in the one that the folder of the tag `FOLDER` is filed in.

        `params` are the choices worth comparing; nested values are written as JSON.
        """

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Log more parameters.

        They are immutable: a second value for a name is rejected with a warning.
        """

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags, in place of what they said before."""

    def log_datasets(self, name: str, records: Mapping[str, Mapping[str, Any]]) -> None:
        """Log which samples serve which split: by role, a record with `samples` and `digest`."""

    def log_metrics(self, metrics: Metrics, step: int | None = None, *, on: str | None = None) -> None:
        """Log metrics at a step, of the samples of the split `on`."""

    def log_trials(self, trials: Iterable[tuple[int, Metrics]]) -> None:
        """Log the candidates of a search: (step, metrics) each."""

    def log_curve(self, points: Sequence[tuple[int, Metrics]]) -> None:
        """Log metrics by step, such as the loss of each epoch: (step, metrics) each."""

    def log_artifacts(self, folder: str | os.PathLike[str]) -> None:
        """Copy all files of a folder, under the same relative paths."""

    def log_model(
        self, onnx_path: str | os.PathLike[str], input_example: Mapping[str, NDArray[Any]] | None = None
    ) -> None:
        """Log the winning model, with a signature.

        `input_example`: input name -> `[N, ...]`, of which one is kept.
        """

    def end(self, status: str = "FINISHED") -> None:
        """Close the run: FINISHED, FAILED or KILLED. Only the first call counts."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class NullTracker(Tracker):
    """Track nothing (`tracking=none`): everything stays in the run folder.

    It takes what the app gives every tracker, and has no options of its own. The methods of the protocol do nothing.
    """

    run_id: str | None = None
    experiment: str | None = None
    ui_command: str | None = None
    runs_page: str | None = None
    incomplete: bool = False

    def __init__(self, launch_folder: str | os.PathLike[str] = ".", parent_key: str | None = None) -> None: ...

    def __enter__(self) -> Self:
        return self
