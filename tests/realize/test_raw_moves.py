"""Ops that move values, on accumulators: a device that hands int32 on declares them so, and onnxruntime has kernels of
each for some types only: simulated and realized integers are equal."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from quantpipe.hardware.load import load_hardware
from quantpipe.types import Form
from tests.ops.line import Line, Net, hardware_data, line

Made = Callable[[Net, str], str]


def nearest(rounding: str, places: str) -> Made:
    def made(net: Net, x: str) -> str:
        scales = net.constant(np.float32([1, 1, 2, 1.6]))
        attributes = {"nearest_mode": rounding, "coordinate_transformation_mode": places}
        return net.node("Resize", x, "", scales, mode="nearest", name="mid", **attributes)

    return made


def node(op: str, *constants: object, **attributes: object) -> Made:
    def made(net: Net, x: str) -> str:
        return net.node(op, x, *(net.constant(c) for c in constants), name="mid", **attributes)

    return made


def pair(op: str, **attributes: object) -> Made:
    def made(net: Net, x: str) -> str:
        other = net.node("Relu", x)
        chosen = [net.constant(np.arange(4) % 2 == 0)] if op == "Where" else []
        return net.node(op, *chosen, x, other, name="mid", **attributes)

    return made


def i(*values: int) -> np.ndarray:  # type: ignore[type-arg]
    return np.array(values, np.int64)


TOGETHER = ("Concat", "Max", "Min", "Where")
MOVES: dict[str, Made] = {
    "MaxPool": node("MaxPool", kernel_shape=[2, 2]),
    "GlobalMaxPool": node("GlobalMaxPool"),
    "Reshape": node("Reshape", i(-1, 4, 2, 8)),
    "Flatten": node("Flatten"),
    "Transpose": node("Transpose", perm=[0, 1, 3, 2]),
    "Slice": node("Slice", i(1), i(3), i(2)),
    "Gather": node("Gather", i(2, 0), axis=2),
    "DepthToSpace": node("DepthToSpace", blocksize=2),
    "SpaceToDepth": node("SpaceToDepth", blocksize=2),
    "Pad": node("Pad", i(0, 0, 1, 1, 0, 0, 1, 0)),
    "Pad with a value": node("Pad", i(0, 0, 1, 1, 0, 0, 1, 0), np.float32(0)),
    "Pad by the edge": node("Pad", i(0, 0, 1, 1, 0, 0, 1, 0), mode="edge"),
    "Expand": node("Expand", i(2, 1, 4, 1, 1)),
    "Tile": node("Tile", i(1, 1, 2, 1)),
    "ReduceMax": node("ReduceMax", axes=[2]),
    "ReduceMin": node("ReduceMin", axes=[2], keepdims=0),
    "Concat": pair("Concat", axis=1),
    **{op: pair(op) for op in TOGETHER if op != "Concat"},
    **{
        f"Resize {rounding} {places}": nearest(rounding, places)
        for rounding in ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
        for places in ("asymmetric", "half_pixel", "align_corners")
    },
}


def moved(name: str, shipped: str, raw: str) -> Line:
    """A convolution whose accumulator is moved, and stored by the next convolution or read as real numbers."""
    net = Net(seed=3)
    front = net.conv(net.input(None, 3, 4, 4), 3, 4, 1, 1, name="front")
    net.output(net.node("Relu", MOVES[name](net, front), name="end"))
    data = hardware_data(shipped)
    for op in {name.split()[0], "Relu"}:
        data["ops"][op] = [{"in": [raw], "out": [raw]}]
    return line(net, load_hardware(data))


@pytest.mark.sliced(24)
@pytest.mark.parametrize(("shipped", "raw"), [("hago_sample", "int32"), ("hago_int16_acc", "int16")])
@pytest.mark.parametrize("name", MOVES)
def test_accumulators_are_moved_as_they_are(name: str, shipped: str, raw: str) -> None:
    made = moved(name, shipped, raw)
    # Accumulators of two tensors have two scales: they are stored first.
    assert made.topology.kernel_of["mid"].form is (Form.QUANTIZED if name in TOGETHER else Form.RAW)
    for plan in (made.plan(5), made.plan((3, 4, 6), seed=1)):
        agreement = made.agree(plan, "integer")
        assert agreement.tensors >= 3
        assert agreement.differing == 0, agreement
