"""`cache` of a hardware file: its short form, what it rejects, and what the shipped files say."""

from __future__ import annotations

from typing import Any

import pytest

from quantpipe.errors import HardwareError
from quantpipe.hardware.like import taken_over
from quantpipe.hardware.load import load_hardware
from quantpipe.types import CacheLimits, DType
from tests.ops.line import hardware, hardware_data

SHIPPED = {
    "ort_cpu": DType.UINT8,
    "qnn_htp": DType.UINT8,
    "npu_w8a16": DType.INT8,
    "ethos_u": DType.INT8,
    "esp32p4": DType.INT8,
}


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_devices_hold_caches_in_8_bits(name: str) -> None:
    assert hardware(name).cache == CacheLimits(SHIPPED[name], SHIPPED[name])


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (None, None),
        ("int16", CacheLimits(DType.INT16, DType.INT16)),
        ({"keys": "int16", "values": "int8"}, CacheLimits(DType.INT16, DType.INT8)),
        ("auto", CacheLimits(DType.INT16, DType.INT16)),
        ({"keys": "int8", "granularity": "per_tensor", "length": 256}, CacheLimits(DType.INT8, DType.INT8, 256)),
    ],
)
def test_it_is_read(given: Any, found: CacheLimits | None) -> None:
    assert hardware("npu_w8a16", cache=given).cache == found


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("float32", "cache.keys is 'float32'.*legal are uint8, int8, uint16, int16"),
        ({"keys": "int8", "values": "int4"}, "cache.values is 'int4'"),
        ({"values": "int8"}, "cache.keys is None"),
        ({"keys": "int8", "granularity": "per_channel"}, "cache.granularity is 'per_channel'.*legal are per_tensor"),
        ({"keys": "int8", "length": 0}, "cache.length"),
        ({"keys": "int8", "ring": 8}, "cache.ring is not a field; legal are keys, values, granularity, length"),
        ("uint8", "cache.keys is uint8, and the ops of the device store int16; legal are int8, int16"),
        ({"keys": "int8", "values": "uint16"}, "cache.values is uint16"),
    ],
)
def test_what_means_nothing_is_rejected(given: Any, text: str) -> None:
    with pytest.raises(HardwareError, match=text):
        hardware("npu_w8a16", cache=given)


def test_a_file_like_another_one_changes_single_fields() -> None:
    base = hardware_data("npu_w8a16")
    mine = {"name": "mine", "source": "here", "like": "npu_w8a16", "cache": {"values": "int16"}}
    assert load_hardware(taken_over(mine, {"npu_w8a16": base}.__getitem__)).cache == CacheLimits(
        DType.INT8, DType.INT16
    )
    without = {**mine, "cache": None}
    assert load_hardware(taken_over(without, {"npu_w8a16": base}.__getitem__)).cache is None


def test_a_file_like_ort_cpu_with_other_types_has_caches_of_these() -> None:
    ops = {"Conv": [{"in": ["int8", "int8", "int32"], "out": "int8", "accumulator": "int32"}]}
    assert hardware("ort_cpu").cache == CacheLimits(DType.UINT8, DType.UINT8)
    assert hardware("ort_cpu", ops=ops, fuse=[]).cache == CacheLimits(DType.INT8, DType.INT8)
