"""Types on every edge: what a kernel reads is what its signature names, or it stays in float and says why."""

from __future__ import annotations

from typing import Any

import pytest

from quantpipe.errors import HardwareError
from quantpipe.hardware.load import load_hardware
from quantpipe.types import DType, Form, HardwareSpec
from tests.ops.line import CONF, Line, Net, hardware_data, line

INT8, INT16 = {"in": ["int8", "int8"], "out": ["int8"]}, {"in": ["int16"], "out": ["int16"]}


def device(**ops: Any) -> HardwareSpec:
    """mixed_npu, whose ops take int16, with int8 convolutions and what is given."""
    data = hardware_data("mixed_npu")
    float32 = {"in": ["float32"], "out": ["float32"]}
    return load_hardware(data | {"ops": data["ops"] | {"Conv": [INT8], "Add": [INT16, float32]} | ops})


def residual() -> Net:
    net = Net()
    x = net.input(None, 3, 6, 6)
    y = net.node("Add", net.conv(x, 3, 4, 1, 1), net.conv(x, 3, 4, 1, 1), name="sum")
    net.output(net.conv(y, 4, 2, 1, 1, name="last"))
    return net


def honoured(made: Line) -> bool:
    """Whether every stored operand has the type that the chosen signature names."""
    declared = made.spec.ops
    for kernel in made.topology.kernels:
        stored = [o for o in kernel.operands if o.form is Form.QUANTIZED]
        types = {o.port: made.topology.group_of[o.tensor].dtype for o in stored}
        rows = [s for s in declared[kernel.op] if s.is_integer]
        if not any(all(made.spec.is_wide(s.input(p)) or s.input(p) is d for p, d in types.items()) for s in rows):
            return False
    return True


def test_an_addition_of_another_type_than_its_operands_stays_in_float() -> None:
    made = line(residual(), device())
    assert "it reads int16, and conv1_out is stored as int8, which mixed_npu does not convert" in str(
        made.topology.float_nodes["sum"].text
    )
    assert honoured(made) and "last" in made.topology.kernel_of
    assert made.agree(made.plan(8), "integer").differing == 0


def test_a_second_signature_for_the_type_is_taken() -> None:
    made = line(residual(), device(Add=[INT16, {"in": ["int8"], "out": ["int8"]}]))
    assert made.topology.float_nodes == {} and honoured(made)
    assert {g.dtype for g in made.topology.groups} == {DType.INT8}


def test_a_result_is_stored_as_its_readers_take_it() -> None:
    """`out` lists what a result may be stored in; the second is taken where only that one is read."""
    made = line(residual(), device(Conv=[{"in": ["int8", "int8"], "out": ["int8", "int16"]}]))
    assert made.topology.group_of["conv1_out"].dtype is DType.INT16
    assert "sum" in made.topology.kernel_of
    # The last convolution takes int8, and the sum is stored as int16.
    assert "it reads int8, and sum_out is stored as int16" in made.topology.float_nodes["last"].text
    assert honoured(made)


def test_moves_take_the_type_that_comes() -> None:
    net = Net()
    y = net.node("MaxPool", net.conv(net.input(None, 3, 6, 6), 3, 4, 1, 1), name="pool", kernel_shape=[2, 2])
    net.output(net.conv(y, 4, 2, 1, 1))
    both = [INT16, {"in": ["int8"], "out": ["int8"]}]
    assert line(net, device(MaxPool=both)).topology.float_nodes == {}
    assert "stored as int8" in line(net, device(MaxPool=[INT16])).topology.float_nodes["pool"].text


def test_two_readers_of_one_real_tensor() -> None:
    net = Net()
    x = net.input(None, 3, 6, 6)
    net.output(net.conv(x, 3, 4, 1, 1), net.node("MaxPool", x, name="pool", kernel_shape=[2, 2]))
    made = line(net, device(MaxPool=[{"in": ["int16"], "out": ["int16"]}]))
    assert honoured(made) and "stored as int8" in made.topology.float_nodes["pool"].text


def test_where_nothing_runs_in_float_the_model_is_refused() -> None:
    data = hardware_data("tensorrt") | {"float_on": "none", "add_inputs": "both", "accumulator": "int32", "fuse": []}
    made = line(residual(), load_hardware(data | {"ops": {"Conv": [INT8], "Add": [INT16]}}))
    with pytest.raises(HardwareError, match="sum: it reads int16, and conv1_out is stored as int8"):
        made.plan(8)


def test_a_tied_weight_of_two_types() -> None:
    net = Net()
    weight = net.floats(4, 4)
    y = net.node("MatMul", net.input(None, 4), weight, name="first")
    net.output(net.node("Gemm", y, weight, name="second"))
    spec = device(
        MatMul=[{"in": ["int8", "int8"], "out": ["int8"], "when": {"operands": "weight"}}],
        Gemm=[{"in": ["int8", "int16"], "out": ["int8"]}],
    )
    made = line(net, spec)
    assert "it reads int16, and" in made.topology.float_nodes["second"].text


@pytest.mark.program
def test_shipped_devices_read_what_they_declare() -> None:
    for path in (CONF / "hardware").glob("*.yaml"):
        made = line(residual(), path.stem)
        assert honoured(made)
        assert not any("does not convert" in reason.text for reason in made.topology.float_nodes.values())
