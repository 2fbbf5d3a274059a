"""The whole line by default settings over real models, beside onnxruntime's static and dynamic quantization.

Each model is a process of its own under a limit of time; what fails is a row, too. All three see the same calibration
samples and are judged on the same others, through plain onnxruntime sessions of one thread: SQNR of every output in dB
(the table shows the least), top-1 where there are labels, latency as the median of ratios to the float model of runs in
turn, size of the file. A line of FOLDER/models.jsonl is written as soon as a model is done; one that was measured with
the same sources and settings is not measured again.

The verdict is `as good` where the better of those of the two that take at most 1.05 of the result's time (that with the
higher least SQNR) is at no output more than 0.5 dB nearer, nor as near and faster by 5 %; otherwise `warned` where the
run itself says that something is wrong, and else what is behind.

    python benchmarks/models.py [--models GLOB ...] [--more FILE.yaml] [--large] [--lock FILE]
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
sys.path.insert(0, str(ROOT))  # the checkout that is measured is that of this file

import numpy as np  # noqa: E402
import onnx  # noqa: E402
import onnxruntime as ort  # noqa: E402
from corpus import Absent, Case, Counts, cases  # noqa: E402
from machine import processor  # noqa: E402
from rivals import batches, dynamic, session, static  # noqa: E402
from verdict import markdown  # noqa: E402

BATCH = 8
NAMED = 3  # tensors named where precision is lost
LEAP_DB = 6.0


def sources() -> str:
    """A digest of what decides the result: the package, its configuration and this benchmark."""
    found = hashlib.sha256()
    for folder, kind in (("quantpipe", "*.py"), ("conf", "*.yaml"), ("benchmarks", "*.py")):
        wanted = ("models.py", "corpus.py", "rivals.py", "light.py")
        for path in sorted((ROOT / folder).rglob(kind)):
            if folder != "benchmarks" or path.name in wanted:
                found.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return found.hexdigest()[:16]


def plain(error: object) -> str:
    """What went wrong, without the folders of this machine."""
    text = f"{type(error).__name__}: {error}" if isinstance(error, Exception) else str(error)
    return re.sub(r"(?<![\w.])/(?:[\w.+-]+/)+", "", text)[:600]


def size_of(path: Path) -> int:
    """Bytes of a model with the data files beside it."""
    model = onnx.load(path, load_external_data=False)
    places = {e.value for i in model.graph.initializer for e in i.external_data if e.key == "location"}
    return path.stat().st_size + sum((path.parent / place).stat().st_size for place in places)


def outputs_of(path: Path, case: Case, size: int) -> dict[str, np.ndarray[Any, Any]]:
    one = session(path)
    names = [o.name for o in one.get_outputs()]
    parts = [one.run(None, feeds) for feeds in batches(case.evaluate, size)]
    return {name: np.concatenate([part[i] for part in parts]) for i, name in enumerate(names)}


def sqnr(real: np.ndarray[Any, Any], found: np.ndarray[Any, Any]) -> float:
    """dB; infinite where they are equal, and minus infinity where `found` is not finite."""
    if not np.isfinite(found).all():
        return -np.inf
    x, y = real.astype(np.float64), found.astype(np.float64)
    noise, signal = float(np.sum((x - y) ** 2)), float(np.sum(x**2))
    return 10 * np.log10(signal / noise) if noise and signal else (np.inf if not noise else -np.inf)


def interleaved(paths: Mapping[str, Path], feeds: Any, runs: int, seconds: float) -> dict[str, float]:
    """Median of the ratios to `float`, and `float` itself in ms."""
    sessions = {name: session(path) for name, path in paths.items()}
    times: dict[str, list[float]] = {name: [] for name in paths}
    for _ in range(3):
        for one in sessions.values():
            one.run(None, feeds)
    started = time.perf_counter()
    while len(times["float"]) < runs and (len(times["float"]) < 5 or time.perf_counter() - started < seconds):
        for name, one in sessions.items():
            before = time.perf_counter()
            one.run(None, feeds)
            times[name].append(time.perf_counter() - before)
    ratios = {name: median(b / a for a, b in zip(times["float"], t, strict=True)) for name, t in times.items()}
    return {**ratios, "float": 1e3 * median(times["float"])}


def ours(case: Case, folder: Path) -> tuple[Path, dict[str, Any]]:
    """quantpipe with every default, and what it says."""
    import quantpipe

    samples = quantpipe.SampleSets(case.calibrate, (case.evaluate, case.labels), case.search)
    if case.labels is None:
        samples = quantpipe.SampleSets(case.calibrate, case.evaluate, case.search)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = quantpipe.quantize(str(case.model), samples, "ort_cpu", folder=folder)
    report = result.report
    return result.model_path, {
        "warnings": list(result.warnings),
        "differing": report["agreement"]["differing"],
        "integer_nodes": report["model"]["integer_nodes"],
        "float_nodes": report["model"]["float_nodes"],
        "lost": lost(report["layers"]),
        "falls": falls(report["layers"]),
    }


def lost(layers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tensors with the greatest error of their own (rounding and saturation over the mean square)."""
    own = sorted(layers, key=lambda entry: -(entry["rounding"] + entry["saturation"]))[:NAMED]
    return [{k: entry[k] for k in ("tensor", "sqnr_db", "rounding", "saturation", "saturated")} for entry in own]


