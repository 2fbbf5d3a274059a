"""Layers in .tflite files whose forms LiteRT's kernels treat apart: weights of 4 bits, groups, 16-bit reductions."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from quantpipe.errors import HardwareError
from quantpipe.graph.execute import Session
from quantpipe.intake.tflite import litert
from quantpipe.realize.tflite.run import LiteRTKernels, TfliteModel, TfliteRunner
from quantpipe.realize.tflite.write import write_model
from quantpipe.types import DType, HardwareSpec
from tests.ops.line import Net, hardware, hardware_data, line
from tests.realize.test_tflite import DEVICES, differing

pytestmark = pytest.mark.usefixtures("litert_here")


def four_bits(device: str) -> HardwareSpec:
    """A device whose weights have 4 bits."""
    data = copy.deepcopy(hardware_data(device))
    for op in ("Conv", "ConvTranspose", "Gemm"):
        data["ops"][op] = [row | {"in": [row["in"][0], "int4"]} for row in data["ops"][op] if row["in"] != ["float32"]]
    return hardware(device, ops=data["ops"], weights={**data["weights"], "bits": 4})


PACKED = {"tflite_int8": {"conv", "depthwise", "grouped", "dense"}, "tflite_16x8": {"conv", "grouped", "dense"}}
"""Layers of which LiteRT has a kernel for int4 weights."""


def types_of(content: bytes) -> set[str]:
    """The types of a file's tensors, by the names of its schema."""
    schema = litert.schema()
    names = {v: k for k, v in vars(schema.TensorType).items() if isinstance(v, int)}
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(content))
    return {names[t.type] for t in model.subgraphs[0].tensors}


LAYERS: dict[str, Callable[[Net, str], str]] = {
    "conv": lambda net, x: net.conv(x, 4, 6, 3, 3, name="mid"),
    "depthwise": lambda net, x: net.conv(x, 4, 4, 3, 3, group=4, name="mid"),
    "grouped": lambda net, x: net.conv(x, 4, 6, 3, 3, group=2, name="mid"),
    "dense": lambda net, x: net.dense(net.node("Flatten", x), 256, 7, name="mid"),
    "transposed": lambda net, x: net.node("ConvTranspose", x, net.floats(4, 6, 3, 3, scale=0.3), name="mid"),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layer", LAYERS)
def test_layers_with_weights_of_four_bits(layer: str, device: str) -> None:
    """Two to the byte where LiteRT has a kernel for that, else in bytes; the integers are the same."""
    net = Net(seed=2)
    net.output(LAYERS[layer](net, net.input(None, 4, 8, 8)))
    made = line(net, four_bits(device))
    bits = 8 if device == "tflite_int8" else 16
    for plan in (made.plan(bits), made.ties(bits)):
        assert {w.dtype for w in plan.weights.values()} == {DType.INT4}
        count, written = differing(made, plan)
        assert count.elements and count.differing == 0
        assert ("INT4" in types_of(written.content)) == (layer in PACKED[device])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("channels", "results", "group", "stride"), [(8, 8, 4, 1), (8, 16, 4, 1), (12, 12, 3, 2)])
def test_groups_of_several_channels(channels: int, results: int, group: int, stride: int, device: str) -> None:
    net = Net(seed=3)
    x = net.input(None, channels, 7, 7)
    net.output(net.conv(x, channels, results, 3, 3, group=group, strides=[stride] * 2, pads=[1] * 4))
    made = line(net, device)
    for plan in (made.plan(DEVICES[device], seed=5), made.ties()):
        count, _ = differing(made, plan)
        assert count.elements and count.differing == 0


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
def test_greatest_and_least_of_sixteen_bits(op: str) -> None:
    net = Net(seed=2, opset=18)
    x = net.conv(net.input(None, 3, 8, 8), 3, 4, 3, 3)
    net.output(net.node(op, x, net.constant(np.asarray([2, 3], np.int64)), name="mid"))
    made = line(net, "tflite_16x8")
    for plan in (made.plan((16, 13, 8, 4), seed=5), made.ties(16)):
        count, _ = differing(made, plan)
        assert count.elements and count.differing == 0


@pytest.mark.parametrize(("axis", "read"), [(3, False), (1, False), (2, True)])
def test_the_largest_elements_keep_their_scale(axis: int, read: bool) -> None:
    """A TopK whose positions are read is two: the values in integers, the positions by a node in float."""
    net = Net(seed=2)
    x = net.conv(net.input(None, 3, 8, 8), 3, 4, 3, 3)
    values = net.top(x, 2, axis=axis, read=read)
    net.output(net.conv(values, 2 if axis == 1 else 4, 5, 1, 1))
    made = line(net, "tflite_int8")
    top = [n for n in made.graph.nodes if n.op == "TopK"]
    assert len(top) == (2 if read else 1)
    kept = [made.topology.kernel_of[n.name] for n in top if n.name in made.topology.kernel_of]
    assert [k.output for k in kept] == [values]
    plan = made.plan((8, 7, 5), seed=1)
    assert plan.quantizers[values].scale == plan.quantizers[kept[0].operands[0].tensor].scale
    assert made.agree(plan, "integer", everywhere=True).differing == 0
    if not read:
        count, _ = differing(made, plan)
        assert count.elements and count.differing == 0


@pytest.mark.parametrize("changed", [{"largest": 0}, {"sorted": 0}], ids=["the smallest", "in any order"])
def test_what_topk_v2_does_not_do(changed: dict[str, Any]) -> None:
    net = Net(seed=2)
    net.output(net.conv(net.top(net.conv(net.input(None, 3, 8, 8), 3, 4, 3, 3), 2, axis=3, **changed), 4, 5, 1, 1))
    made = line(net, "tflite_int8")
    with pytest.raises(HardwareError, match=r"legal is the largest of a fixed number|no TopK in float"):
        differing(made, made.plan())


FLOAT_POOLS: dict[str, dict[str, Any]] = {
    "same": {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [0, 0, 1, 1]},
    "around": {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
    "wide": {"kernel_shape": [4, 3], "strides": [1, 2], "pads": [2, 1, 1, 0]},
    "ceil": {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
    "upper": {"kernel_shape": [3, 2], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
    "none": {"kernel_shape": [2, 2], "strides": [2, 2]},
}


@pytest.mark.parametrize("name", FLOAT_POOLS)
@pytest.mark.parametrize("op", ["AveragePool", "MaxPool", "GlobalAveragePool"])
def test_pools_in_float(op: str, name: str) -> None:
    """Beside onnxruntime, which counts the elements within the map alone, too."""
    net = Net(seed=4)
    hidden = net.conv(net.input(None, 3, 8, 8), 3, 4, 3, 3, pads=[1] * 4)
    pooled = net.node(op, hidden, name="mid", **({} if op == "GlobalAveragePool" else FLOAT_POOLS[name]))
    net.output(pooled)
    made = line(net, "tflite_int8", float_nodes=["mid"])
    assert "mid" in made.topology.float_nodes
    plan = made.plan()
    written = write_model(made.graph, made.topology, plan, whole=False)
    runner = TfliteRunner(TfliteModel(written.content, "memory"), LiteRTKernels.REFERENCE)
    realized = Session(made.realize(plan, "integer").model)
    for batch in made.samples.batches(4):
        found, wanted = runner.outputs(batch.inputs)[pooled], realized.run(batch.inputs)[pooled]
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)
