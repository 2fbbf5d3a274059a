"""What is fuzzed: for each kind of input, a case by its seed, that is files and the command line that reads them."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import yaml
from PIL import Image

from quantpipe.data.sources.digits import digits_arrays
from tests.e2e.models import DIGITS
from tests.e2e.program import ROOT
from tests.fuzz import mutate

SHORT = ("dataset.samples.calibrate=8", "dataset.samples.search=8", "dataset.samples.evaluate=8",
         "evaluate.latency_runs=1", "evaluate.latency_seconds=0.1", "evaluate.baseline=none",
         "evaluate.agreement_samples=4",
         "evaluate.layer_samples=2")  # fmt: skip
GOOD = ("search=random", "search.max_evaluations=3", "executor=serial", *SHORT)
"""The run whose files strategies, logs and profiles are made of."""
SMALL_DATA = ("dataset.preprocess.scale=1/16",)
Make = Callable[[Path, random.Random, Path], list[str]]
"""(folder for the case, its numbers, folder of a run that went well) -> arguments."""


def onnx_bytes(folder: Path, rng: random.Random, run: Path) -> list[str]:
    (folder / "m.onnx").write_bytes(mutate.of_bytes(DIGITS.read_bytes(), rng))
    return [f"model.path={folder / 'm.onnx'}", *SHORT, *_maybe_command(rng)]


def onnx_message(folder: Path, rng: random.Random, run: Path) -> list[str]:
    model = onnx.load(DIGITS)
    for _ in range(rng.choice((1, 1, 2, 3))):
        mutate.of_message(model, rng)
    (folder / "m.onnx").write_bytes(model.SerializePartialToString())
    return [f"model.path={folder / 'm.onnx'}", *SHORT, *_maybe_command(rng)]


def _maybe_command(rng: random.Random) -> list[str]:
    return rng.choice(([], ["stages=[annotate]"], ["command=check"], ["command=lint"]))


def hardware(folder: Path, rng: random.Random, run: Path) -> list[str]:
    text = rng.choice(sorted((ROOT / "conf" / "hardware").glob("*.yaml"))).read_text()
    meaning = rng.random() < 0.6  # YAML as before, that says something else
    path = folder / "conf" / "hardware" / "mine.yaml"
    path.parent.mkdir(parents=True)
    changed = yaml.safe_dump(mutate.of_data(yaml.safe_load(text), rng)) if meaning else mutate.of_text(text, rng)
    data = changed.encode() if meaning or rng.random() < 0.8 else mutate.of_bytes(changed.encode(), rng)
    path.write_bytes(data)
    return ["--config-dir", str(folder / "conf"), "hardware=mine", *SHORT, rng.choice(("command=check", "seed=0"))]


def npz(folder: Path, rng: random.Random, run: Path) -> list[str]:
    images, labels = digits_arrays()
    buffer = io.BytesIO()
    save = rng.choice((np.savez, np.savez_compressed))
    odd = rng.random() < 0.5
    held = {"images": images[:60], "labels": labels[:60]}
    if odd:
        name = rng.choice(("images", "labels"))
        held[name] = _odd_array(held[name], rng)
    save(buffer, **held)
    data = buffer.getvalue()
    if odd:
        pass
    elif rng.random() < 0.5:  # the header of an array, where mutations of a whole archive seldom fall
        place = data.find(b"\x93NUMPY")
        data = data[:place] + mutate.of_bytes(data[place : place + 128], rng) + data[place + 128 :]
    else:
        data = mutate.of_bytes(data, rng)
    (folder / "d.npz").write_bytes(data)
    layout = "dataset.source_layout=NHWC"  # else arrays of other types than uint8 are features, and refused as such
    return ["dataset=npz", f"dataset.path={folder / 'd.npz'}", layout, *SMALL_DATA, *SHORT]


def _odd_array(array: np.ndarray[Any, Any], rng: random.Random) -> np.ndarray[Any, Any]:
    """Of another type, another shape, or with some other values."""
    kind = rng.randrange(4)
    if kind == 0:
        return array.astype(rng.choice(("f2", ">f4", "f8", "c8", "?", "i1", ">u2", "u8", "O", "U3", "M8[s]")))
    if kind == 1:
        return rng.choice(
            (array[:0], array[:1], array[0], array[..., None], array.reshape(-1), array.T, array[:, ...][::2])
        )
    real = array.astype(np.float64)
    for _ in range(rng.choice((1, 5))):
        real.reshape(-1)[rng.randrange(real.size)] = rng.choice(
            (np.nan, np.inf, -np.inf, 1e300, 1e-310, -1.0, 0.5, 2.0**63)
        )
    with np.errstate(over="ignore"):
        return real if kind == 2 else np.asarray(real, np.float32)


def images(folder: Path, rng: random.Random, run: Path) -> list[str]:
    kind = rng.choice(("png", "jpeg", "bmp", "gif", "tiff", "webp", "ppm"))
    place = folder / "pictures"
    place.mkdir()
    rows = []
    for number in range(12):
        buffer = io.BytesIO()
        Image.fromarray(digits_arrays()[0][number, :, :, 0]).save(buffer, kind)
        data = mutate.of_bytes(buffer.getvalue(), rng) if rng.random() < 0.3 else buffer.getvalue()
        (place / f"{number}.{kind if kind != 'ppm' else 'pgm'}").write_bytes(data)
        rows.append(f"{number},{number % 10}")
    text = "wnid,index\n" + "\n".join(rows)
    table = mutate.of_bytes(text.encode(), rng) if rng.random() < 0.5 else mutate.of_text(text, rng).encode()
    (folder / "labels.csv").write_bytes(table)
    labels = [f"dataset.labels={folder / 'labels.csv'}"] if rng.random() < 0.5 else []
    skip = rng.choice(([], ["dataset.on_error=skip"]))
    return ["dataset=image_folder", f"dataset.path={place}", *labels, *skip, *SMALL_DATA, *SHORT]


def strategy(folder: Path, rng: random.Random, run: Path) -> list[str]:
    text = (run / "search" / "strategy.json").read_text()
    if rng.random() < 0.2:
        data = mutate.of_bytes(text.encode(), rng)
    else:
        found = json.loads(text)
        found.pop("origin", None)  # as of a file that somebody wrote: its digest is not what refuses it
        for _ in range(rng.choice((1, 1, 3))):
            found["strategy"] = mutate.of_data(found["strategy"], rng)
        found = found if rng.random() < 0.8 else mutate.of_data(found, rng)
        data = json.dumps(found).encode()
    (folder / "s.json").write_bytes(data)
    return ["command=replay", f"strategy={folder / 's.json'}", *SHORT]


def trials(folder: Path, rng: random.Random, run: Path) -> list[str]:
    lines = (run / "search" / "trials.jsonl").read_text().splitlines()
    place = rng.randrange(len(lines))
    if rng.random() < 0.6:
        lines[place] = json.dumps(mutate.of_data(json.loads(lines[place]), rng))
        data = "\n".join(lines).encode() + b"\n"
    else:
        data = mutate.of_bytes("\n".join(lines).encode() + b"\n", rng)
    if rng.random() < 0.5:
        (folder / "trials.jsonl").write_bytes(data)
        return ["command=replay", f"strategy={folder / 'trials.jsonl'}", "replay.trial=0", *SHORT]
    (folder / "run" / "search").mkdir(parents=True)
    (folder / "run" / "search" / "trials.jsonl").write_bytes(data)
    return list(GOOD)


def profile(folder: Path, rng: random.Random, run: Path) -> list[str]:
    lines = (run / "calibrate" / "profile.yaml").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.startswith("# origin."))  # as somebody else wrote it
    data = mutate.of_text(text, rng).encode() if rng.random() < 0.7 else mutate.of_bytes(text.encode(), rng)
    (folder / "p.yaml").write_bytes(data)
    return [f"profile.load={folder / 'p.yaml'}", *SHORT]


KEYS = (
    "model.path", "model.fixed", "model.resident_mb", "dataset", "dataset.samples", "dataset.samples.search",
    "dataset.preprocess", "dataset.preprocess.scale", "dataset.search.share", "hardware", "hardware.ops",
    "hardware.ops.Conv", "hardware.weights", "hardware.weights.bits", "hardware.requantize", "hardware.accumulator",
    "hardware.cost", "hardware.fuse", "schema", "schema.name", "threshold", "threshold.activations",
    "threshold.weights", "threshold.weights.method", "search", "search.algorithm", "search.max_evaluations",
    "search.max_seconds", "search.target", "search.finalists", "objective", "objective.form", "objective.tolerance",
    "objective.cost", "objective.cost_limit", "recover", "recover.steps", "realize", "realize.backend", "executor",
    "executor.workers", "tracking", "command", "strategy", "pick", "stages", "seed", "strict", "verify", "plugins",
    "replay", "replay.trial", "choices", "choices.fix", "choices.freeze", "annotate", "annotate.choices",
    "annotate.min_bits", "annotate.threshold_steps", "annotate.float_nodes", "annotate.constraints", "calibrate",
    "calibrate.memory_mb", "calibrate.statistics", "calibrate.cache", "profile", "profile.load", "evaluate",
    "evaluate.output", "evaluate.agreement_samples", "check", "check.format", "check.shapes", "hydra", "nope",
)  # fmt: skip
VALUES = (
    "", "null", "true", "false", "0", "-1", "1", "1e300", "nan", "inf", "99999999999999999999", "x", "[x]", "[1]", "[]",
    "{}", "{a:1}", "[[a]]", "'", "${x}", "${", ":smile:", "vta", "greedy", "a,b", "os:system", "/", "*",
)  # fmt: skip


SANE = (
    "hardware=vta", "hardware=tflite_int8", "hardware=hago_int16_acc", "hardware=mixed_npu", "hardware=tensorrt",
    "realize=integer", "realize=qoperator", "threshold=kl", "threshold=max_range", "threshold=percentile",
    "objective=mse", "objective=accuracy", "objective.cost=cycles", "objective.form=pareto", "search=greedy",
    "search=tpe", "search=knapsack", "search.max_evaluations=4", "executor=serial", "recover=default",
    "annotate.choices=[bits,float]", "annotate.float_nodes=[stem.conv]", "annotate.skip_first=true",
    "annotate.threshold_steps=[0,-1]", "annotate.min_bits=2", "choices.fix={'bits:image':8}", "seed=7",
    "choices.freeze=['bits:*']", "calibrate.statistics=extremes", "calibrate.memory_mb=16", "verify=warn",
    "strict=true", "stages=[annotate,calibrate,search]", "search.refine=true", "evaluate.output=logits",
)  # fmt: skip
"""What means something alone; not everything together does."""


def overrides(folder: Path, rng: random.Random, run: Path) -> list[str]:
    found = rng.sample(SANE, rng.randrange(4))
    for _ in range(rng.choice((0, 0, 1, 1, 2))):
        key, sign = rng.choice(KEYS), rng.choice(("", "", "", "", "+", "++", "~"))
        found.append(f"~{key}" if sign == "~" else f"{sign}{key}={rng.choice(VALUES)}")
    return [*SHORT, *found]


KINDS: Mapping[str, Make] = {
    make.__name__: make
    for make in (onnx_message, onnx_bytes, hardware, npz, images, strategy, trials, profile, overrides)
}
