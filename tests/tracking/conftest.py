"""A launch folder with an empty MLflow database, made once and copied (making its tables takes over a second)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from quantpipe.tracking.setup import make_client


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    database = tmp_path_factory.mktemp("empty") / "mlflow.db"
    make_client(f"sqlite:///{database}")
    return database


@pytest.fixture(autouse=True)
def no_mlflow_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "MLFLOW_ALLOW_FILE_STORE"):
        monkeypatch.delenv(key, raising=False)


@pytest.fixture
def launch(empty_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The launch folder; the working directory is elsewhere, and must stay empty."""
    folder, elsewhere = tmp_path / "launch", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    shutil.copy(empty_database, folder / "mlflow.db")
    monkeypatch.chdir(elsewhere)
    yield folder
    assert not list(elsewhere.iterdir())
