"""Every form of models and samples in memory gives the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import quantpipe
from quantpipe.data import GivenDataset, Splits
from quantpipe.types import TensorInfo
from tests.api.nets import CLASSES, QUICK, images, numbers_of, small_net, two_inputs


def arrays_of(splits: Splits) -> dict[str, Any]:
    """The arrays and labels of every split."""
    found = {}
    for role, samples in splits.roles.items():
        batches = list(samples.batches(5))
        labels = [b.labels for b in batches if b.labels is not None]
        found[role] = np.concatenate([b.inputs["x"] for b in batches]), np.concatenate(labels) if labels else None
    return found


def test_every_form_of_samples_gives_the_same_splits() -> None:
    data, labels = images(), np.arange(48) % CLASSES
    unlabelled: list[Any] = [data, {"x": data}, list(data), (s for s in data), [{"x": s} for s in data], Tensor(data)]
    labelled: list[Any] = [
        (data, labels),
        ({"x": data}, labels.tolist()),
        list(zip(data, labels, strict=True)),
        (list(data), labels),
        zip(data, labels, strict=True),
    ]
    port = TensorInfo("x", (None, 3, 8, 8), "float32")
    for forms in (unlabelled, labelled):
        found = [arrays_of(GivenDataset(given=some).splits([port], CLASSES, 0)) for some in forms]
        assert {role: len(arrays) for role, (arrays, _) in found[0].items()} == {
            "calibrate": 12, "search": 12, "evaluate": 24
        }  # fmt: skip
        for other in found[1:]:
            np.testing.assert_equal(other, found[0])
        assert (found[0]["search"][1] is not None) is (forms is labelled)


class Tensor:
    """An array of another library."""

    def __init__(self, array: Any) -> None:
        self._array, self.shape = array, array.shape

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self._array


@pytest.mark.grid
def test_every_form_of_a_model_gives_the_same_numbers(tmp_path: Path) -> None:
    model = small_net()
    onnx.save(model, tmp_path / "net.onnx")
    before = model.SerializeToString()
    forms = {"path": tmp_path / "net.onnx", "text": str(tmp_path / "net.onnx"), "bytes": before, "object": model}
    runs = [quantpipe.quantize(form, images(), folder=tmp_path / name, evaluate=QUICK) for name, form in forms.items()]
    assert all(numbers_of(run.folder) == numbers_of(runs[0].folder) for run in runs)
    assert model.SerializeToString() == before
    assert not (tmp_path / "path" / "input").exists()


@pytest.mark.grid
def test_a_model_beyond_one_file_is_written_with_its_data_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quantpipe.api.model.MOST_BYTES", 100)
    model = small_net()
    before = model.SerializeToString()
    result = quantpipe.quantize(model, images(), folder=tmp_path / "apart", evaluate=QUICK)
    assert (tmp_path / "apart" / "input" / "model.onnx.data").stat().st_size > 100
    assert model.SerializeToString() == before
    whole = quantpipe.quantize(before, images(), evaluate=QUICK)
    assert numbers_of(result.folder) == numbers_of(whole.folder)


def test_several_inputs_and_sets_of_ones_own(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)

    def some(count: int) -> dict[str, Any]:
        return {name: rng.standard_normal((count, size)).astype(np.float32) for name, size in (("a", 6), ("b", 4))}

    sets = quantpipe.SampleSets(calibrate=some(20), evaluate=(some(10), np.arange(10) % CLASSES), search=some(12))
    report = quantpipe.quantize(two_inputs(), sets, evaluate=QUICK).report
    assert {role: entry["samples"] for role, entry in report["data"].items()} == {
        "calibrate": 20, "search": 12, "evaluate": 10
    }  # fmt: skip
    assert report["agreement"]["differing"] == 0
    assert report["metrics"]["realized"]["top1"] is not None
    set_aside = quantpipe.SampleSets(calibrate=some(20), evaluate=some(10))
    report = quantpipe.quantize(two_inputs(), set_aside, evaluate=QUICK).report
    assert {role: entry["samples"] for role, entry in report["data"].items()} == {
        "calibrate": 15, "search": 5, "evaluate": 10
    }  # fmt: skip


@pytest.mark.grid
def test_options_of_the_data(tmp_path: Path) -> None:
    data = images()
    scaled = quantpipe.quantize(
        small_net(), data * 4, evaluate=QUICK, dataset={"preprocess": {"scale": 0.25}, "samples": {"evaluate": 7}}
    )
    plain = quantpipe.quantize(small_net(), data, evaluate=QUICK)
    assert numbers_of(scaled.folder) == numbers_of(plain.folder)
    assert scaled.report["data"]["evaluate"]["samples"] == 7
