"""Programs whose numbers would leave the types that carry them are refused, at the very number where they would."""

from __future__ import annotations

import math

import numpy as np
import pytest

from quantpipe.errors import HardwareError
from quantpipe.plan.programs.softmax import tflite_softmax
from quantpipe.plan.programs.writer import ProgramValue, ProgramWriter
from quantpipe.types import DType, Program
from tests.functions.test_softmax import grid
from tests.ops.line import ArraySamples, Net, line


@pytest.mark.parametrize(("count", "refused"), [(4095, False), (4096, True)])
def test_a_row_whose_sum_leaves_int32_is_refused(count: int, refused: bool) -> None:
    """Each element adds up to 2^19."""
    writer = ProgramWriter("node", [(-128, 127)])
    arguments = writer, grid(DType.INT8, 0.1), grid(DType.INT8, 1 / 256, -128), (1,)
    if refused:
        with pytest.raises(HardwareError, match="a row of 4096 elements is too long for its sums"):
            tflite_softmax(*arguments, count=count)
    else:
        assert tflite_softmax(*arguments, count=count).high == 127


@pytest.mark.sliced(3)
@pytest.mark.parametrize(("hardware", "most"), [("tflite_int8", 4095), ("cmsis_nn", 4095), ("tflite_16x8", 65538)])
@pytest.mark.parametrize("beyond", [0, 1])
def test_rows_that_are_too_long_stay_in_float_by_themselves(hardware: str, most: int, beyond: int) -> None:
    """A text recognizer has a row of classes, 6906 of them: its run ended when it was planned."""
    net, count = Net(seed=2), most + beyond
    net.output(net.node("Softmax", net.dense(net.input(None, 4), 4, count), axis=1, name="classes"))
    made = line(net, hardware)
    if beyond:
        assert str(made.topology.float_nodes["classes"]).startswith(f"a row has {count} elements, and the sums")
    assert isinstance(made.plan(made.spec.activations.bits).kernels.get("classes"), Program) is not bool(beyond)


@pytest.mark.parametrize(("high", "refused"), [((1 << 52) - 1, False), (1 << 52, True)])
def test_roots_of_what_float64_does_not_hold_are_refused(high: int, refused: bool) -> None:
    writer = ProgramWriter("node", [(0, high)])
    if refused:
        with pytest.raises(HardwareError, match=f"it would take the square root of up to {high}"):
            writer.sqrt(ProgramValue(0, 0, high))
    else:
        assert writer.sqrt(ProgramValue(0, 0, high)).high == math.isqrt(high)


@pytest.mark.parametrize(("count", "refused"), [(65538, False), (65539, True)])
def test_a_mean_whose_sum_leaves_int32_is_refused(count: int, refused: bool) -> None:
    """Of 16 bits, what a Relu leaves is 2^15 - 1 at most."""
    net = Net(seed=2, opset=18)
    rows = net.node("Relu", net.input(None, count))
    net.output(net.node("ReduceMean", rows, net.constant(np.asarray([1], np.int64)), name="mean"))
    drawn = np.random.default_rng(0).standard_normal((4, count)).astype(np.float32)
    made = line(net, "npu_w8a16", samples=ArraySamples({"x": drawn}))
    if refused:
        with pytest.raises(HardwareError, match=f"its sums over {count} elements may reach 2147516413, beyond int32"):
            made.plan(16)
    else:
        assert isinstance(made.plan(16).kernels["mean"], Program)
