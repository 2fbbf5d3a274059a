"""Small files, ports and collectors that the tests of the data sets share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from PIL import Image

from quantpipe.data import Splits
from quantpipe.types import Samples, TensorInfo

RGB8 = (TensorInfo("image", (None, 3, 8, 8), "float32"),)
GREY8 = (TensorInfo("image", (None, 1, 8, 8), "float32"),)
FLAT = (TensorInfo("x", (None, 5), "float32"),)


def write_npz(path: Path, count: int = 40, labels: bool = True, compressed: bool = False, seed: int = 0) -> Path:
    """Random RGB images 8x8 whose labels count 0..9."""
    arrays: dict[str, Any] = {"images": np.random.default_rng(seed).integers(0, 256, (count, 8, 8, 3), np.uint8)}
    if labels:
        arrays["labels"] = np.arange(count) % 10
    (np.savez_compressed if compressed else np.savez)(path, **arrays)
    return path


def write_pictures(folder: Path, per_class: dict[str, int], size: tuple[int, int] = (8, 8), start: int = 0) -> Path:
    """PNG files in sub-folders ("" for the folder itself), no two alike."""
    number = start
    for name, count in per_class.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            pixels = np.random.default_rng(number).integers(0, 256, (*size, 3), np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i:03}.png")
            number += 1
    return folder


def contents(samples: Samples) -> list[bytes]:
    """Every sample's bytes."""
    return [row.tobytes() for batch in samples.batches(7) for row in next(iter(batch.inputs.values()))]


def labels_of(samples: Samples) -> list[int]:
    found: list[int] = []
    for batch in samples.batches(7):
        assert batch.labels is not None
        found += batch.labels.tolist()
    return found


def assert_disjoint(splits: Splits) -> None:
    parts = [contents(s) for s in (splits.calibrate, splits.search, splits.evaluate)]
    joined = [sample for part in parts for sample in part]
    assert all(parts)
    assert len(set(joined)) == len(joined)


def count_right(model: Path, samples: Samples, batch: int = 64) -> int:
    """How many samples onnxruntime classifies as labelled."""
    session = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    right = 0
    for some in samples.batches(batch):
        scores: NDArray[Any] = session.run(None, some.inputs)[0]
        right += int((scores.argmax(axis=1) == some.labels).sum())
    return right
