"""Devices whose layers give real numbers: what the next layer reads is quantized between them, in Q/DQ as well."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import quantpipe
from quantpipe.errors import HardwareError
from quantpipe.evaluate.roundoff import sum_tolerance
from tests.ops.line import Net, line


def net() -> Net:
    made = Net(4)
    first = made.conv(made.input(None, 3, 6, 6), 3, 5, 3, 3, name="first")
    made.output(made.conv(first, 5, 4, 3, 3, pads=[1, 1, 1, 1], name="second"))
    return made


@pytest.mark.parametrize("spec", ["academic", "ascend_acl"])
def test_q_dq_alone_is_refused(spec: str) -> None:
    made = line(net(), spec)
    with pytest.raises(HardwareError, match="passes accumulators from op to op"):
        made.realize(made.plan(), "qdq")


@pytest.mark.sliced(2)
@pytest.mark.parametrize("spec", ["academic", "ascend_acl"])
def test_q_dq_beside_integers_quantizes_between_layers(spec: str, tmp_path: Path) -> None:
    """Without it, the second layer multiplied real numbers: four in ten elements were others."""
    samples = np.random.default_rng(0).standard_normal((64, 3, 6, 6)).astype(np.float32)
    folder = tmp_path / "run"
    quantpipe.quantize(net().proto(), samples, spec, folder=folder, realize=["integer", "qdq"], recover="none")
    nodes = onnx.load(folder / "realize" / "model.qdq.onnx").graph.node
    (second,) = (n for n in nodes if n.name == "second")
    makers = {n.output[0]: n for n in nodes}
    assert [makers[i].op_type for i in second.input[:2]] == ["DequantizeLinear"] * 2
    assert makers[makers[second.input[0]].input[0]].op_type == "QuantizeLinear"


def test_an_input_may_have_the_name_of_an_operand() -> None:
    """Rounding differences of real results are bounded by a graph of magnitudes, with input names of its own."""
    made = Net(4)
    made.output(made.conv(made.input(None, 3, 6, 6, name="weight"), 3, 5, 3, 3, name="first"))
    problem = line(made, "academic")
    (kernel,) = problem.topology.kernels
    operands = {"weight": np.ones((2, 3, 6, 6), np.int32)}
    found = sum_tolerance(problem.graph, problem.topology, problem.plan(), kernel, operands=operands)
    assert found is not None and found.shape == (2, 5, 4, 4) and np.all(found > 0)
