"""The readers alone, in this process: thousands of cases in the time of some runs of the program.

Each takes the numbers of a case and a file to write, and reads what it wrote. It must come back, or raise an error of
quantpipe in one line; `fails` says what it did otherwise.
"""

from __future__ import annotations

import io
import json
import random
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from quantpipe.app.configfiles import check_file
from quantpipe.calibrate.yaml_profile import profile_from_yaml, profile_yaml
from quantpipe.check.sample import made_up
from quantpipe.data.labels import read_labels
from quantpipe.data.sources.digits import digits_arrays
from quantpipe.data.sources.npz import NpzDataset
from quantpipe.errors import QuantpipeError
from quantpipe.hardware.load import load_hardware
from quantpipe.intake.load import load_graph
from quantpipe.search.log import JsonlLog, find_trial
from quantpipe.types import Choice, ChoiceSpace, Profile, Score, TensorInfo, TensorStats, Trial
from tests.e2e.models import DIGITS
from tests.e2e.program import ROOT
from tests.fuzz import mutate
from tests.ops.line import hardware_data

SECONDS = 20.0
INPUT = [TensorInfo("image", (None, 1, 8, 8), "float32")]
HARDWARE = sorted(p.stem for p in (ROOT / "conf" / "hardware").glob("*.yaml"))


def config_text(rng: random.Random, path: Path) -> None:
    text = mutate.of_text((ROOT / "conf" / "hardware" / f"{rng.choice(HARDWARE)}.yaml").read_text(), rng)
    path.write_bytes(text.encode() if rng.random() < 0.7 else mutate.of_bytes(text.encode(), rng))
    check_file(path)


def hardware_file(rng: random.Random, path: Path) -> None:
    load_hardware(mutate.of_data(hardware_data(rng.choice(HARDWARE)), rng))


def model(rng: random.Random, path: Path) -> None:
    if rng.random() < 0.3:
        path.write_bytes(mutate.of_bytes(DIGITS.read_bytes(), rng))
    else:
        proto = onnx.load(DIGITS)
        for _ in range(rng.choice((1, 1, 2, 3))):
            mutate.of_message(proto, rng)
        path.write_bytes(proto.SerializePartialToString())
    load_graph(path, lambda raw: made_up(raw.inputs, {}))


def arrays(rng: random.Random, path: Path) -> None:
    data = _archive(rng.random() < 0.5)
    place = data.find(b"\x93NUMPY") if rng.random() < 0.5 else 0
    end = place + 128 if place else len(data)
    path.write_bytes(data[:place] + mutate.of_bytes(data[place:end], rng) + data[end:])
    NpzDataset(path=str(path), preprocess={"scale": "1/16"}).splits(INPUT, 10, 0)


@cache
def _archive(compressed: bool) -> bytes:
    images, labels = digits_arrays()
    buffer = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(buffer, images=images[:60], labels=labels[:60])
    return buffer.getvalue()


def labels(rng: random.Random, path: Path) -> None:
    text = "wnid,index\n" + "\n".join(f"n{i},{i}" for i in range(20))
    path.write_bytes(mutate.of_bytes(text.encode(), rng) if rng.random() < 0.5 else mutate.of_text(text, rng).encode())
    read_labels(path, ("wnid", "index"))


def profile(rng: random.Random, path: Path) -> None:
    text = _profile_text()
    profile_from_yaml(mutate.of_text(text, rng), str(path))


@cache
def _profile_text() -> str:
    histogram = np.arange(64, dtype=np.int64)
    stats = TensorStats("t", 100, -1.0, 2.0, limit=2.0, histogram=histogram, mean=0.1, variance=0.5, batch_minimum=-1.0,
                        batch_maximum=2.0, nonfinite=0, batch_extremes=np.array([[-1.0, 2.0]]))  # fmt: skip
    return profile_yaml(Profile("sha256:x", 8, {"t": stats}))


def trials(rng: random.Random, path: Path) -> None:
    space = ChoiceSpace((Choice("bits:a", "bits", (8, 4)), Choice("bits:b", "bits", (8, 6, 4))))
    log = JsonlLog(path, {"model": "m"}, space)
    path.unlink(missing_ok=True)
    for number in range(4):
        log.append(Trial(number, (number % 2, number % 3), Score(-0.5, 10.0, (("kl", 0.5),)), 0.1))
    lines = path.read_text().splitlines()
    place = rng.randrange(len(lines))
    lines[place] = json.dumps(mutate.of_data(json.loads(lines[place]), rng))
    data = "\n".join(lines).encode() + b"\n"
    path.write_bytes(data if rng.random() < 0.7 else mutate.of_bytes(data, rng))
    for look in (lambda: JsonlLog(path, {"model": "m"}, space).read(), lambda: find_trial(path, 2)):
        try:
            look()
        except QuantpipeError as error:
            said(error)


READERS: Mapping[str, Callable[[random.Random, Path], Any]] = {
    read.__name__: read for read in (config_text, hardware_file, model, arrays, labels, profile, trials)
}


def said(error: QuantpipeError) -> None:
    """ValueError unless it is one paragraph."""
    if "\n" in str(error) or not str(error).strip() or len(str(error)) > 3000:
        raise ValueError(f"no paragraph: {error!r}")


def fails(reader: str, seed: int, folder: Path) -> str:
    """What a case did that it must not; empty where it did well."""
    begin = time.monotonic()
    try:
        READERS[reader](random.Random(f"{reader} {seed}"), folder / "file.npz")
    except QuantpipeError as error:
        try:
            said(error)
        except ValueError as wrong:
            return str(wrong)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    seconds = time.monotonic() - begin
    return f"{seconds:.0f} s" if seconds > SECONDS else ""
