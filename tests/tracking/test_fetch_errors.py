"""Why a run cannot be fetched: its id is unknown, the server asks for a login, or it does not answer."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from quantpipe.errors import ConfigError
from quantpipe.tracking import fetch_runs

RUN_ID = "a" * 32
UNKNOWN = json.dumps({"error_code": "RESOURCE_DOES_NOT_EXIST", "message": f"Run with id={RUN_ID} not found"})
FOUND = json.dumps({"run": {"info": {"run_id": RUN_ID, "experiment_id": "1"}, "data": {}}})


@contextmanager
def answering(status: int, body: str, then: int | None = None) -> Iterator[str]:
    """A server that is well, and answers each question for a run so; every other question with `then`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(*((200, "OK") if self.path.endswith("/health") else (status, body)))

        def do_POST(self) -> None:
            self._answer(then or status, "")

        def _answer(self, code: int, text: str) -> None:
            if code == 0:  # the line is cut
                self.connection.close()
                return
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(code)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def refusal(uri: str, folder: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        fetch_runs(uri, folder, RUN_ID, folder / "into")
    return str(caught.value)


def test_an_unknown_id(tmp_path: Path) -> None:
    with answering(404, UNKNOWN) as uri:
        said = refusal(uri, tmp_path)
    assert f"has no run {RUN_ID}" in said and "ids of its runs" in said


@pytest.mark.parametrize("status", [401, 403])
def test_a_server_that_wants_a_login(status: int, tmp_path: Path) -> None:
    with answering(status, "You are not authenticated.") as uri:
        said = refusal(uri, tmp_path)
    assert "has no run" not in said
    assert "does not let us in" in said and "MLFLOW_TRACKING_USERNAME" in said and uri in said


@pytest.mark.sliced(2)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("status", "body"), [(0, ""), (400, "<html>"), (404, "<html>no such page</html>"), (501, "")])
def test_a_server_that_does_not_answer(status: int, body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with answering(status, body) as uri:
        said = refusal(uri, tmp_path)
    assert "has no run" not in said
    assert f"run {RUN_ID} could not be asked for" in said and uri in said


def test_a_login_that_is_wanted_for_the_children_only(tmp_path: Path) -> None:
    with answering(200, FOUND, then=403) as uri:
        said = refusal(uri, tmp_path)
    assert "does not let us in" in said
