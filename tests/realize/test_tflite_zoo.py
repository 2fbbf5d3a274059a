"""The zoo's models as .tflite files: LiteRT's reference kernels hold the simulated integers on every element."""

from __future__ import annotations

import pytest

from tests.ops.test_zoo_agreement import MODELS, line_of
from tests.realize.test_tflite import differing
from tests.zoo import requires_zoo

pytestmark = [requires_zoo, pytest.mark.slow, pytest.mark.usefixtures("litert_here")]


@pytest.mark.parametrize(
    ("device", "whole"),
    [("tflite_int8", True), ("tflite_int8", False), ("tflite_16x8", True)],
    ids=["int8, integer ends", "int8, real ends", "16x8"],
)
@pytest.mark.parametrize("name", [*MODELS, "imagenet_efficientnet_lite0"])
def test_every_stored_tensor(name: str, device: str, whole: bool) -> None:
    made = line_of(name, device)
    count, written = differing(made, made.plan(), whole=whole)
    assert count.elements and count.differing == 0, f"{count.differing} of {count.elements}, {count.first}"
    assert written.transposes == 0
