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
from quantpipe.tracking import address
from quantpipe.tracking.setup import within


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
