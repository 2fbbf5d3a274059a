"""The QONNX form, run by the package `qonnx`: every stored tensor beside the simulated model, op by op."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

import quantpipe
from quantpipe.errors import HardwareError
from quantpipe.evaluate.compared_models import SimulatedModel
from quantpipe.evaluate.counting import Counter
from quantpipe.graph.execute import Session
from quantpipe.intake.quantized.restore import runnable
from quantpipe.lowering import Rendered
from quantpipe.realize.qonnx import arithmetic
from quantpipe.realize.qonnx.nodes import DOMAIN
from quantpipe.realize.qonnx.qonnx_form import QonnxForm
from quantpipe.types import Accumulate, QuantPlan
from tests.ops.cases import CASES
from tests.ops.line import Line, Net, hardware, line
from tests.ops.test_every_op import line_of
from tests.realize.executed import MADE


@pytest.fixture(scope="module", autouse=True)
def _qonnx() -> None:
    why = QonnxForm().unavailable()
    if why is not None:
        assert os.environ.get("CI") != "true", why
        pytest.skip(why)


def compared(made: Line, plan: QuantPlan, folder: Path) -> tuple[Counter, str | None]:
    """Differences of a file that is run by the package, and why there may be some."""
    form = QonnxForm()
    written = form.write(made.graph, made.topology, plan, MADE)
    (folder / form.file).write_bytes(written.files[form.file])
    runner = form.open(folder, made.graph, made.topology, plan)
    simulation = made.simulate(plan)
    held = Rendered(simulation.rendered.model, {t: t for t in runner.tensors})
    simulated = SimulatedModel(made.graph, made.topology, plan, simulation, realized=held)
    count = Counter()
    for batch in made.samples.batches(made.graph.fixed_batch or 4):
        found = runner.run(batch.inputs)
        simulated.start(batch.inputs)
        expected = simulated.run(found)
        for tensor in (*simulated.watched.integers, *simulated.watched.entries):
            count.integers(tensor, simulated.integers(expected, tensor), simulated.centred(tensor, found[tensor]))
    return count, written.inexact


def test_bounds_of_channels_are_kept(tmp_path: Path) -> None:
    """As channel scaling leaves them where a clamp follows: the file is exact, and another bound is seen."""
    net = Net(seed=3)
    net.output(net.conv(net.node("Relu", net.conv(net.input(None, 3, 6, 6), 3, 8, 3, 3)), 8, 4, 1, 1))
    made = line(net, "vta")
    plan = made.plan()
    node, kernel = next((n, k) for n, k in plan.kernels.items() if isinstance(k, Accumulate))
    assert kernel.output is not None

    def bounded(most: int) -> QuantPlan:
        ends = np.arange(8, dtype=np.int64), np.full(8, most, np.int64) - np.arange(8)
        output = replace(kernel.output, by_channel=ends)
        return replace(plan, kernels={**plan.kernels, node: replace(kernel, output=output)})

    count, why = compared(made, bounded(40), tmp_path)
    assert why is None and count.elements and count.differing == 0, count.first
    other = QonnxForm().write(made.graph, made.topology, bounded(41), MADE)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / QonnxForm().file).write_bytes(other.files[QonnxForm().file])
    batch = next(iter(made.samples.batches(4)))
    found = [
        QonnxForm().open(folder, made.graph, made.topology, plan).run(batch.inputs)
        for folder in (tmp_path, tmp_path / "other")
    ]
    assert any(not np.array_equal(found[0][t], found[1][t]) for t in found[0])


TARGETS = ("vta", "ort_cpu", "fpga_shift", "vitis_dpu", "hago_sample", "tflite_int8")
BINARY = ("vta", "vitis_dpu")
QUICK: dict[str, Any] = {
    "evaluate": {"agreement_samples": 4, "layer_samples": 2, "latency_runs": 1, "baseline": "none"}
}


@pytest.mark.sliced(90)
@pytest.mark.parametrize("name", CASES)
def test_what_is_called_exact_is_exact(name: str, tmp_path: Path) -> None:
    """On one device each, with scales at which many accumulators are halves."""
    target = TARGETS[list(CASES).index(name) % len(TARGETS)]
    made = line_of(name, target, "auto")
    if not made.topology.kernels:
        return
    count, why = compared(made, made.ties((8, 7, 5, 4), seed=5), tmp_path)
    assert why is not None or count.differing == 0, f"{count.differing} of {count.elements}, {count.first}"
    assert why is None or target not in BINARY


def small(seed: int = 3) -> Net:
    """Convolutions, a residual sum, pools, a dense layer."""
    net = Net(seed=seed)
    x = net.input(None, 2, 8, 8)
    a = net.node("Relu", net.conv(x, 2, 4, 3, 3, pads=[1, 1, 1, 1], strides=[2, 2]))
    y = net.node("Relu", net.node("Add", net.conv(a, 4, 4, 3, 3, pads=[1, 1, 1, 1], bias=False), a))
    net.output(net.dense(net.node("Flatten", net.node("GlobalAveragePool", y)), 4, 3))
    return net


@pytest.mark.parametrize(
    ("rounding", "node"), [("half_up", "Quant"), ("half_even", "Quant"), ("half_away", "Quant"), ("floor", "Trunc")]
)
def test_each_rounding_of_a_device_is_said(rounding: str, node: str, tmp_path: Path) -> None:
    made = line(small(), hardware("vta", requantize={"kind": "shift", "rounding": rounding}))
    count, why = compared(made, made.ties((8, 6)), tmp_path)
    assert why is None and count.elements and count.differing == 0, count.first
    proto = onnx.load(tmp_path / "model.qonnx.onnx")
    assert any(n.op_type == node and n.domain == DOMAIN for n in proto.graph.node if "_quant" not in n.output[0])


def test_halves_that_go_to_even_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: without the quarter of a step, halves are not rounded up."""
    own = arithmetic.narrowing_of
    monkeypatch.setattr(
        "quantpipe.realize.qonnx.dialect.narrowing_of",
        lambda *given: arithmetic.QonnxNarrowing(reason=own(*given).reason),
    )
    made = line(small(), "vta")
    count, _ = compared(made, made.ties(), tmp_path)
    assert count.differing and count.max_lsb == 1


