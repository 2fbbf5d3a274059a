"""The models of benchmarks/models.py, and their samples. What is not there raises `Absent`, with what it would take.

A case is a model file and arrays as the model takes them, one row per sample: to calibrate, to search by, to evaluate
by. Whoever has more models lists them in a YAML file (`--more`, see benchmarks/README.md).
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from light import light_model
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
ZOO = Path(os.environ.get("QUANTPIPE_ZOO", ROOT.parent / "shared" / "zoo"))
ENCODER = Path(os.environ.get("QUANTPIPE_ENCODER", ROOT.parent / "encoder"))
LIGHT = ("squeezenet", "shufflenet", "inception_v1", "inception_v2", "densenet121", "resnet50")
LARGE = ("bvlc_alexnet", "zfnet512", "vgg19")  # 240 to 550 MB of weights
Arrays = dict[str, np.ndarray[Any, Any]]


class Absent(Exception):
    """A model or its data are not here."""


@dataclass(frozen=True)
class Counts:
    """Samples to take."""

    calibrate: int = 64
    search: int = 32
    evaluate: int = 64


@dataclass(frozen=True, eq=False)
class Case:
    """`labels` are those of `evaluate`, for the first output; `data` says in a few words what the samples are."""

    model: Path
    calibrate: Arrays
    search: Arrays
    evaluate: Arrays
    labels: np.ndarray[Any, Any] | None
    data: str


Make = Callable[[Path, Counts], Case]
"""A case from a folder to write in and the numbers of samples."""


def cases(more: Path | None = None, large: bool = False) -> dict[str, Make]:
    """Name -> how the case is made."""
    found: dict[str, Make] = {
        "digits": partial(_digits, "digits"),
        "digits_vit": partial(_digits, "digits_vit"),
        "digits_vit_masked": partial(_digits, "digits_vit_masked"),
    }
    for name in ("cifar10_resnet20", "cifar10_resnet20_bn", "cifar10_resnet8_mlperf"):
        found[name] = partial(_cifar10, name)
    for name in ("imagenet_efficientnet_lite0", "imagenet_efficientnet_lite0_bn"):
        found[name] = partial(_pictures, name, 224)
    found["vww_mobilenet_v1_025"] = partial(_pictures, "vww_mobilenet_v1_025", 96)
    found["kws_dscnn"] = partial(_drawn, "kws_dscnn", _cepstra)
    found["ad_autoencoder"] = partial(_drawn, "ad_autoencoder", _mel_frames)
    for form, data in (("ts", "padded"), ("ts", "full"), ("dynamo", "padded")):
        found[f"minilm_{form}_{data}"] = partial(_encoder, form, data)
    for name in (*LIGHT, *(LARGE if large else ())):
        found[f"light_{name}"] = partial(_light, name)
    for entry in yaml.safe_load(more.read_text()) if more else ():
        found[entry["name"]] = partial(_given, entry, more.parent)
    return found


def _cut(calibrate: Arrays, evaluate: Arrays, counts: Counts) -> tuple[Arrays, Arrays, Arrays]:
    """The first samples to calibrate, those behind them to search by, the first of the others to evaluate by."""
    available = len(next(iter(calibrate.values())))
    border = min(counts.calibrate, available - min(counts.search, available // 3))
    end = border + counts.search
    return (
        {k: v[:border] for k, v in calibrate.items()},
        {k: v[border:end] for k, v in calibrate.items()},
        {k: v[: counts.evaluate] for k, v in evaluate.items()},
    )


def _there(path: Path, remedy: str) -> Path:
    if not path.exists():
        raise Absent(f"{path.name} is not there; {remedy}")
    return path


def _zoo(name: str) -> Path:
    return _there(ZOO / name, "set QUANTPIPE_ZOO to the folder that holds zoo.yaml")


def _digits(name: str, folder: Path, counts: Counts) -> Case:
    """The splits of the data set itself: calibrate from the training part, the others from the held-out part."""
    from quantpipe import assets
    from quantpipe.data import DigitsColumnsDataset, DigitsDataset
    from quantpipe.types import TensorInfo

    masked = name == "digits_vit_masked"
    ports = [TensorInfo("image", (None, 1, 8, 8), "float32")]
    if masked:
        ports = [TensorInfo("columns", (None, None, 8), "float32"), TensorInfo("attention_mask", (None, None), "int64")]
    samples = {"calibrate": counts.calibrate, "search": counts.search, "evaluate": counts.evaluate}
    dataset = (DigitsColumnsDataset if masked else DigitsDataset)(samples=samples)
    batch = {k: next(iter(s.batches(len(s)))) for k, s in dataset.splits(ports, 10, 0).roles.items()}
    model = Path(assets.__file__).parent / f"{name}.onnx"
    arrays = (dict(batch[role].inputs) for role in ("calibrate", "search", "evaluate"))
    return Case(model, *arrays, batch["evaluate"].labels, "digits")


def _entry(name: str) -> Mapping[str, Any]:
    (found,) = (m for m in yaml.safe_load(_zoo("zoo.yaml").read_text())["models"] if m["name"] == name)
    return found


def _preprocessed(pixels: np.ndarray[Any, Any], entry: Mapping[str, Any]) -> Arrays:
    """Pixels `[N, H, W, 3]` as zoo.yaml says: (pixel * scale - mean) / std, axes in the model's order."""
    how = entry["preprocessing"]
    values = pixels.astype(np.float32) * np.float32(Fraction(str(how["scale"])))
    values = (values - np.float32(how["mean"])) / np.float32(how["std"])
    nchw = entry["input"]["layout"] == "NCHW"
    return {entry["input"]["name"]: np.ascontiguousarray(values.transpose(0, 3, 1, 2) if nchw else values)}


