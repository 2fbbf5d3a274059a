"""A server that takes connections and never answers: said within seconds, before anything else runs."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from quantpipe.errors import ConfigError
from quantpipe.tracking import MlflowTracker, address, mlflow_tracker
from quantpipe.tracking.setup import within
from tests.tracking.fake_server import fake_server


@pytest.fixture
def silent() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_server_that_never_answers(silent: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address, "_ANSWER_SECONDS", 0.2)
    for scheme in ("http", "https"):
        begin = time.monotonic()
        with pytest.raises(ConfigError, match=r"gives no answer in 0\.2 s"):
            address.check_reachable(address.resolve(f"{scheme}://127.0.0.1:{silent}", tmp_path))
        assert time.monotonic() - begin < 2


def test_whatever_a_server_says_is_an_answer(tmp_path: Path) -> None:
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:  # 501 to everything
        threading.Thread(target=server.handle_request, daemon=True).start()
        threading.Thread(target=server.handle_request, daemon=True).start()
        address.check_reachable(address.resolve(f"http://127.0.0.1:{server.server_port}/path", tmp_path))


def test_what_hangs_elsewhere_is_left_behind() -> None:
    with pytest.raises(TimeoutError):
        within(0.05, lambda: time.sleep(5))
    with pytest.raises(KeyError):
        within(5, lambda: {}["x"])
    done: list[int] = []
    within(None, lambda: done.append(1))
    within(5, lambda: done.append(2))
    assert done == [1, 2]


@pytest.mark.program
def test_a_server_that_hangs_after_the_start_is_asked_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setattr(mlflow_tracker, "_HANGING_SECONDS", 0.8)
    with fake_server() as server:
        with MlflowTracker(server.uri(), launch_folder=tmp_path) as tracker:
            tracker.start("run", {"a": "1"}, {})
            asked = server.answers = len(server.sent)
            begin = time.monotonic()
            for number in range(5):
                tracker.log_metrics({"a": float(number)})
                tracker.set_tags({"b": str(number)})
        assert time.monotonic() - begin < 5
        assert len(server.sent) - asked == 2 and tracker.incomplete  # metrics, and the end of the run
    said = [record.getMessage() for record in caplog.records if record.name.startswith("quantpipe")]
    assert len(said) == 2 and "nothing more is sent there" in said[0] and "closing the run failed" in said[1]
