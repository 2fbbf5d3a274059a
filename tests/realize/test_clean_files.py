"""Written models are clean: no constant without a reader, no name twice, every attribute of a convolution."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

import quantpipe
from quantpipe.app.files import asset
from quantpipe.data import DigitsDataset
from quantpipe.graph.build import GraphBuilder
from quantpipe.intake.rewrites.explicit import write_out
from tests.ops.line import Net

QUICK: dict[str, Any] = {"agreement_samples": 4, "layer_samples": 4, "latency_runs": 1, "baseline": "none"}
NAMES = ("kernel_shape", "strides", "pads", "dilations", "group")


def faults(model: onnx.ModelProto) -> Iterator[str]:
    """What is not clean in a model's main graph and the graphs inside its nodes."""
    graphs = [model.graph]
    for graph in graphs:
        graphs += [a.g for node in graph.node for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]
    read = {name for graph in graphs for node in graph.node for name in node.input}
    read |= {port.name for graph in graphs for port in graph.output}
    yield from (f"unused {i.name}" for graph in graphs for i in graph.initializer if i.name not in read)
    for graph in graphs:
        values = [v.name for v in (*graph.input, *graph.initializer)] + [o for n in graph.node for o in n.output if o]
        names = Counter(node.name for node in graph.node)
        yield from (f"value {name} twice" for name, count in Counter(values).items() if count > 1)
        yield from (f"node {name!r} twice, or nameless" for name, count in names.items() if count > 1 or not name)
        for node in graph.node:
            known = {a.name for a in node.attribute}
            if "Conv" in node.op_type and node.domain == "":
                yield from (f"{node.name} has no {name}" for name in NAMES if name not in known)


def without_attributes() -> onnx.ModelProto:
    """Convolutions whose attributes are all defaults, and none of them written."""
    net = Net(seed=5)
    x = net.input(None, 3, 8, 8)
    a = net.node("Relu", net.conv(x, 3, 4, 3, 3))
    net.output(net.dense(net.node("Flatten", net.node("GlobalAveragePool", net.conv(a, 4, 4, 1, 1))), 4, 3))
    proto = net.proto()
    for node in proto.graph.node:
        if node.op_type == "Conv":
            del node.attribute[:]
    return proto


CASES = [
    ("digits", "ort_cpu", ["qdq", "integer", "qoperator"]),
    ("plain", "ort_cpu", ["qdq", "integer", "qoperator", "qonnx"]),
    ("plain", "vta", ["integer", "qdq"]),
    ("plain", "fbgemm", ["qoperator", "integer"]),
    ("digits_vit", "ort_cpu", ["qdq"]),
    ("digits_vit", "fpga_shift", ["integer"]),
]


@pytest.mark.program
@pytest.mark.parametrize(("name", "device", "forms"), CASES)
def test_files_are_clean_and_load_without_a_word(name: str, device: str, forms: list[str], tmp_path: Path) -> None:
    images = np.random.default_rng(0).random((150, 3, 8, 8), np.float32)
    model, data = (without_attributes(), images) if name == "plain" else (asset(f"{name}.onnx"), DigitsDataset())
    run = quantpipe.quantize(model, data, device, realize=forms, verify="warn", evaluate=QUICK, folder=tmp_path / "run")
    files = sorted((run.folder / "realize").glob("*.onnx"))
    assert len(files) == len(forms)
    found = {file.name: list(faults(onnx.load(file))) for file in files}
    assert found == {file.name: [] for file in files}
    for file in files:
        if "qonnx" not in file.name:  # its ops are of another runtime
            code = f"import onnxruntime as ort; ort.InferenceSession({str(file)!r})"
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
            assert (done.returncode, done.stderr, done.stdout) == (0, "", "")


def test_a_constant_without_reader_is_left_out() -> None:
    builder = GraphBuilder("g", 17, 8)
    x = builder.input("x", "float32", [1])
    builder.constant("lost", np.ones(1, np.float32))
    y = builder.op("Add", x, builder.constant("one", np.ones(1, np.float32)), name="y")
    y.type, y.shape = x.type, x.shape
    assert list(builder.build([y]).graph.initializers) == ["one"]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, {"kernel_shape": [3, 2], "strides": [1, 1], "pads": [0] * 4, "dilations": [1, 1], "group": 1}),
        ({"strides": [2, 2], "pads": [1, 1, 0, 0]}, {"strides": [2, 2], "pads": [1, 1, 0, 0], "dilations": [1, 1]}),
        ({"auto_pad": "SAME_UPPER"}, {"kernel_shape": [3, 2], "strides": [1, 1], "pads": [1, 0, 1, 1]}),
        ({"auto_pad": "SAME_LOWER", "strides": [3, 3]}, {"kernel_shape": [3, 2], "pads": [1, 0, 0, 0]}),
        ({"auto_pad": "VALID"}, {"pads": [0, 0, 0, 0]}),
    ],
)
def test_what_is_given_stays_and_the_rest_is_written_out(given: dict[str, Any], wanted: dict[str, Any]) -> None:
    node = onnx.helper.make_node("Conv", ["x", "w"], ["y"], name="conv", **given)
    weight = onnx.numpy_helper.from_array(np.ones((4, 3, 3, 2), np.float32), "w")
    port = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 3, 8, 8])
    out = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    model = ir.from_proto(onnx.helper.make_model(onnx.helper.make_graph([node], "g", [port], [out], [weight])))
    write_out(model)
    (made,) = ir.to_proto(model).graph.node
    found = {a.name: onnx.helper.get_attribute_value(a) for a in made.attribute}
    assert {name: found[name] for name in wanted} == wanted
    assert "auto_pad" not in found


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize(("stride", "size"), [(1, 7), (2, 7), (2, 8), (3, 9)])
def test_pads_are_those_of_the_runtime(mode: str, stride: int, size: int) -> None:
    """onnxruntime computes the same from pads as from auto_pad; free sizes keep auto_pad where a stride needs them."""
    node = onnx.helper.make_node("Conv", ["x", "w"], ["y"], name="conv", auto_pad=mode, strides=[stride] * 2)
    rng = np.random.default_rng(0)
    weight = onnx.numpy_helper.from_array(rng.standard_normal((2, 3, 3, 2)).astype(np.float32), "w")
    x = rng.standard_normal((1, 3, size, size)).astype(np.float32)
    found = []
    for sizes in ([size, size], ["h", "v"]):
        port = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 3, *sizes])
        out = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
        graph = onnx.helper.make_graph([node], "g", [port], [out], [weight])
        given = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
        model = ir.from_proto(given)
        write_out(model)
        made = ir.to_proto(model)
        kept = "auto_pad" in {a.name for a in made.graph.node[0].attribute}
        assert kept is (stride > 1 and mode != "VALID" and sizes == ["h", "v"])
        found += [ort.InferenceSession(m.SerializeToString()).run(None, {"x": x})[0] for m in (given, made)]
    assert all(np.array_equal(one, found[0]) for one in found)
