"""MLflow loaded quietly: no telemetry, no progress chatter, no minutes of retries."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import Any

from quantpipe.loading import collection_paused
from quantpipe.passwords import conceal

_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    # 7 by default, which is four minutes per call once a server is gone; 2 are six seconds.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    # 120 by default, for each try of each call to a server that takes connections and says nothing.
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}


def make_client(uri: str) -> Any:
    """Return an MlflowClient of the store at `uri` (a new SQLite store gets its tables).

    This is what imports mlflow.
    """
    for key, value in _ENVIRONMENT.items():
        os.environ.setdefault(key, value)
    # It logs a traceback for what the tracker reports in one line.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    with collection_paused():
        from mlflow import MlflowClient

        return MlflowClient(tracking_uri=uri)


def within(seconds: float | None, action: Callable[[], object]) -> None:
    """Do it; TimeoutError when it takes longer (None: no limit). The work then continues in the background."""
    if seconds is None:
        action()
        return
    failed: list[BaseException] = []

    def work() -> None:
        try:
            action()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(f"no end after {seconds:g} s")
    if failed:
        raise failed[0]


def brief(error: BaseException) -> str:
    """Return the first line of an error, at most 300 characters, without passwords."""
    lines = conceal(str(error)).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:300]
