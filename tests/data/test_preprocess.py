from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quantpipe.data import Layout, Preprocess, SourceLayout
from quantpipe.errors import ConfigError, DataError

IMAGES = np.random.default_rng(0).integers(0, 256, (2, 4, 6, 3), np.uint8)


def test_formula_per_channel() -> None:
    preprocess = Preprocess.of({"scale": "1/255", "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]})
    expected = (IMAGES / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    values = preprocess.apply(IMAGES, SourceLayout.NHWC)
    assert values.dtype == np.float32
    np.testing.assert_allclose(values, expected.transpose(0, 3, 1, 2), atol=1e-5)


def test_apply_leaves_its_input_alone() -> None:
    features = np.ones((2, 5), np.float32)
    Preprocess.of({"scale": 2, "mean": 1}).apply(features, SourceLayout.AS_IS)
    assert (features == 1).all()


@pytest.mark.parametrize(
    ("source", "layout", "shape", "expected"),
    [
        ("NHWC", "NCHW", (2, 4, 6, 3), (2, 3, 4, 6)),
        ("NHWC", "NHWC", (2, 4, 6, 3), (2, 4, 6, 3)),
        ("NCHW", "NHWC", (2, 3, 4, 6), (2, 4, 6, 3)),
        ("NHW", "NCHW", (2, 4, 6), (2, 1, 4, 6)),
        ("NHW", "NHWC", (2, 4, 6), (2, 4, 6, 1)),
        ("as_is", "NCHW", (2, 4, 6, 3), (2, 4, 6, 3)),
    ],
)
def test_layouts(source: str, layout: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    values = Preprocess.of({"layout": layout}).apply(np.zeros(shape, np.uint8), SourceLayout(source))
    assert values.shape == expected


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((None, 8, 8, 3), "NHWC"),
        ((1, None, None, 4), "NHWC"),
        ((None, 3, 8, 8), "NCHW"),
        ((None, 3, 8, 3), "NCHW"),
        ((None, 8, 8, None), "NCHW"),
        ((None, 8, 3), "NCHW"),
    ],
)
def test_an_input_may_show_its_layout(shape: tuple[int | None, ...], layout: str) -> None:
    assert Preprocess().for_input(shape, SourceLayout.NHWC).layout is Layout(layout)


def test_samples_and_lists_per_channel_show_that_the_last_axis_has_no_channels() -> None:
    """Such as 22 channels of 256 values."""
    shape = (None, 22, 256, 1)
    assert Preprocess().for_input(shape, SourceLayout.NCHW).layout is Layout.NCHW
    assert Preprocess(mean=[0.5] * 22).for_input(shape, SourceLayout.AS_IS).layout is Layout.NCHW


def test_auto_layout() -> None:
    uint8, float32 = np.dtype("uint8"), np.dtype("float32")
    assert SourceLayout.AUTO.resolve((2, 4, 6, 3), uint8) is SourceLayout.NHWC
    assert SourceLayout.AUTO.resolve((2, 3, 4, 6), uint8) is SourceLayout.AS_IS
    assert SourceLayout.AUTO.resolve((2, 4, 6, 3), float32) is SourceLayout.AS_IS
    assert SourceLayout.NCHW.resolve((2, 4, 6, 3), uint8) is SourceLayout.NCHW


def test_identity_keeps_integers() -> None:
    tokens = np.array([[1, 2**40]])
    assert Preprocess().apply(tokens, SourceLayout.AS_IS).tolist() == tokens.tolist()


def test_resizing_touches_only_other_sizes() -> None:
    preprocess = Preprocess.of({"size": [4, 6]})
    mixed = [IMAGES[0], np.full((9, 9, 3), 7, np.uint8)]
    values = preprocess.apply(mixed, SourceLayout.NHWC)
    np.testing.assert_array_equal(values[0], IMAGES[0].transpose(2, 0, 1))
    assert (values[1] == 7).all()
    assert preprocess.apply(np.zeros((1, 9, 9, 1), np.uint8), SourceLayout.NHWC).shape == (1, 1, 4, 6)
    assert preprocess.apply(np.zeros((1, 9, 9), np.uint8), SourceLayout.NHW).shape == (1, 1, 4, 6)


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"scale": "1/0"}, r"preprocess\.scale.*1/255"),
        ({"scale": "lots"}, r"preprocess\.scale"),
        ({"scale": 0}, r"preprocess\.scale"),
        ({"std": [1, 0]}, r"preprocess\.std"),
        ({"mean": []}, r"preprocess\.mean"),
        ({"mean": float("nan")}, r"preprocess\.mean"),
        ({"layout": "CHWN"}, r"NCHW, NHWC"),
        ({"size": 8}, r"\[height, width\]"),
        ({"size": [8, 0]}, r"\[height, width\]"),
        ({"sclae": 1}, r"did you mean 'scale'"),
    ],
)
def test_wrong_configuration(config: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        Preprocess.of(config)


@pytest.mark.parametrize(
    ("config", "shape", "dtype", "source", "match"),
    [
        ({"mean": [1, 2, 3]}, (2, 8, 8, 1), "uint8", "NHWC", r"3 values for samples with 1 channels"),
        ({}, (2, 5), "uint8", "NHWC", r"dataset\.source_layout"),
        ({"size": [4, 4]}, (2, 5), "uint8", "as_is", r"dataset\.preprocess\.size"),
        ({"size": [4, 4]}, (2, 8, 8, 3), "float32", "NHWC", r"uint8 images, found float32"),
    ],
)
def test_data_that_cannot_be_preprocessed(
    config: dict[str, Any], shape: tuple[int, ...], dtype: str, source: str, match: str
) -> None:
    with pytest.raises(DataError, match=match):
        Preprocess.of(config).apply(np.zeros(shape, dtype), SourceLayout(source))


def test_layout_is_an_enum_member() -> None:
    assert Preprocess.of({"layout": "nhwc"}).layout is Layout.NHWC