def test_weights_of_two_values_are_signs(tmp_path: Path) -> None:
    net = Net(seed=1)
    x = net.input(None, 6)
    hidden = net.node("Relu", net.node("Gemm", x, net.signs(5, 6, scale=0.4), transB=1))
    net.output(net.dense(hidden, 5, 3))
    made = line(net, "mixed_npu", min_bits=2)
    count, _ = compared(made, made.plan(2), tmp_path)
    proto = onnx.load(tmp_path / "model.qonnx.onnx")
    assert [n.op_type for n in proto.graph.node].count("BipolarQuant") == 1
    assert count.elements


def trunc(version: int, rounding: str, signed: int) -> onnx.ModelProto:
    given = {"s": 0.25, "z": 0.0, "wide": 9.0, **({"coarse": 2.0} if version == 2 else {}), "bits": 6.0}
    node = helper.make_node(
        "Trunc", ["x", *given], ["y"], name="cut", domain=DOMAIN, rounding_mode=rounding,
        **({"signed": signed, "narrow": 0} if version == 2 else {}),
    )  # fmt: skip
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [64]) for n in ("x", "y")]
    constants = [helper.make_tensor(n, TensorProto.FLOAT, [], [v]) for n, v in given.items()]
    graph = helper.make_graph([node], "g", ports[:1], ports[1:], constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.sliced(2)
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("rounding", ["FLOOR", "ROUND"])
def test_trunc_is_read_as_the_package_computes_it(version: int, rounding: str) -> None:
    from qonnx.core.modelwrapper import ModelWrapper
    from qonnx.core.onnx_exec import execute_onnx

    model = trunc(version, rounding, 1)
    x = (np.arange(64) - 31).astype(np.float32) * 0.25
    wanted = execute_onnx(ModelWrapper(model), {"x": x})["y"]
    found = Session(runnable(ir.from_proto(model))).run({"x": x})["y"]
    assert np.array_equal(found, wanted)


@pytest.mark.grid
def test_the_file_comes_back_with_the_same_integers(tmp_path: Path) -> None:
    """What was written is read again: scales and integer weights are kept, and the same integers follow."""
    net = Net(seed=4)
    x = net.input(None, 2, 8, 8)
    a = net.node("Relu", net.conv(x, 2, 4, 3, 3, pads=[1, 1, 1, 1]))
    b = net.node("Relu", net.conv(net.node("MaxPool", a, kernel_shape=[2, 2], strides=[2, 2]), 4, 4, 3, 3))
    net.output(net.dense(net.node("Flatten", b), 16, 3))
    rng = np.random.default_rng(0)
    data = (rng.standard_normal((64, 2, 8, 8)).astype(np.float32), rng.integers(0, 3, 64))
    first = quantpipe.quantize(net.proto(), data, "vta", realize=["integer", "qonnx"], folder=tmp_path / "a", **QUICK)
    row = first.report["forms"][1]
    assert row["form"] == "qonnx" and row["exact"] and row["differing"] == 0 and row["facts"]["Quant"]
    written = tmp_path / "a" / "realize" / "model.qonnx.onnx"
    again = quantpipe.quantize(str(written), data, "vta", folder=tmp_path / "b", **QUICK)
    assert again.report["imported"]["forms"] == ["QONNX"]
    # A bias with a quarter of a step in it is a real number: integer kernels of the runtime would round it off.
    compared = again.report["imported"]["compared"]
    assert compared["elements"] > 1000 and compared["differing"] == 0
    one, two = (sorted(w.values.tobytes() for w in r.plan.weights.values()) for r in (first, again))
    assert one == two
    assert {float(q.scale) for q in first.plan.quantizers.values()} == {
        float(q.scale) for q in again.plan.quantizers.values()
    }
    outputs = [Session(ir.load(r.model_path)).run({"x": data[0][:8]}) for r in (first, again)]
    assert all(np.array_equal(outputs[0][k], outputs[1][k]) for k in outputs[0])


@pytest.mark.program
def test_alone_it_is_refused_where_it_is_not_exact(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = (rng.standard_normal((64, 2, 8, 8)).astype(np.float32), rng.integers(0, 3, 64))
    with pytest.raises(HardwareError, match=r"realize=\[integer,qonnx\]"):
        quantpipe.quantize(small().proto(), data, "ort_cpu", realize="qonnx", **QUICK)
    found = quantpipe.quantize(small().proto(), data, "ort_cpu", realize="qonnx", verify="warn", **QUICK)
    row = found.report["forms"][1]
    assert not row["exact"] and row["elements"] and row["differing"] is not None and "float" in row["inexact"]
    assert any("model.qonnx.onnx does not compute exactly" in warning for warning in found.warnings)
