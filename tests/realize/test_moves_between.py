"""What only moves values stands on integers where onnxruntime is the device and fuses nothing around it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from quantpipe.evaluate.agreement import compare_with, session_kinds
from quantpipe.evaluate.compared_models import SimulatedModel
from quantpipe.graph.io import model_proto
from quantpipe.realize import write
from tests.ops.line import Line, Net, line

MODES = {"zeros": {}, "edge": {"mode": "edge"}, "reflect": {"mode": "reflect"}}


def shortcut(mode: str) -> Line:
    """A residual block whose shortcut is padded with channels, as ResNets for CIFAR-10 have it."""
    net = Net()
    x = net.node("Relu", net.conv(net.input(None, 4, 8, 8), 4, 4, 3, 3, name="stem"))
    arm = net.conv(x, 4, 8, 1, 1, name="arm")
    padded = net.node("Pad", x, net.constant(np.int64([0, 2, 0, 0, 0, 2, 0, 0])), name="pad", **MODES[mode])
    net.output(net.node("Relu", net.node("Add", arm, padded, name="sum")))
    return line(net)


@pytest.mark.parametrize("mode", MODES)
def test_a_pad_between_integers_is_one_of_integers(mode: str, tmp_path: Path) -> None:
    made = shortcut(mode)
    plan = made.plan()
    realized = write("qdq", made.graph, made.topology, plan, here=True)
    sides = SimulatedModel(made.graph, made.topology, plan, made.simulate(plan), realized=realized)
    agreed = compare_with(sides, realized, made.samples, session_kinds(realized.model))
    assert agreed.differing == 0 and agreed.elements > 0
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    ort.InferenceSession(model_proto(realized.model).SerializeToString(), options)
    graph = onnx.load(tmp_path / "optimized.onnx").graph
    makers = {name: node.op_type for node in graph.node for name in node.output}
    (pad,) = [node for node in graph.node if node.op_type == "Pad"]
    assert makers[pad.input[0]] != "DequantizeLinear", "it is on integers"
    assert "QLinearAdd" in makers.values(), "and what reads it is fused as before"


def test_other_tools_find_real_ops_between_q_and_dq() -> None:
    made = shortcut("zeros")
    nodes = {n.name: n for n in model_proto(made.realize(made.plan(), "qdq").model).graph.node}
    makers = {name: node.op_type for node in nodes.values() for name in node.output}
    assert makers[nodes["pad"].input[0]] == "DequantizeLinear"
