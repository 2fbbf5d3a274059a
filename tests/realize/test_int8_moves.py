"""An int8 tensor that a float node moves: a default session of onnxruntime loads the file."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

from quantpipe.graph.io import model_bytes
from tests.ops.line import Net, line


def net(opset: int) -> Net:
    made = Net(opset=opset)
    front = made.conv(made.input(None, 3, 8, 8), 3, 6, 3, 3, name="front")
    halves = []
    for number, (first, last) in enumerate(((0, 3), (3, 6))):
        bounds = [made.constant(np.int64([value])) for value in (first, last, 1)]
        halves.append(made.node("Slice", front, *bounds, name=f"half{number}"))
    turned = made.node("Trilu", halves[1], name="turned")
    joined = made.node("Concat", turned, halves[0], name="joined", axis=1)
    made.output(made.node("Trilu", made.node("Trilu", joined, name="again"), name="last"), made.node("Trilu", front))
    return made


@pytest.mark.parametrize(("device", "form"), [("tflite_int8", "integer"), ("tensorrt_both", "qoperator")])
@pytest.mark.parametrize("opset", [17, 21, 23])
def test_a_default_session_loads_what_moves_int8_in_float(device: str, form: str, opset: int) -> None:
    here = line(net(opset), device)
    plan = here.plan(8)
    ort.InferenceSession(model_bytes(here.realize(plan, form).model))
    assert here.agree(plan, form).differing == 0
