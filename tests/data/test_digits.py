from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import quantpipe
from quantpipe.data import DigitsDataset
from quantpipe.data.sources.digits import digits_arrays, digits_parts
from quantpipe.errors import ConfigError, DataError
from quantpipe.types import Samples, TensorInfo
from tests.data.helpers import GREY8, RGB8, count_right

MODEL = Path(quantpipe.__file__).parent / "assets" / "digits.onnx"


def test_embedded_model_is_accurate_on_what_it_was_not_trained_on() -> None:
    evaluate = DigitsDataset().splits(GREY8, 10, seed=0).evaluate
    assert len(evaluate) == 607
    assert count_right(MODEL, evaluate) >= 0.97 * len(evaluate)


def test_embedded_model_is_what_it_is_said_to_be() -> None:
    model = onnx.load(MODEL)
    ops = [node.op_type for node in model.graph.node]
    assert MODEL.stat().st_size < 400_000
    assert model.opset_import[0].version == 17
    assert ops.count("BatchNormalization") == ops.count("Conv")
    assert {"Add", "Clip", "Relu", "GlobalAveragePool", "Gemm"} <= set(ops)
    assert all(node.name for node in model.graph.node)
    assert [v.name for v in (*model.graph.input, *model.graph.output)] == ["image", "logits"]
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param


def test_parts_are_fixed_and_cover_everything() -> None:
    train, test = digits_parts(1797)
    assert sorted([*train, *test]) == list(range(1797))
    assert train[:3].tolist() == digits_parts(1797)[0][:3].tolist()


def positions(samples: Samples) -> set[int]:
    return {int(i) for batch in samples.batches(64) for i in batch.indices}


@pytest.mark.parametrize("share", [0.25, 0.5])
def test_splits_are_disjoint_and_come_from_their_parts(share: float) -> None:
    train, held_out = (set(part.tolist()) for part in digits_parts(1797))
    everything = {"calibrate": None, "search": None, "evaluate": None}
    splits = DigitsDataset(search={"share": share}, samples=everything).splits(GREY8, 10, 0)
    search, evaluate = positions(splits.search), positions(splits.evaluate)
    assert positions(splits.calibrate) == train
    assert not search & evaluate
    assert search | evaluate == held_out
    assert len(search) == round(share * len(held_out))


def test_values_are_pixels_over_16() -> None:
    splits = DigitsDataset().splits(GREY8, 10, seed=0)
    assert (len(splits.calibrate), len(splits.search)) == (128, 128)
    batch = next(splits.calibrate.batches(5))
    images, labels = digits_arrays()
    assert batch.inputs["image"].dtype == np.float32
    np.testing.assert_array_equal(batch.inputs["image"][:, 0], images[batch.indices][..., 0] / np.float32(16))
    assert batch.labels is not None
    np.testing.assert_array_equal(batch.labels, labels[batch.indices])


def test_every_seed_is_judged_by_the_same_images() -> None:
    first, other = (DigitsDataset().splits(GREY8, 10, seed) for seed in (0, 1))
    assert first.search.digest == other.search.digest
    assert first.evaluate.digest == other.evaluate.digest


def test_nhwc_model() -> None:
    dataset = DigitsDataset(preprocess={"scale": "1/16", "layout": "NHWC"})
    splits = dataset.splits([TensorInfo("x", (None, 8, 8, 1), "float32")], None, 0)
    assert next(splits.search.batches(2)).inputs["x"].shape == (2, 8, 8, 1)


def test_model_that_takes_other_images_is_refused() -> None:
    with pytest.raises(DataError, match=r"'image' takes \[N, 3, 8, 8\].*sample is \[N, 1, 8, 8\]"):
        DigitsDataset().splits(RGB8, 10, 0)


@pytest.mark.parametrize("share", [0, 1, -0.5])
def test_share_outside_its_bounds_is_refused(share: float) -> None:
    with pytest.raises(ConfigError, match=r"dataset\.search\.share"):
        DigitsDataset(search={"share": share}).splits(GREY8, 10, 0)