def falls(layers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tensors, in graph order, at which the error that has built up leaps: SQNR far below the least before."""
    found, low = [], 60.0
    for entry in layers:
        value = entry["sqnr_db"]
        if value is not None and value < low - LEAP_DB:
            found.append({"tensor": entry["tensor"], "before": low, "sqnr_db": value})
        low = low if value is None else min(low, value)
    return sorted(found, key=lambda entry: entry["sqnr_db"] - entry["before"])[:NAMED]


def attempt(row: dict[str, Any], name: str, make: Callable[[], tuple[Path, Any]]) -> Path | None:
    """The file of one way; what it raises is kept in the row."""
    started = time.perf_counter()
    try:
        path, said = make()
    except Exception as error:
        row[name] = {"failed": plain(error)}
        traceback.print_exc()
        return None
    row[name] = {"seconds": time.perf_counter() - started, "bytes": size_of(path)}
    row[name] |= said if isinstance(said, dict) else {"form": said}
    return path


def measure(case: Case, folder: Path, runs: int, seconds: float) -> dict[str, Any]:
    """The row of a model."""
    row: dict[str, Any] = {"data": case.data, "float_bytes": size_of(case.model), "processor": processor()}
    row["samples"] = [len(next(iter(a.values()))) for a in (case.calibrate, case.search, case.evaluate)]
    fixed = isinstance(session(case.model).get_inputs()[0].shape[0], int)
    size = 1 if fixed else BATCH
    real = outputs_of(case.model, case, size)
    made = {
        "ours": attempt(row, "ours", lambda: ours(case, folder / "run")),
        "static": attempt(row, "static", lambda: static(case.model, folder, case.calibrate, size)),
        "dynamic": attempt(row, "dynamic", lambda: dynamic(case.model, folder, case.evaluate, size)),
    }
    paths = {"float": case.model, **{name: path for name, path in made.items() if path is not None}}
    for name, path in [*paths.items()]:
        try:
            found = outputs_of(path, case, size)
        except Exception as error:
            row[name] = {"failed": plain(error)}
            del paths[name]
            continue
        row.setdefault(name, {})["sqnr"] = {o: sqnr(real[o], found[o]) for o in real}
        if case.labels is not None:
            row[name]["right"] = int((next(iter(found.values())).argmax(1) == case.labels).sum())
    for name, ratio in interleaved(paths, next(batches(case.evaluate, 1)), runs, seconds).items():
        row[name]["ms" if name == "float" else "latency"] = ratio
    return row


def child(name: str, options: argparse.Namespace) -> None:
    """One model in this process; the row is the last line of standard output."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        try:
            case = cases(options.more, True)[name](folder, Counts(*options.samples))
            row = measure(case, folder, options.runs, options.seconds)
        except Absent as error:
            row = {"absent": str(error)}
    print(json.dumps(row), flush=True)


@contextmanager
def locked(path: Path | None) -> Any:
    """Nothing else that takes the lock computes meanwhile."""
    if path is None:
        yield
        return
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def run(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """The row of one model, from a child."""
    settings = ["--samples", *map(str, options.samples), "--runs", str(options.runs), "--seconds", str(options.seconds)]
    more = ["--more", str(options.more)] if options.more else []
    command = [sys.executable, __file__, "--child", name, *settings, *more]
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "2"}
    with locked(options.lock):
        started = time.perf_counter()
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=options.limit)
        except subprocess.TimeoutExpired:
            return {"failed": f"no end after {options.limit:.0f} s"}
        row = {"failed": f"exit code {done.returncode}: {plain(done.stderr[-600:])}"}
        if done.returncode == 0:
            row = json.loads(done.stdout.splitlines()[-1])
        return {**row, "seconds": time.perf_counter() - started}


def read(path: Path) -> dict[str, dict[str, Any]]:
    """Name -> last row."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {row["name"]: row for row in map(json.loads, lines)}


def write(path: Path, rows: Mapping[str, Mapping[str, Any]]) -> None:
    path.with_suffix(".part").write_text("".join(json.dumps(row) + "\n" for row in rows.values()))
    path.with_suffix(".part").replace(path)


def settings_of(options: argparse.Namespace) -> str:
    return f"{asdict(Counts(*options.samples))} runs={options.runs} seconds={options.seconds} ort={ort.__version__}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["*"], help="patterns of names")
    parser.add_argument("--more", type=Path, help="a list of more models (benchmarks/README.md)")
    parser.add_argument("--large", action="store_true", help="the light topologies of 240 MB and more, too")
    parser.add_argument("--samples", type=int, nargs=3, default=[64, 32, 64], help="calibrate, search, evaluate")
    parser.add_argument("--runs", type=int, default=100, help="of each session, in turn")
    parser.add_argument("--seconds", type=float, default=10, help="at most, for these runs")
    parser.add_argument("--limit", type=float, default=900, help="seconds that one model may take")
    parser.add_argument("--lock", type=Path, help="a file that is locked while a model is measured")
    parser.add_argument("--folder", type=Path, default=RESULTS, help="of models.jsonl and models.md")
    parser.add_argument("--table", action="store_true", help="measure nothing, write models.md from models.jsonl")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options)
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    lines = options.folder / "models.jsonl"
    rows, state, settings = read(lines), sources(), settings_of(options)
    known = cases(options.more, options.large)
    for name in known if not options.table else ():
        row = rows.get(name, {})
        done = (row.get("sources"), row.get("settings")) == (state, settings) and "absent" not in row
        if done or not any(fnmatch(name, pattern) for pattern in options.models):
            continue
        print(f"{name} …", file=sys.stderr, flush=True)
        rows[name] = {"name": name, "sources": state, "settings": settings, **run(name, options)}
        rows = {n: rows[n] for n in (*(n for n in known if n in rows), *(n for n in rows if n not in known))}
        write(lines, rows)
        (options.folder / "models.md").write_text(markdown(rows, state, f"Python {platform.python_version()}"))
    if options.table:
        (options.folder / "models.md").write_text(markdown(rows, state, f"Python {platform.python_version()}"))


if __name__ == "__main__":
    main()
