"""Realized models under the session option that asks onnxruntime for kernels which add products in 32 bits, as x86 CPUs
without VNNI need it: every form of every target has to load with it, and to give the same numbers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from quantpipe.artifacts import Origin
from quantpipe.errors import HardwareError
from quantpipe.graph.build import GraphBuilder
from quantpipe.graph.execute import pairs_saturate
from quantpipe.graph.external_weights import file_array, layout, packed
from quantpipe.graph.io import model_bytes
from quantpipe.graph.session_options import runs_as_declared
from quantpipe.graph.store import write_model
from quantpipe.lowering import Rendered
from quantpipe.realize import BACKENDS
from tests.ops.line import CONF, Array, Line, Net, line, load

TARGETS = sorted(path.stem for path in (CONF / "hardware").glob("*.yaml"))


def tied() -> Net:
    """A convolution, and two dense layers that multiply by the same weight."""
    net = Net()
    y = net.conv(net.input(None, 3, 6, 6), 3, 8, 3, 3)
    y = net.node("Flatten", net.node("GlobalAveragePool", net.node("Relu", y)))
    weight = net.floats(8, 8)
    net.output(net.node("MatMul", net.node("MatMul", y, weight), weight))
    return net


def outputs(made: Line, data: bytes | str, exact: bool) -> list[Array]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if exact:
        options.add_session_config_entry("session.x64quantprecision", "1")
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return session.run(None, next(iter(made.samples.batches(4))).inputs)


def realized(made: Line, form: str) -> Rendered | None:
    try:
        return made.realize(made.plan(8), form)
    except HardwareError:
        return None


def test_every_form_of_every_target_loads_and_is_the_same() -> None:
    graph = load(tied())
    seen = set()
    for target in TARGETS:
        made = line(graph, target)
        forms = BACKENDS if made.spec.requantize.kind == "float_multiplier" else ("integer",)
        for form in forms:
            written = realized(made, form)
            if written is None:
                continue
            if form != "integer" and all(g.dtype.signed for g in made.topology.groups):
                continue  # onnxruntime has no dense kernel of int8 data by such weights; docs/hardware.md says so
            seen.add((target, form))
            data = model_bytes(written.model)
            found = zip(outputs(made, data, False), outputs(made, data, True), strict=True)
            for plain, exact in found if not pairs_saturate() or runs_as_declared(written.model) else ():
                np.testing.assert_array_equal(plain, exact, err_msg=f"{target} {form}")
    assert {("mixed_npu", "integer"), ("ort_cpu", "qdq"), ("ort_cpu", "qoperator")} <= seen
    assert {target for target, _ in seen} == set(TARGETS)


@pytest.mark.parametrize(("target", "form"), [("ort_cpu", "qdq"), ("ort_cpu", "integer"), ("int4_weights", "qdq")])
def test_a_weight_of_several_readers_stands_once_in_the_file(target: str, form: str) -> None:
    made = line(tied(), target)
    model = onnx.load_from_string(model_bytes(made.realize(made.plan(8), form).model))
    onnx.checker.check_model(model)
    reshapes = {n.output[0]: n.input[0] for n in model.graph.node if n.op_type == "Reshape" and "/reader" in n.name}
    assert reshapes
    readers = Counter(name for node in model.graph.node if node.name not in reshapes for name in node.input)
    assert all(readers[name] == readers[origin] == 1 for name, origin in reshapes.items())


def test_weights_in_files_get_a_second_name_at_the_same_place(tmp_path: Path) -> None:
    weight = file_array((8, 8), np.int8)
    weight[...] = np.arange(64).reshape(8, 8) - 30
    builder = GraphBuilder("tied", 17, 8)
    x, w = builder.input("x", "uint8", [1, 8]), builder.constant("w", weight)
    sums = [builder.op("MatMulInteger", x, w, name=f"sum{number}") for number in range(3)]
    for value in sums:
        value.type, value.shape = ir.TensorType(ir.DataType.INT32), ir.Shape([1, 8])
    model = builder.build(sums)
    write_model(tmp_path / "model.onnx", model, Origin("model", {}, {}))
    stored = onnx.load(tmp_path / "model.onnx", load_external_data=False).graph.initializer
    places = {t.name: {e.key: e.value for e in t.external_data} for t in stored}
    assert list(places) == ["w", "w/reader1", "w/reader2"] and len({str(p) for p in places.values()}) == 1
    (data,) = tmp_path.glob("*.data")
    assert data.stat().st_size == 4096
    options = ort.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = ort.InferenceSession(str(tmp_path / "model.onnx"), options, providers=["CPUExecutionProvider"])
    given = np.arange(200, 208, dtype=np.uint8).reshape(1, 8)
    for found in session.run(None, {"x": given}):
        np.testing.assert_array_equal(found, given.astype(np.int32) @ weight.astype(np.int32))


def test_a_tensor_under_two_names_is_laid_out_once() -> None:
    one, other = ir.tensor(np.arange(6, dtype=np.int8)), ir.tensor(np.arange(3, dtype=np.int8))
    held = {"a": one, "b": one, "c": other}
    spans = layout(held)
    data = b"".join(bytes(piece) for piece in packed(held))
    assert spans["a"] == spans["b"] == (0, 6)
    offset, length = spans["c"]
    assert data[offset : offset + length] == bytes([0, 1, 2])
