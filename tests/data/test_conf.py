"""The YAML files and the classes say the same: what is left out of one is the default of the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from quantpipe.data import ImageFolderDataset, NpzDataset
from quantpipe.data.splits import DEFAULT_SAMPLES
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


@pytest.mark.parametrize("name", ["npz", "image_folder"])
def test_defaults_agree(tmp_path: Path, name: str) -> None:
    if name == "npz":
        path = str(write_npz(tmp_path / "d.npz", count=300))
        plain: Any = NpzDataset(path=path)
    else:
        path = str(write_pictures(tmp_path / "d", {"a": 30, "b": 30}))
        plain = ImageFolderDataset(path=path)
    by_yaml = configured(name, f"path={path}").splits(RGB8, 10, 5)
    by_class = plain.splits(RGB8, 10, 5)
    for role in DEFAULT_SAMPLES:
        assert getattr(by_yaml, role).digest == getattr(by_class, role).digest


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
