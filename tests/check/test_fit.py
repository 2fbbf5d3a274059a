"""`check`: what it says of models whose fit is known by construction."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from quantpipe.annotate.conditions import AnnotateOptions
from quantpipe.annotate.topology import analyze
from quantpipe.check import DeviceVerdict, Fit, check, check_model, made_up
from quantpipe.errors import ConfigError, ModelError
from quantpipe.types import TensorInfo
from tests.ops.line import Net, hardware, load, schema_for


def fit(net: Net, shipped: str = "ort_cpu", **changes: object) -> Fit:
    graph, spec = load(net), hardware(shipped, **changes)
    schema = schema_for(spec)
    return check(graph, analyze(graph, spec, schema, AnnotateOptions()), spec, schema)


def chain() -> Net:
    """conv - relu - conv - flatten - dense, all of which ort_cpu runs in integers."""
    net = Net()
    x = net.conv(net.input(None, 3, 8, 8), 3, 8, 3, 3)
    x = net.conv(net.node("Relu", x), 8, 4, 3, 3)
    net.output(net.dense(net.node("Flatten", x), 4 * 16, 10))
    return net


def test_a_model_that_fits() -> None:
    found = fit(chain())
    assert (found.verdict, found.exit_code) == (DeviceVerdict.FITS, 0)
    assert found.nodes == found.integer_nodes
    assert found.mac_share == 1.0
    assert (found.refused, found.islands) == ((), ())
    assert (found.conversions_at_ends, found.conversions_inside) == (2, 0)


def test_an_island_in_the_middle_costs_two_conversions() -> None:
    net = Net()
    x = net.conv(net.input(None, 3, 8, 8), 3, 8, 3, 3, name="first")
    x = net.node("Erf", net.node("Erf", x, name="odd"), name="odd_too")
    net.output(net.conv(x, 8, 4, 3, 3, name="second"))
    found = fit(net)
    assert (found.verdict, found.exit_code) == (DeviceVerdict.FALLS_BACK, 3)
    assert [r.node for r in found.refused] == ["odd", "odd_too"]
    assert all(r.reason for r in found.refused)
    (island,) = found.islands
    assert (island.nodes, island.place, island.conversions) == (("odd", "odd_too"), "inside", 2)
    assert found.conversions_inside == 2


def test_islands_at_the_ends_are_told_as_such() -> None:
    net = Net()
    x = net.node("Erf", net.input(None, 3, 8, 8), name="before")
    net.output(net.node("Erf", net.conv(x, 3, 4, 3, 3), name="behind"))
    assert [i.place for i in fit(net).islands] == ["entry", "exit"]


def test_a_device_without_a_fitting_op_cannot_run_the_model() -> None:
    found = fit(chain(), ops={"Softmax": [{"in": ["float32"], "out": ["float32"]}]})
    assert (found.verdict, found.exit_code) == (DeviceVerdict.CANNOT_RUN, 2)
    assert found.mac_share == 0.0


def test_the_worst_case_of_a_sum_is_that_of_its_integers() -> None:
    net = Net()
    weight = net.constant(np.array([[1.0, -1.0, 0.5], [0.25, 0.0, 0.0]], np.float32), "w")
    net.output(net.node("Gemm", net.input(None, 3), weight, transB=1, name="dense"))
    (sums,) = fit(net).accumulators
    # Per channel, symmetric, narrow: 127, -127, 64 (63.5 to even) and 127; activations are uint8 with any zero point.
    assert sums.worst == (127 + 127 + 64) * 255
    assert sums.limit == 2**31 - 1
    assert not sums.overflows


def test_a_sum_over_very_many_inputs_could_overflow() -> None:
    net = Net()
    net.output(net.node("Gemm", net.input(None, 70000), net.signs(2, 70000, scale=1.0), transB=1, name="dense"))
    (sums,) = fit(net).overflowing
    assert sums.worst == 70000 * 127 * 255 > sums.limit


def test_a_bias_tells_from_which_input_range_it_fits() -> None:
    net = Net()
    weight = net.constant(np.array([[1.0, -1.0]], np.float32), "w")
    bias = net.constant(np.array([12.7], np.float32), "b")
    net.output(net.node("Gemm", net.input(None, 2), weight, bias, transB=1, name="dense"))
    (sums,) = fit(net).accumulators
    # b / (s_x s_w) <= 2^31 - 1 with s_x = T / 255, s_w = 1 / 127
    assert sums.bias_threshold == pytest.approx(12.7 * 127 / (2**31 - 1) * 255, rel=1e-5)


def test_padded_channels_are_told() -> None:
    net = Net()
    net.output(net.conv(net.input(None, 3, 8, 8), 3, 8, 3, 3, name="first"))
    found = fit(net, "vta")
    (waste,) = found.wasted
    assert (waste.node, waste.factor) == ("first", pytest.approx(16 / 3 * 2))
    assert found.alignment == pytest.approx(waste.factor)


def test_made_up_samples_follow_the_ports() -> None:
    ports = (TensorInfo("x", (None, 3, None), "float32"), TensorInfo("ids", (None, 7), "int64"))
    found = made_up(ports, {"x": [2, 3, 5]})
    assert (found["x"].shape, found["x"].dtype) == ((2, 3, 5), np.float32)
    assert (found["ids"].shape, found["ids"].dtype) == ((1, 7), np.int64)
    assert not found["ids"].any()
    with pytest.raises(ConfigError, match=r"no input 'y'.*it has x, ids"):
        made_up(ports, {"y": [1]})
    with pytest.raises(ConfigError, match=r"takes \[\?, 3, \?\]"):
        made_up(ports, {"x": [1, 4, 5]})


def test_a_model_that_the_made_up_sample_does_not_fit(tmp_path: Path) -> None:
    net = Net()
    net.output(net.dense(net.input(None, None), 10, 4))
    onnx.save(net.proto(), tmp_path / "net.onnx")
    spec = hardware("ort_cpu")
    with pytest.raises(ModelError, match=r"check\.shapes"):
        check_model(tmp_path / "net.onnx", spec, schema_for(spec), AnnotateOptions(), shapes={})
    found = check_model(tmp_path / "net.onnx", spec, schema_for(spec), AnnotateOptions(), shapes={"x": [1, 10]})
    assert found.verdict is DeviceVerdict.FITS
