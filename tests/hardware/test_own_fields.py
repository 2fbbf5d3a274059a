"""What a single kernel says of itself: how it forms its function, what it holds sums in, the scale of its result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quantpipe.errors import HardwareError
from quantpipe.types import Accumulate, DType, FunctionKind, Lookup, Overflow, Program
from tests.hardware.test_kernels import ATTENTION, OPS, SWISH, attention_net, conv_net, device
from tests.ops.line import hardware, hardware_data, line
from tests.simulate.test_against_interpreter import check

NARROW = {"in": ["int8", "int8"], "out": ["int8"], "accumulator": {"bits": 12, "overflow": "saturate"}}


def test_a_pattern_forms_its_function_in_another_way_than_the_device() -> None:
    own = ATTENTION | {"functions": {"p": "shift"}}
    spec = device({"attention": own}, ops={"Conv": OPS["Conv"], "Softmax": {"in": "int8", "out": "int8"}},
                  functions={"Softmax": "table"})  # fmt: skip
    made = line(attention_net(), spec)
    plan = made.plan(16)
    assert isinstance(plan.kernels["softmax"], Program) and plan.kernels["softmax"].kind is FunctionKind.SHIFT
    check(made, plan, "integer")
    assert made.agree(plan, "integer").differing == 0
    alone = line(attention_net(0.25), spec).topology  # no such pattern: the op by itself, as the device forms it
    assert not alone.sites


@pytest.mark.parametrize("where", ["ops", "kernels"])
def test_one_kernel_holds_its_sums_in_fewer_bits(where: str) -> None:
    """Sums of the one saturate at 12 bits, those of all others have 32."""
    pattern = SWISH | {"accumulator": {"y": {"bits": 12, "overflow": "saturate"}}}
    spec = (
        device({"swish": pattern})
        if where == "kernels"
        else device({}, ops=OPS | {"Conv": NARROW, "Sigmoid": {"in": "int8", "out": "int8"}})
    )
    made = line(conv_net("Sigmoid", ""), spec)
    plan = made.plan(8)
    first, second = plan.kernels["conv0"], plan.kernels["conv1"]
    assert isinstance(first, Accumulate) and isinstance(second, Accumulate)
    assert first.limit is not None and (first.limit.width, first.limit.overflow) == (12, Overflow.SATURATE)
    assert (second.limit is None) is (where == "kernels")
    check(made, plan, "integer")
    assert made.agree(plan, "integer").differing == 0


def test_a_kernel_gives_its_result_one_scale() -> None:
    pattern = SWISH | {"fixed_scale": {"z": "1/64"}}
    made = line(conv_net("HardSwish", ""), device({"swish": pattern}))
    plan = made.plan(8)
    q = plan.quantizers["hardswish0_out"]
    assert (float(q.scale), q.zero_point, q.dtype) == (1 / 64, 0, DType.INT8)
    assert made.agree(plan, "integer").differing == 0
    ops = hardware_data("tflite_int8")["ops"]
    ops |= {"Tanh": [{"in": "int8", "out": "int8", "fixed_scale": {"scale": 0.0078125, "zero_point": 3}}]}
    other = line(conv_net("Tanh", ""), hardware("tflite_int8", ops=ops))
    q = other.plan(8).quantizers["tanh0_out"]
    assert (float(q.scale), q.zero_point) == (1 / 128, 3)


def test_a_function_of_one_signature_needs_none_of_the_device() -> None:
    ops = hardware_data("cmsis_nn")["ops"] | {"Gelu": [{"in": "int8", "out": "int8", "function": "polynomial"}]}
    net = conv_net("", "")
    net._opset = 20
    net.output(net.node("Gelu", "conv1_out", name="gelu"))
    made = line(net, hardware("cmsis_nn", ops=ops))
    found = made.plan(8).kernels["gelu"]
    assert isinstance(found, Lookup) and found.kind is FunctionKind.POLYNOMIAL
    assert np.unique(found.table).size > 16 and made.agree(made.plan(8), "integer").differing == 0


CONV: dict[str, Any] = {"in": ["int8", "int8"], "out": ["int8"]}
WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "function of none": (
        {},
        {"Conv": CONV | {"function": "table"}},
        "ops.Conv.function has no effect, since Conv is",
    ),
    "kind": ({"swish": SWISH | {"functions": {"z": "wavelet"}}}, OPS, "kernels.swish.functions.z is 'wavelet'"),
    "value": ({"swish": SWISH | {"functions": {"q": "table"}}}, OPS, "kernels.swish.functions.q is no value here"),
    "sums of none": (
        {"swish": SWISH | {"accumulator": {"z": {"bits": 18}}}},
        OPS,
        "kernels.swish.HardSwish.accumulator has no effect, since HardSwish adds nothing up",
    ),
    "bits": ({}, {"Conv": CONV | {"accumulator": {"bits": 70}}}, "ops.Conv.accumulator.bits is 70; legal are 9 to 48"),
    "narrower than its types": (
        {},
        {"Conv": {"in": ["int8", "int8"], "out": ["int32"], "accumulator": "int16"}},
        "ops.Conv uses int32, wider than accumulator.dtype, which is int16",
    ),
    "scale": ({}, {"Conv": CONV | {"fixed_scale": 0}}, "ops.Conv.fixed_scale.scale is 0; legal are numbers above 0"),
    "zero point": (
        {},
        {"Conv": CONV | {"fixed_scale": {"scale": 0.5, "zero_point": 4}}},
        "ops.Conv.fixed_scale has zero point 4, but activations.symmetric is true; legal is 0",
    ),
    "scale of a move": (
        {},
        OPS | {"Flatten": {"in": "int8", "out": "int8", "fixed_scale": 0.5}},
        "ops.Flatten.fixed_scale has no effect, since Flatten keeps the scale",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_says_nothing_or_contradicts_is_refused(case: str) -> None:
    kernels, ops, message = WRONG[case]
    with pytest.raises(HardwareError) as caught:
        device(kernels, ops=ops, **({} if kernels else {"activations": {"symmetric": True, "bits": 8}}))
    assert message in str(caught.value), caught.value
