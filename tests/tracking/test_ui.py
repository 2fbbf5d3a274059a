"""A sweep of four runs in MLflow's own pages, served from a database: list, charts, comparison, artifact."""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from quantpipe.tracking import FOLDER, MlflowTracker, finish_sweep
from quantpipe.tracking.tags import COMPARED
from tests.report.browser import driver
from tests.tracking.test_mlflow_tracker import client

VIEW = "workflowType=machine_learning"
NAMES = ("vta greedy m", "vta random m", "ort_cpu greedy m", "ort_cpu random m")


@pytest.fixture
def server(launch: Path) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    store = f"sqlite:///{launch / 'mlflow.db'}"
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", store, "--host", "127.0.0.1"]
    env = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
    process = subprocess.Popen(
        [*command, "--port", str(port), "--workers", "1"], cwd=launch, env=env, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        base = f"http://127.0.0.1:{port}"
        for _ in range(240):
            try:
                urllib.request.urlopen(f"{base}/health", timeout=2)
                break
            except OSError:
                time.sleep(0.5)
        yield base
    finally:
        os.killpg(process.pid, 15)
        process.wait(30)


def sweep(launch: Path, folder: Path) -> tuple[str, list[str], str]:
    """(experiment, the four runs, their parent)."""
    runs = []
    for number, name in enumerate(NAMES):
        place = folder / str(number)
        place.mkdir(parents=True)
        (place / "report.html").write_text("<p>the report of this run</p>")
        with MlflowTracker(launch_folder=launch, parent_key=str(folder)) as tracker:
            hardware, search, _ = name.split()
            tracker.start(name, {"hardware": hardware, "search": search}, {FOLDER: str(place)})
            tracker.log_metrics({"realized/top1": 0.9 + 0.01 * number, "latency/ratio": 0.5})
            tracker.log_trials((step, {"search/tried_value": -1.0 / (step + 1)}) for step in range(5))
            tracker.log_artifacts(place)
        runs.append(str(tracker.run_id))
    (folder / "compare.html").write_text("<p>four runs compared</p>")
    finish_sweep(folder, None, launch, tags={"quantpipe.best": NAMES[3]}, files=[folder / "compare.html"])
    run = client(launch).get_run(runs[0])
    return run.info.experiment_id, runs, run.data.tags["mlflow.parentRunId"]


@pytest.mark.slow
def test_a_sweep_in_the_pages_of_mlflow(launch: Path, tmp_path: Path, server: str) -> None:
    experiment, runs, parent = sweep(launch, tmp_path / "sweep")
    pages = {
        f"experiments/{experiment}/runs?{VIEW}": ("sweep", "matching runs"),
        f"experiments/{experiment}/runs?compareRunsMode=CHART&{VIEW}": ("latency",),
        f"compare-runs?runs={quote(json.dumps(runs))}&experiments={quote(json.dumps([experiment]))}&{VIEW}": (
            "Comparing 4 Runs", "realized/top1", *NAMES,
        ),
        f"experiments/{experiment}/runs/{parent}?{VIEW}": ("quantpipe.best", *NAMES),
        f"experiments/{experiment}/runs/{parent}/artifacts/compare.html?{VIEW}": ("compare.html", "Path:"),
        f"experiments/{experiment}/runs/{runs[0]}/artifacts/report.html?{VIEW}": ("report.html", "Path:"),
    }  # fmt: skip
    with driver((1500, 950)) as ask:
        for page, words in pages.items():
            ask("POST", "url", {"url": "about:blank"})
            ask("POST", "url", {"url": f"{server}/#/{page}"})
            missing = _missing(ask, words)
            assert not missing, (page, missing)


@pytest.mark.slow
def test_the_table_of_runs_shows_what_is_compared_at_1700_pixels(launch: Path, tmp_path: Path, server: str) -> None:
    """Metrics come before parameters, and nothing hides them: MLflow opens its assistant next to the table."""
    with MlflowTracker(launch_folder=launch, parent_key=None) as tracker:
        tracker.start("one", {"hardware": "vta", "search": "greedy", "model": "m", "seed": 0, "schema": "a"}, {})
        tracker.log_metrics(dict.fromkeys((*COMPARED, "search/seconds", "cost/cycles"), 0.5))
    page = str(tracker.runs_page)
    script = (
        "const edge = document.querySelector('.ag-root').getBoundingClientRect().right;"
        "return [...document.querySelectorAll('.ag-header-cell')].map(e => [e.innerText.trim(), "
        "e.getBoundingClientRect().x, e.getBoundingClientRect().right <= Math.min(edge, window.innerWidth)])"
    )
    with driver((1700, 950)) as ask:
        ask("POST", "url", {"url": f"{server}/{page.partition('/')[2].partition('/')[2].partition('/')[2]}"})
        assert not _missing(ask, ("matching run", COMPARED[-1]))
        cells = sorted(ask("POST", "execute/sync", {"script": script, "args": []}), key=lambda cell: cell[1])
        picture = base64.b64decode(ask("GET", "screenshot"))
    shown = [name for name, _, _ in cells]
    assert {*COMPARED, "hardware", "model"} <= {*shown} and not {"seed", "schema", "cost/cycles"} & {*shown}
    assert max(shown.index(name) for name in COMPARED) < shown.index("hardware")
    assert {*COMPARED} <= {name for name, _, visible in cells if visible}
    assert picture.startswith(b"\x89PNG") and len(picture) > 10_000


def _missing(ask: Any, words: tuple[str, ...]) -> list[str]:
    """What a page still does not show after a minute."""
    missing = list(words)
    for _ in range(120):
        shown = ask("POST", "execute/sync", {"script": "return document.body.innerText", "args": []})
        missing = [word for word in words if word not in shown]
        if not missing:
            break
        time.sleep(0.5)
    return missing
