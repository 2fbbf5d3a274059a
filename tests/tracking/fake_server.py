"""A tracking server that says yes to everything and keeps what it was sent, which can then be looked at."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

RUN = {
    "info": {"run_id": "f" * 32, "experiment_id": "1", "status": "RUNNING", "artifact_uri": "mlflow-artifacts:/1/run"},
    "data": {},
}


@dataclass
class FakeServer:
    """Listens on `port`. `sent`: path and body of each request; `authorizations`: the headers that let it in.

    After `answers` requests it takes more of them and gives no answer until it is closed.
    """

    port: int
    answers: float = math.inf
    closing: threading.Event = field(default_factory=threading.Event)
    sent: list[bytes] = field(default_factory=list)
    authorizations: set[str] = field(default_factory=set)

    def uri(self, credentials: str = "") -> str:
        return f"http://{credentials}{'@' if credentials else ''}127.0.0.1:{self.port}"


@contextmanager
def fake_server(answers: float = math.inf) -> Iterator[FakeServer]:
    found: list[FakeServer] = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            found[0].sent.append(f"{self.command} {self.path}\n".encode() + body)
            found[0].authorizations.add(self.headers.get("Authorization") or "")
            if len(found[0].sent) > found[0].answers:
                found[0].closing.wait()
                return
            text = json.dumps(reply(self.path)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PUT = do_PATCH = answer  # noqa: N815  (http.server's names)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.append(FakeServer(server.server_port, answers))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found[0]
    finally:
        found[0].closing.set()
        server.shutdown()
        server.server_close()
        thread.join()


def reply(path: str) -> dict[str, Any]:
    if "experiments/" in path:
        return {
            "experiment_id": "1",
            "experiment": {"experiment_id": "1", "name": "quantpipe", "lifecycle_stage": "active"},
        }
    if "runs/" in path:
        return {"run": RUN, "run_info": RUN["info"]}
    return {}
