"""Fields of hardware files that would have no effect: refused when the file is read, or listed where they are overruled
on purpose."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from quantpipe.errors import HardwareError
from quantpipe.hardware.idle import overruled
from quantpipe.hardware.load import load_hardware
from tests.hardware.test_hardware_files import changed
from tests.ops.line import CONF, Net, hardware, line

IDLE: dict[str, tuple[str, str, Any, str]] = {
    "activation bits": ("ort_cpu", "activations/bits", 16, "activations.bits is 16, but no op stores"),
    "weight bits": ("vta", "weights/bits", 12, "but no op multiplies by weights of more than 8"),
    "reduced bits": (
        "ort_cpu",
        "weights",
        {"granularity": "per_tensor", "bits": 9, "reduce_range": True},
        "weights.bits is 9",
    ),
    "a function": ("ort_cpu", "fuse", [["Conv", "LeakyRelu"]], "LeakyRelu cannot be fused into Conv. Legal are Relu"),
    "behind a relu": ("vta", "fuse", [["Conv", "Relu", "Conv"]], "Conv cannot be fused into Relu"),
    "a sum of sums": ("vta", "fuse", [["Add", "Add"]], "Add cannot be fused into Add"),
    "one op": ("vta", "fuse", [["Conv"]], "which fuses nothing; legal are chains of two"),
    "a clamp of accumulators": ("hago_sample", "fuse", [["Conv", "Relu"]], "Conv passes its accumulator"),
    "condition": ("vta", "ops/Gemm/0/when", {"group": "1"}, "ops.Gemm.when.group does not apply to Gemm; Gemm has no"),
    "condition of another op": (
        "vta",
        "ops/MatMul/0/when",
        {"window": "any"},
        "does not apply to MatMul; legal are operands",
    ),
    "word of a condition": (
        "vta",
        "ops/Conv/0/when",
        {"group": "1|depthwse"},
        "is '1|depthwse' (did you mean 'depthwise'",
    ),
    "window": ("ort_cpu", "ops/AveragePool/0/when", {"window": "power_of_to"}, "did you mean 'power_of_two'"),
    "a move that changes types": (
        "mixed_npu",
        "ops/MaxPool",
        {"in": ["int8"], "out": ["int16"]},
        "which keep their type",
    ),
    "a rate of a sign": (
        "vta",
        "cost/macs_per_cycle",
        {"uint8": 4, "float32": 1},
        "cost.macs_per_cycle.uint8 is read by",
    ),
    "no ops": ("vta", "ops", {}, "ops is empty"),
}


@pytest.mark.parametrize("mistake", IDLE)
def test_fields_without_effect_are_refused(mistake: str) -> None:
    base, path, value, message = IDLE[mistake]
    with pytest.raises(HardwareError) as caught:
        load_hardware(changed(base, path, value))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_the_same_fields_where_they_have_one() -> None:
    assert load_hardware(changed("mixed_npu", "activations/bits", 16)).activations.bits == 16
    assert load_hardware(changed("vta", "fuse", [["Conv", "Add", "Relu"]])).fuses("Conv", "Add")
    assert load_hardware(changed("ort_cpu", "fuse", [["Mul", "Clip"]])).fuses("Mul", "Clip")


def test_an_accumulator_that_an_addition_takes_is_overruled_and_said_so() -> None:
    assert list(overruled(hardware("vta"))) == []
    (said,) = overruled(hardware("vta", add_inputs="both"))
    assert said.startswith("hardware.add_inputs=both overrules [Conv, Add] of hardware.fuse")
    assert list(overruled(hardware("vta", add_inputs="residual_only"))) == []
    for path in (CONF / "hardware").glob("*.yaml"):
        assert list(overruled(hardware(path.stem))) == []


def test_a_chain_of_an_op_that_is_not_declared_is_told() -> None:
    (said,) = overruled(hardware("vta", fuse=[["Mul", "Relu"]]))
    assert said == "hardware.fuse: [Mul, Relu] has no effect, since vta runs no Mul in integers"


def test_a_pad_that_is_computed_at_run_time_is_not_taken_for_a_small_one() -> None:
    net = Net()
    x = net.conv(net.input(None, 3, 6, 6), 3, 4, 1, 1)
    most = net.node("ReduceMax", x, keepdims=0)
    pads = net.node("Cast", net.node("Mul", most, net.constant(np.zeros(8, np.float32))), to=TensorProto.INT64)
    net.output(net.conv(net.node("Pad", x, pads, name="pad"), 4, 4, 1, 1))
    for changes in ({"pad": {"max": 1}}, {}):
        assert "pad" not in line(net, hardware("ort_cpu")).topology.float_nodes
        made = line(net, hardware("ort_cpu", **changes)).topology.float_nodes
        assert ("pad" in made) == bool(changes)
    assert "computed at run time" in line(net, hardware("ort_cpu", pad={"max": 1})).topology.float_nodes["pad"].text