def _cifar10(name: str, folder: Path, counts: Counts) -> Case:
    entry, kept = _entry(name), {}
    for part, count in (("calib", counts.calibrate + counts.search), ("val", counts.evaluate)):
        with np.load(_zoo(f"data/cifar10_{part}.npz")) as archive:
            kept[part] = archive["images"][:count], archive["labels"][:count]
    arrays = _cut(*(_preprocessed(kept[part][0], entry) for part in ("calib", "val")), counts)
    return Case(_zoo(entry["file"]), *arrays, kept["val"][1], "CIFAR-10")


def _pictures(name: str, side: int, folder: Path, counts: Counts) -> Case:
    """ImageNet samples; one of each class in turn. The net for persons is given them, too, without labels."""
    entry = _entry(name)
    with _zoo("data/imagenet/labels.csv").open(newline="") as file:
        index = {row["wnid"]: int(row["index"]) for row in csv.DictReader(file)}
    parts, labels = {}, []
    for part, count in (("calib", counts.calibrate + counts.search), ("val", counts.evaluate)):
        files = sorted(_zoo(f"data/imagenet/{part}").rglob("*.jpg"))[:: 1 if part == "calib" else 3][:count]
        pictures = [Image.open(f).convert("RGB") for f in files]
        sized = [p if p.size == (side, side) else p.resize((side, side), Image.Resampling.BICUBIC) for p in pictures]
        parts[part] = _preprocessed(np.stack([np.asarray(p) for p in sized]), entry)
        labels = [index[f.parent.name] for f in files]
    known = np.array(labels) if entry["dataset"] == "imagenet_samples" else None
    return Case(_zoo(entry["file"]), *_cut(parts["calib"], parts["val"], counts), known, "ImageNet pictures")


def _drawn(name: str, draw: Callable[[np.random.Generator, int], Any], folder: Path, counts: Counts) -> Case:
    entry, rng = _entry(name), np.random.default_rng(0)
    port = entry["input"]["name"]
    calibrate = {port: draw(rng, counts.calibrate + counts.search)}
    arrays = _cut(calibrate, {port: draw(rng, counts.evaluate)}, counts)
    return Case(_zoo(entry["file"]), *arrays, None, "synthetic")


