"""Addresses are absolute and tried before anything runs; names and values are what MLflow accepts."""

from __future__ import annotations

import re
import shlex
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from quantpipe.errors import ConfigError
from quantpipe.tracking import MlflowTracker, NullTracker, Tracker, clean
from quantpipe.tracking.address import resolve

CONF = Path(__file__).parents[2] / "conf" / "tracking"


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        (None, "sqlite:////launch/mlflow.db"),
        ("sqlite:///runs/x.db", "sqlite:////launch/runs/x.db"),
        ("sqlite:////abs/x.db", "sqlite:////abs/x.db"),
    ],
)
def test_sqlite_addresses_are_anchored_in_the_launch_folder(uri: str | None, expected: str) -> None:
    address = resolve(uri, Path("/launch"))
    assert address.uri == expected and address.database is not None
    assert address.artifacts == address.database.parent / "mlruns"
    assert address.ui_command == f"mlflow ui --backend-store-uri {expected}"


def test_the_command_is_ready_to_paste() -> None:
    command = resolve(None, Path("/a b")).ui_command
    assert shlex.split(command)[-1] == "sqlite:////a b/mlflow.db"


def test_servers_keep_their_own_artifacts_and_passwords_are_not_shown() -> None:
    address = resolve("https://me:secret@host:5000", Path("/launch"))
    assert address.artifacts is None and address.ui_command == "https://me:***@host:5000"
    address = resolve("postgresql+psycopg2://me:secret@host/db", Path("/launch"))
    assert address.artifacts == Path("/launch/mlruns") and "secret" not in address.ui_command


def _closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("./mlruns", "plain folders"),
        ("file:///srv/mlruns", "plain folders"),
        ("nonsense://host/x", "unsupported URI"),
        ("sqlite:///{tmp}/text.db", "not a database"),
        ("sqlite:///{tmp}/text.db/x.db", "cannot be used as a database"),
        ("sqlite:///{tmp}/50%.db", "cannot hold the characters"),
        ("http://127.0.0.1:{port}", "nobody answers"),
        ("postgresql://me:secret@127.0.0.1:{port}/db", "nobody answers"),
        ("http://host:99999999", "nobody answers"),
        ("http://[host", "Invalid IPv6"),
    ],
)
def test_a_bad_address_is_refused_at_once(tmp_path: Path, uri: str, reason: str) -> None:
    (tmp_path / "text.db").write_text("this is not a database, and long enough to be noticed " * 50)
    tracker = MlflowTracker(uri.format(tmp=tmp_path, port=_closed_port()), launch_folder=tmp_path)
    begin = time.monotonic()
    with pytest.raises(ConfigError, match=reason) as caught:
        tracker.start(None, {}, {})
    message = str(caught.value)
    assert "tracking.uri=" in message and "secret" not in message and time.monotonic() - begin < 5


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ("simulated.top1", "simulated.top1"),
        ("a|b", "a_b"),
        ("conv1->relu:0", "conv1-_relu:0"),
        ("/model//conv/../x/./", "model/conv/__/x/_"),
        ("", "_"),
        ("é ü", "é ü"),
        ("x" * 300, "x" * 250),
    ],
)
def test_names_are_cleaned(raw: str, name: str) -> None:
    import mlflow.utils.validation as rules

    assert clean.name(raw) == name
    rules._validate_metric_name(name)
    rules._validate_param_name(name)


def test_values_become_text() -> None:
    assert [clean.text(v) for v in ("a", None, True, 0.5, [1, {"b": 2}])] == [
        "a",
        "null",
        "true",
        "0.5",
        '[1, {"b": 2}]',
    ]
    assert clean.text("x" * 6000) == "x" * 6000 and len(clean.text("x" * 6001)) == 6000
    assert list(clean.numbers({"a": 1, "b": None, "c": float("nan"), "d": True})) == [("a", 1.0), ("d", 1.0)]


@pytest.mark.parametrize(("option", "kind"), [("mlflow", MlflowTracker), ("none", NullTracker)])
def test_shipped_options_make_trackers(option: str, kind: type[Any], tmp_path: Path) -> None:
    config = OmegaConf.load(CONF / f"{option}.yaml")
    tracker: Tracker = instantiate(config, launch_folder=str(tmp_path), parent_key=None)
    assert isinstance(tracker, kind)


def test_the_null_tracker_does_nothing(tmp_path: Path) -> None:
    tracker: Tracker = NullTracker(launch_folder=tmp_path, parent_key=None)
    with tracker:
        tracker.start("a", {"b": 1}, {})
        tracker.log_params({})
        tracker.log_metrics({"a": 1.0}, step=3)
        tracker.log_trials([(0, {"a": 1.0})])
        tracker.log_artifacts(tmp_path / "absent")
        tracker.log_model(tmp_path / "absent.onnx")
    assert (tracker.run_id, tracker.experiment, tracker.ui_command) == (None, None, None)
    assert not list(tmp_path.iterdir())
    assert re.search("NullTracker", (CONF / "none.yaml").read_text())
