from __future__ import annotations

import numpy as np
import pytest

from quantpipe.data import DigitsColumnsDataset, DigitsDataset
from quantpipe.data.sources.digits import digits_arrays
from quantpipe.data.sources.digits_columns import COLUMNS, columns_of
from quantpipe.errors import DataError
from quantpipe.types import TensorInfo
from tests.data.helpers import GREY8

PORTS = (TensorInfo("columns", (None, None, 8), "float32"), TensorInfo("attention_mask", (None, None), "int64"))


def test_columns_run_from_the_first_with_ink_to_the_last() -> None:
    images = np.zeros((4, 8, 8), np.float32)
    images[0, 3, 2], images[0, 5, 4] = 1, 0.5  # columns 2 to 4, the middle one empty
    images[1, :, 7] = 0.25  # the last one alone
    images[2, 0, :] = 1  # all
    images[3, 0, 0] = 0.125  # too faint to count: no ink at all
    columns, mask = columns_of(images)
    assert mask.sum(axis=1).tolist() == [3, 1, 8, 8]
    assert (np.diff(mask, axis=1) <= 0).all(), "what is real stands in front"
    np.testing.assert_array_equal(columns[0, :3], images[0].T[2:5])
    np.testing.assert_array_equal(columns[1, 0], images[1, :, 7])
    np.testing.assert_array_equal(columns[2], images[2].T)
    assert not columns[mask == 0].any()


def test_samples_differ_in_length_and_are_those_of_digits() -> None:
    splits, pictures = DigitsColumnsDataset().splits(PORTS, 10, 0), DigitsDataset().splits(GREY8, 10, 0)
    images, labels = digits_arrays()
    for role, samples in splits.roles.items():
        batches = list(samples.batches(64))
        indices = np.concatenate([b.indices for b in batches])
        others = np.concatenate([b.indices for b in pictures.roles[role].batches(64)])
        assert set(others.tolist()) >= set(indices.tolist())
        lengths = np.concatenate([b.inputs["attention_mask"] for b in batches]).sum(axis=1)
        assert len(set(lengths.tolist())) >= 3 and lengths.max() <= COLUMNS
        np.testing.assert_array_equal(np.concatenate([b.labels for b in batches]), labels[indices])
        first, length = batches[0].inputs["columns"][0], int(lengths[0])
        assert any(
            np.array_equal(first[:length] * 16, images[indices[0], :, start : start + length, 0].T)
            for start in range(COLUMNS - length + 1)
        )


def test_a_model_of_images_is_refused() -> None:
    with pytest.raises(DataError, match="there is no data for model input 'image'"):
        DigitsColumnsDataset().splits(GREY8, 10, 0)
