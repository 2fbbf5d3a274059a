"""Copies of a tensor for single readers: an edge may have a scale and bits of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import quantpipe
from quantpipe.errors import ConfigError
from tests.ops.line import Net

QUICK = {"baseline": "none", "explain": "none", "latency_runs": 5}


def two_readers() -> Any:
    """The layer `small` reads values of all channels, and needs those of the small ones; `large` needs the large."""
    net = Net(seed=1)
    x = net.input(None, 3, 8, 8)
    a = net.node("Relu", net.conv(x, 3, 4, 3, 3, name="a"))
    net.output(net.conv(a, 4, 3, 1, 1, name="large"))
    net.output(net.conv(a, 4, 3, 1, 1, name="small"))
    return net.proto()


def images() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((64, 3, 8, 8)).astype(np.float32)


def pipeline(device: Any, kinds: list[str], **options: Any) -> quantpipe.Pipeline:
    given: dict[str, Any] = {"precision": "none", "recover": "none", "executor": "serial", "evaluate": QUICK, **options}
    return quantpipe.Pipeline(two_readers(), images(), device, annotate={"choices": kinds}, **given)


def copies_of(space: Any) -> list[str]:
    return [c.key for c in space if c.key.startswith("rescale:")]


@pytest.mark.sliced(2)
@pytest.mark.parametrize("device", ["ort_cpu", "mixed_npu"])
def test_an_edge_has_a_range_of_its_own_and_the_integers_agree(device: str) -> None:
    with pipeline(device, ["auto", "edges"]) as found:
        space = found.annotate().space
        (key,) = copies_of(space)
    copy = key.removeprefix("rescale:")
    assert copy.endswith("/small/edge")
    assert {f"range:{copy}", f"bits:{copy}"} <= {c.key for c in space}
    fix = {key: "own", f"range:{copy}": "narrower"}
    with pipeline(device, ["auto", "edges"], choices={"fix": fix}, search="uniform") as found:
        strategy, report = found.search().strategy, found.evaluate()
    tensor = copy.split("/")[0]
    assert strategy.ranges[copy].high == pytest.approx(0.75 * strategy.ranges[tensor].high)
    assert report["agreement"]["differing"] == 0 and report["agreement"]["elements"] > 0
    assert [row["node"] for row in report["rescales"]] == [copy]


def test_shared_the_copy_rounds_nothing() -> None:
    with pipeline("ort_cpu", ["auto", "edges"], search="uniform") as found:
        report = found.evaluate()
    with pipeline("ort_cpu", ["auto"], search="uniform") as plain:
        wanted = plain.evaluate()
    assert report["agreement"]["differing"] == 0 and not report["rescales"]
    assert report["search"]["best_value"] == wanted["search"]["best_value"]


def test_bits_of_an_edge() -> None:
    """The one reader takes the tensor at 16 bits, the other at 8."""
    with pipeline("mixed_npu", ["bits", "edges"], search="uniform") as found:
        (key,) = copies_of(found.annotate().space)
    copy = key.removeprefix("rescale:")
    fix = {key: "own", f"bits:{copy}": 8}
    with pipeline("mixed_npu", ["bits", "edges"], choices={"fix": fix}, search="uniform") as found:
        strategy, report = found.search().strategy, found.evaluate()
    assert (strategy.bits[copy], strategy.bits[copy.split("/")[0]]) == (8, 16)
    assert report["agreement"]["differing"] == 0


@pytest.mark.parametrize("device", ["vta", "tflite_int8"])
def test_a_device_that_rescales_nothing_ends_the_run(device: str) -> None:
    with (
        pytest.raises(ConfigError, match=rf"has edges, and {device} brings no stored integers to another scale"),
        pipeline(device, ["auto", "edges"]) as found,
    ):
        found.annotate()