def _walk(rng: np.random.Generator, shape: tuple[int, ...], axis: int) -> np.ndarray[Any, Any]:
    """Noise that changes slowly along an axis, of standard deviation about 1."""
    noise = rng.standard_normal(shape)
    return sum(np.roll(noise, shift, axis) for shift in range(8)) / np.sqrt(8)


def _cepstra(rng: np.random.Generator, count: int) -> np.ndarray[Any, Any]:
    """Like MFCCs `[N, 49, 10, 1]`: the first coefficient is the level, the others get smaller."""
    spread, level = np.array([40, 20, 14, 10, 8, 7, 6, 5, 4, 4.0]), np.array([-30, 10, 4, 2, 0, 0, 0, 0, 0, 0.0])
    return (_walk(rng, (count, 49, 10), 1) * spread + level)[..., None].astype(np.float32)


def _mel_frames(rng: np.random.Generator, count: int) -> np.ndarray[Any, Any]:
    """Like five frames of 128 log-mel energies `[N, 640]` in dB."""
    spectrum = np.repeat(_walk(rng, (count, 1, 128), 2), 5, axis=1) * 6 - np.linspace(10, 50, 128)
    return (spectrum + 2 * rng.standard_normal((count, 5, 128))).reshape(count, 640).astype(np.float32)


def _encoder(form: str, data: str, folder: Path, counts: Counts) -> Case:
    remedy = "set QUANTPIPE_ENCODER to a folder with an exported sentence encoder (benchmarks/README.md)"
    model = _there(ENCODER / f"embed_{form}.onnx", remedy)
    if form == "dynamo":
        model = _for_inference(model, folder / model.name)
    parts = [dict(np.load(_there(ENCODER / f"{data}.{part}.npz", remedy))) for part in ("cal", "val")]
    what = "sentences, padded to 64 tokens" if data == "padded" else "sentences, 32 tokens, no padding"
    return Case(model, *_cut(*parts, counts), None, what)


def _for_inference(model: Path, target: Path) -> Path:
    """torch's newer exporter leaves Dropout in training mode where the outermost module is: here it is turned off."""
    import onnx

    mended = onnx.load(model)
    for node in mended.graph.node:
        if node.op_type == "Dropout":
            del node.input[1:]
    onnx.save(mended, target)
    return target


def _light(name: str, folder: Path, counts: Counts) -> Case:
    import onnx

    model = folder / f"{name}.onnx"
    light_model(name, model)
    port = onnx.load(model).graph.input[0]
    shape = [d.dim_value for d in port.type.tensor_type.shape.dim][1:]
    rng = np.random.default_rng(1)
    count = counts.calibrate + counts.search
    calibrate = {port.name: rng.standard_normal((count, *shape), dtype=np.float32)}
    evaluate = {port.name: rng.standard_normal((counts.evaluate, *shape), dtype=np.float32)}
    return Case(model, *_cut(calibrate, evaluate, counts), None, "random weights, normal noise")


def _given(entry: Mapping[str, Any], beside: Path, folder: Path, counts: Counts) -> Case:
    """A model of the user's list: `model`, relative to the list or to the folder of an installed `package`; `calibrate`
    and `evaluate`, .npz files with an array per input and, if there are some, `labels`."""
    base = beside
    if package := entry.get("package"):
        spec = find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise Absent(f"package {package} is not installed")
        base = Path(spec.submodule_search_locations[0])
    model = _there(base / entry["model"], "mend the list given by --more")
    parts = [
        dict(np.load(_there(beside / entry[p], "mend the list given by --more"))) for p in ("calibrate", "evaluate")
    ]
    labels = [part.pop("labels", None) for part in parts][1]
    labels = None if labels is None else labels[: counts.evaluate]
    return Case(model, *_cut(*parts, counts), labels, str(entry.get("data", "given")))
