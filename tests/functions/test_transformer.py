"""A vision transformer wholly in integers: no node in float, equal integers, accuracy near the float model's."""

from __future__ import annotations

from importlib.resources import files

import numpy as np
import onnx
import pytest

from quantpipe.types import HardwareSpec
from tests.functions.devices import NORMS, device
from tests.ops.line import ArraySamples, Line, hardware, line, load

DEVICES = {
    "tables": lambda: device("fixed", {**NORMS, "Softmax": "tflite"}),
    "fpga_shift": lambda: hardware("fpga_shift"),
    "npu_w8a16": lambda: hardware("npu_w8a16"),
}


def digits(count: int, start: int) -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits

    found = load_digits()
    order = np.random.default_rng(3).permutation(len(found.images))[start : start + count]
    return (found.images[order, None] / 16.0).astype(np.float32), found.target[order]


def vit(spec: HardwareSpec) -> Line:
    model = onnx.load(str(files("quantpipe.assets") / "digits_vit.onnx"))
    samples = ArraySamples({"image": digits(24, 0)[0]})
    return line(load(model, lambda graph: ArraySamples({"image": digits(4, 0)[0]})), spec, samples=samples)


@pytest.mark.grid
@pytest.mark.sliced(3)
@pytest.mark.parametrize("name", DEVICES)
def test_digits_vit_runs_wholly_in_integers(name: str) -> None:
    made = vit(DEVICES[name]())
    assert not made.topology.float_nodes
    bits = 16 if name == "npu_w8a16" else 8
    plan = made.plan(bits)
    found = made.agree(plan, "integer")
    assert found.differing == 0 and found.behind_float == 0 and found.elements > 0, found
    images, labels = digits(300, 1000)
    other = Line(made.graph, made.spec, made.schema, ArraySamples({"image": images}))
    wanted = next(iter(other.outputs().values())).argmax(1) == labels
    realized = next(iter(other.outputs(made.realize(plan, "integer").model).values())).argmax(1) == labels
    assert realized.mean() >= wanted.mean() - 0.01
