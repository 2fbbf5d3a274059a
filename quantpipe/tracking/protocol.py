"""What the runner asks of a tracker, and the tracker that does nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Protocol, Self

from numpy.typing import NDArray

Metrics = Mapping[str, float | None]
"""Metric name -> value. What is None or not finite is left out: a plot cannot show it."""


class Tracker(Protocol):
    """Files one run: parameters, metrics, candidates, artifacts, the model.

    Only `start` may raise (ConfigError: the user's address or experiment is unusable). Later failures are warnings,
    because the run's results are in its folder anyway.
    """

    @property
    def run_id(self) -> str | None:
        """The run's id, None before `start` and without a store."""
        ...

    @property
    def experiment(self) -> str | None:
        """The name of the experiment that the run belongs to."""
        ...

    @property
    def ui_command(self) -> str | None:
        """The exact command (or address) that shows the runs."""
        ...

    def start(self, name: str | None, params: Mapping[str, Any], tags: Mapping[str, str]) -> None:
        """Open the run. `params` are the choices worth comparing; nested values are written as JSON."""
        ...

    def log_params(self, params: Mapping[str, Any]) -> None:
        """More parameters. They are immutable: a second value for a name is refused with a warning."""
        ...

    def log_metrics(self, metrics: Metrics, step: int | None = None) -> None:
        """Log metrics at a step."""

    def log_trials(self, trials: Iterable[tuple[int, Metrics]]) -> None:
        """The candidates of a search: (step, metrics) each."""
        ...

    def log_artifacts(self, folder: str | os.PathLike[str]) -> None:
        """All files of a folder, under the same relative paths."""
        ...

    def log_model(
        self, onnx_path: str | os.PathLike[str], input_example: Mapping[str, NDArray[Any]] | None = None
    ) -> None:
        """The winning model, with a signature. `input_example`: input name -> `[N, ...]`, of which one is kept."""
        ...

    def end(self, status: str = "FINISHED") -> None:
        """Close the run: FINISHED, FAILED or KILLED. Only the first call counts."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class NullTracker:
    """Track nothing (`tracking=none`): everything stays in the run folder.

    It takes what the app gives every tracker, and has no options of its own.
    """

    run_id: str | None = None
    experiment: str | None = None
    ui_command: str | None = None

    def __init__(self, launch_folder: str | os.PathLike[str] = ".", parent_key: str | None = None) -> None: ...

    def start(self, name: str | None, params: Mapping[str, Any], tags: Mapping[str, str]) -> None:
        """Open nothing."""

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Log nothing."""

    def log_metrics(self, metrics: Metrics, step: int | None = None) -> None:
        """Log nothing."""

    def log_trials(self, trials: Iterable[tuple[int, Metrics]]) -> None:
        """Log nothing."""

    def log_artifacts(self, folder: str | os.PathLike[str]) -> None:
        """Copy nothing."""

    def log_model(
        self, onnx_path: str | os.PathLike[str], input_example: Mapping[str, NDArray[Any]] | None = None
    ) -> None:
        """Log nothing."""

    def end(self, status: str = "FINISHED") -> None:
        """Close nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None: ...
