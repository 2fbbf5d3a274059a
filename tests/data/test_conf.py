"""The YAML files and the classes say the same: what is left out of one is the default of the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from hydra.utils import instantiate
from omegaconf import OmegaConf

from quantpipe.data import (
    CallableDataset,
    DigitsColumnsDataset,
    ImageFolderDataset,
    NpzDataset,
    TableDataset,
    TextDataset,
    WavFolderDataset,
)
from quantpipe.data.splits import DEFAULT_SAMPLES
from quantpipe.types import TensorInfo
from tests.data.helpers import GREY8, RGB8, write_npz, write_pictures

CONF = Path(__file__).resolve().parents[2] / "conf" / "dataset"


def configured(name: str, *overrides: str) -> Any:
    config = OmegaConf.load(CONF / f"{name}.yaml")
    OmegaConf.set_struct(config, True)
    return instantiate(OmegaConf.merge(config, OmegaConf.from_dotlist(list(overrides))))


def test_digits() -> None:
    splits = configured("digits").splits(GREY8, 10, 0)
    assert [len(s) for s in (splits.calibrate, splits.search, splits.evaluate)] == [128, 128, 607]
    assert next(splits.search.batches(128)).inputs["image"].max() == 1


def test_digits_columns() -> None:
    ports = [TensorInfo("columns", (None, None, 8), "float32"), TensorInfo("attention_mask", (None, None), "int64")]
    by_yaml, by_class = configured("digits_columns").splits(ports, 10, 0), DigitsColumnsDataset().splits(ports, 10, 0)
    assert [len(s) for s in (by_yaml.calibrate, by_yaml.search, by_yaml.evaluate)] == [128, 128, 607]
    assert [s.digest for s in by_yaml.roles.values()] == [s.digest for s in by_class.roles.values()]


@pytest.mark.parametrize("name", ["npz", "image_folder", "table", "wav_folder", "text", "callable"])
def test_defaults_agree(tmp_path: Path, name: str) -> None:
    kind, ports, given = EVERY[name](tmp_path)
    config = OmegaConf.load(CONF / f"{name}.yaml")
    known = set(config) - {"_target_", "_convert_"}
    unused = {"search"} if name == "callable" else set()  # it is given each split, or divides what it is given
    assert known == {f.name for f in fields(kind)} - unused
    objects = {k: v for k, v in given.items() if callable(v)}
    by_yaml = instantiate(OmegaConf.merge(config, {k: v for k, v in given.items() if k not in objects}), **objects)
    by_yaml, by_class = (made.splits(ports, 10, 5) for made in (by_yaml, kind(**given)))
    for role in DEFAULT_SAMPLES:
        assert getattr(by_yaml, role).digest == getattr(by_class, role).digest


def _sounds(folder: Path) -> Path:
    folder.mkdir()
    for number in range(12):
        soundfile.write(folder / f"{number}.wav", np.full(20, number / 50), 8000)
    return folder


def _lines(path: Path) -> Path:
    path.write_text("\n".join(f"x,{i % 3},{i}" if i else "text,label,a" for i in range(20)))
    return path


ROW = [TensorInfo("x", (None, None), "float32")]
EVERY: dict[str, Callable[[Path], tuple[Any, Any, dict[str, Any]]]] = {
    "npz": lambda tmp: (NpzDataset, RGB8, {"path": str(write_npz(tmp / "d.npz", count=300))}),
    "image_folder": lambda tmp: (
        ImageFolderDataset,
        RGB8,
        {"path": str(write_pictures(tmp / "d", {"a": 30, "b": 30}))},
    ),
    "table": lambda tmp: (TableDataset, ROW, {"path": str(_lines(tmp / "d.csv")), "features": ["a"]}),
    "wav_folder": lambda tmp: (WavFolderDataset, ROW, {"path": str(_sounds(tmp / "d"))}),
    "text": lambda tmp: (
        TextDataset,
        ROW,
        {"path": str(_lines(tmp / "d.csv")), "tokenizer": lambda text: [len(text)], "duplicates": "allow"},
    ),
    "callable": lambda tmp: (CallableDataset, ROW, {"target": lambda: [[i] for i in range(300)]}),
}


def test_keys_that_users_rely_on(tmp_path: Path) -> None:
    paths = [write_pictures(tmp_path / str(i), {"a": 8, "b": 8}, start=100 * i) for i in range(2)]
    (tmp_path / "l.csv").write_text("folder,number\na,1\nb,0\n")
    splits = configured(
        "image_folder",
        f"calibrate.path={paths[0]}",
        f"evaluate.path={paths[1]}",
        "search.share=0.5",
        "samples.evaluate=3",
        f"labels={tmp_path / 'l.csv'}",
        "label_columns=[folder,number]",
        "preprocess.scale=1/255",
        "preprocess.mean=[0.5,0.5,0.5]",
        "preprocess.size=[8,8]",
    ).splits(RGB8, 2, 0)
    assert [len(s) for s in (splits.calibrate, splits.search, splits.evaluate)] == [8, 8, 3]
    assert abs(next(splits.evaluate.batches(3)).inputs["image"]).max() <= 0.5
