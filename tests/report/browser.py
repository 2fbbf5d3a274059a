"""A page in headless Chromium, driven through its WebDriver: what the console says, and how large its parts are."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    "--disable-dev-shm-usage",
)  # fmt: skip


@dataclass(frozen=True)
class Seen:
    """What a browser made of a page. `overflow`: pixels by which it is wider than the window."""

    console: list[str]
    widths: dict[str, float]
    overflow: int

    def width(self, name: str) -> float:
        """The width of the first figure in the part of this id."""
        return self.widths.get(name, 0.0)


def browse(path: Path, size: tuple[int, int]) -> Seen:
    """Open a page at a size of the window."""
    with driver(size) as ask:
        ask("POST", "url", {"url": path.as_uri()})
        script = (
            "const found = {}; for (const part of document.querySelectorAll('[id]')) {"
            "const svg = part.querySelector('svg'); if (svg) found[part.id] = svg.getBoundingClientRect().width; }"
            "return [found, document.documentElement.scrollWidth - window.innerWidth];"
        )
        widths, overflow = ask("POST", "execute/sync", {"script": script, "args": []})
        console = [entry["message"] for entry in ask("POST", "se/log", {"type": "browser"})]
        return Seen(console, widths, overflow)


@contextmanager
def driver(size: tuple[int, int]) -> Iterator[Any]:
    """A session of Chromium; the value is a function that asks the driver: (method, path, content) -> value."""
    program, browser = shutil.which("chromedriver"), shutil.which("chromium")
    if program is None or browser is None:
        said = "chromium and chromium-driver (Debian) are not installed"
        pytest.fail(said) if os.environ.get("CI") == "true" else pytest.skip(said)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    process = subprocess.Popen([program, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    base = f"http://127.0.0.1:{port}"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ask(method: str, path: str, content: Any = None) -> Any:
        data = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(f"{base}/{path}", data, {"Content-Type": "application/json"}, method=method)
        with opener.open(request, timeout=90) as answer:
            return json.loads(answer.read())["value"]

    try:
        for _ in range(200):
            try:
                if ask("GET", "status")["ready"]:
                    break
            except OSError:
                time.sleep(0.05)
        flags = [*FLAGS, f"--window-size={size[0]},{size[1]}"]
        mobile = {"mobileEmulation": {"deviceMetrics": {"width": size[0], "height": size[1], "pixelRatio": 1.0}}}
        options = {"binary": browser, "args": flags, **(mobile if size[0] < 500 else {})}
        wanted = {"alwaysMatch": {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}
        session = ask("POST", "session", {"capabilities": wanted})["sessionId"]
        try:
            yield lambda method, path, content=None: ask(method, f"session/{session}/{path}", content)
        finally:
            ask("DELETE", f"session/{session}")
    finally:
        process.terminate()
        process.wait(20)
