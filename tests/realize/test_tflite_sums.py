"""Means and sums over axes in .tflite files: LiteRT's kernels against the plan, element by element."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantpipe.graph.execute import Session
from quantpipe.realize.tflite.run import LiteRTKernels, TfliteModel, TfliteRunner
from quantpipe.realize.tflite.write import write_model
from quantpipe.types import Program
from tests.ops.line import Line, Net, line
from tests.realize.test_tflite import differing
from tests.realize.test_xnnpack import row_of

pytestmark = pytest.mark.usefixtures("litert_here")


PLACES: list[tuple[tuple[int, ...], list[int]]] = [
    ((5, 7), [1]), ((5, 7), [-1]), ((5, 7), [1, 2]), ((4, 6, 5), [1]), ((4, 6, 5), [2, 3]), ((4, 6, 5), [1, 2, 3]),
    ((9,), [1]), ((3, 4, 5, 2), [1, 3]), ((100,), [1]), ((3, 640), [2]),
]  # fmt: skip
"""Shapes of a sample, and the axes that are taken together."""


def reduction(device: str, op: str, shape: tuple[int, ...], axes: list[int], keepdims: int) -> Line:
    """A product, whose result is averaged or added up."""
    wide = device == "tflite_16x8"
    net = Net(seed=3, opset=21 if wide else 17)
    x = net.node("MatMul", net.input(None, *shape), net.floats(shape[-1], shape[-1], scale=0.3), name="first")
    if op == "ReduceSum" or wide:
        net.output(net.node(op, x, net.constant(np.array(axes, np.int64)), keepdims=keepdims, name="mid"))
    else:
        net.output(net.node(op, x, axes=axes, keepdims=keepdims, name="mid"))
    return line(net, device)


@pytest.mark.sliced(36)
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("place", range(len(PLACES)))
@pytest.mark.parametrize(
    ("device", "op"),
    [
        ("tflite_int8", "ReduceMean"),
        ("tflite_16x8", "ReduceMean"),
        ("tflite_xnnpack", "ReduceMean"),
        ("tflite_xnnpack", "ReduceSum"),
    ],
)
def test_means_and_sums_are_those_of_the_kernels(
    device: str, op: str, place: int, keepdims: int, tmp_path: Path
) -> None:
    shape, axes = PLACES[place]
    made = reduction(device, op, shape, axes, keepdims)
    assert made.topology.kernel_of["mid"]
    for plan in (made.plan(16 if device == "tflite_16x8" else 8, seed=1), made.ties()):
        if device == "tflite_xnnpack":
            found = row_of(made, plan, tmp_path)
            assert found["elements"] and found["differing"] == 0, found["first_tensor"]
        else:
            count, _ = differing(made, plan)
            assert count.elements and count.differing == 0, f"{count.differing} of {count.elements}, {count.first}"


@pytest.mark.parametrize("count", [7, 8, 640])
def test_a_multiplier_is_shared_as_by_mean(count: int) -> None:
    """⌊M · 2^b / n⌋ with b = ⌊log2 n⌋, and b shifts more (TensorFlow's QuantizedMeanOrSum); the rest is dropped."""
    made = reduction("tflite_int8", "ReduceMean", (3, count), [2], 1)
    plan = made.ties()
    kernel = plan.kernels["mid"]
    assert isinstance(kernel, Program) and kernel.output is not None and kernel.output.fixed is not None
    own, result = (float(plan.quantizers[t].scale) for t in ("first_out", "mid_out"))
    fraction, exponent = np.frexp(own / result)
    assert fraction == 0.5, "scales of ties are powers of two"
    bits = count.bit_length() - 1
    assert int(kernel.output.fixed.multiplier) == (1 << (30 + bits)) // count
    assert int(kernel.output.fixed.shift) == exponent - bits


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize(("shape", "axes"), [((4, 6, 5), [1, 2]), ((5, 7), [1])])
def test_sums_that_stay_in_float_are_written_in_float(shape: Any, axes: list[int], keepdims: int) -> None:
    """LiteRT's reference kernel of SUM does not rescale, so the device has none in integers."""
    made = reduction("tflite_int8", "ReduceSum", shape, axes, keepdims)
    assert "mid" in made.topology.float_nodes
    plan = made.plan(8, seed=1)
    content = write_model(made.graph, made.topology, plan).content
    batch = next(iter(made.samples.batches(4))).inputs
    found = TfliteRunner(TfliteModel(content, "memory"), LiteRTKernels.REFERENCE).outputs(batch)["mid_out"]
    wanted = Session(made.realize(plan, "integer").model).run(batch)["mid_out"]
    assert found.shape == wanted.shape and np.allclose(found, wanted, rtol=1e-6, atol=1e-5)
