"""Sizes of axes that a model computes at run time are computed once, and only where they are equal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from quantpipe.graph.symbolic_axes import axes_of
from quantpipe.intake.rewrites.axes import axes_joined

WIDTH, HEADS = 8, 2
RNG = np.random.default_rng(0)


class Blocks:
    """Blocks as exporters write them: each reads its axes of its own input, makes heads, and joins them again."""

    def __init__(self, *inputs: tuple[str, tuple[object, ...]]) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}
        self.inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs]
        self.outputs: list[onnx.ValueInfoProto] = []

    def constant(self, array: object) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(array)
        return name

    def node(self, op: str, *inputs: str, **attributes: object) -> str:
        name = f"{op.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def size(self, x: str, axis: int) -> str:
        taken = self.node("Gather", self.node("Shape", x), self.constant(np.int64(axis)))
        return self.node("Unsqueeze", taken, self.constant(np.int64([0])))

    def block(self, x: str) -> str:
        y = self.node("MatMul", x, self.constant(RNG.standard_normal((WIDTH, WIDTH)).astype(np.float32)))
        rest = [self.constant(np.int64([n])) for n in (HEADS, WIDTH // HEADS)]
        target = self.node("Concat", self.size(y, 0), self.size(y, 1), *rest, axis=0)
        heads = self.node("Transpose", self.node("Reshape", y, target), perm=[0, 2, 1, 3])
        back = self.node("Transpose", self.node("Softmax", heads, axis=-1), perm=[0, 2, 1, 3])
        whole = self.node("Concat", self.size(back, 0), self.size(back, 1), self.constant(np.int64([WIDTH])), axis=0)
        return self.node("Add", x, self.node("Reshape", back, whole))

    def output(self, name: str, kind: int = TensorProto.FLOAT) -> None:
        self.outputs.append(helper.make_tensor_value_info(name, kind, None))

    def model(self) -> onnx.ModelProto:
        held = [numpy_helper.from_array(a, n) for n, a in self.constants.items()]
        graph = helper.make_graph(self.nodes, "blocks", self.inputs, self.outputs, held)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def joined(model: onnx.ModelProto) -> onnx.ModelProto:
    return ir.to_proto(axes_joined(ir.from_proto(model), axes_of))


def counts(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


def run(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    found: list[np.ndarray] = ort.InferenceSession(model.SerializeToString()).run(None, dict(feeds))
    return found


def rows(*shape: int) -> np.ndarray:
    return RNG.standard_normal((*shape, WIDTH)).astype(np.float32)


def test_each_size_is_read_once_however_many_blocks_there_are() -> None:
    net = Blocks(("x", ("N", "T", WIDTH)))
    net.output(net.block(net.block(net.block("x"))))
    model = net.model()
    found = joined(model)
    assert counts(model)["Shape"] == 12
    assert {op: counts(found)[op] for op in ("Shape", "Gather", "Unsqueeze", "Concat")} == {
        "Shape": 1, "Gather": 2, "Unsqueeze": 2, "Concat": 2
    }  # fmt: skip
    for shape in ((1, 1), (2, 5), (3, 4)):
        feeds = {"x": rows(*shape)}
        for wanted, given in zip(run(model, feeds), run(found, feeds), strict=True):
            np.testing.assert_array_equal(given, wanted)


def test_axes_of_other_names_stay_apart() -> None:
    net = Blocks(("x", ("N", "T", WIDTH)), ("y", ("N", "S", WIDTH)))
    for name in ("x", "y"):
        net.output(net.block(net.block(name)))
    model = net.model()
    found = joined(model)
    assert counts(found)["Gather"] == 3  # N, T, S
    feeds = {"x": rows(2, 5), "y": rows(2, 3)}
    for wanted, given in zip(run(model, feeds), run(found, feeds), strict=True):
        np.testing.assert_array_equal(given, wanted)


def test_nothing_is_written_where_an_op_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = Blocks(("x", ("N", "T", WIDTH)))
    net.output(net.node("Odd", "x", domain="somewhere"))
    model = net.model()
    model.opset_import.append(helper.make_opsetid("somewhere", 1))
    monkeypatch.chdir(tmp_path)
    assert axes_of(ir.from_proto(model)) == {}
    assert not list(tmp_path.iterdir())


def test_axes_without_names_are_known_by_the_tensor_that_has_them() -> None:
    net = Blocks(("x", (None, None, WIDTH)), ("y", (None, None, WIDTH)))
    for name in ("x", "y"):
        net.output(net.block(net.block(name)))
    model = net.model()
    found = joined(model)
    assert counts(found)["Shape"] < counts(model)["Shape"]
    feeds = {"x": rows(2, 5), "y": rows(4, 3)}
    for wanted, given in zip(run(model, feeds), run(found, feeds), strict=True):
        np.testing.assert_array_equal(given, wanted)


def test_an_axis_that_may_be_one_is_not_taken_for_another_that_it_is_added_to() -> None:
    net = Blocks(("x", ("N", "T", WIDTH)), ("m", ("N", "M", WIDTH)))
    net.output(net.block(net.node("Add", "x", "m")))
    sizes = net.node("Concat", net.size("m", 0), net.size("m", 1), net.constant(np.int64([WIDTH])), axis=0)
    net.output(net.node("Mul", net.node("Expand", net.constant(np.float32([[[2.0]]])), sizes), "m"))
    model = net.model()
    found = joined(model)
    for long in (5, 1):
        feeds = {"x": rows(2, 5), "m": rows(2, long)}
        for wanted, given in zip(run(model, feeds), run(found, feeds), strict=True):
            np.testing.assert_array_equal(given, wanted)


def test_a_table_of_positions_is_as_long_as_the_sequence() -> None:
    net = Blocks(("x", ("N", "T", WIDTH)))
    table = net.constant(RNG.standard_normal((16, WIDTH)).astype(np.float32))
    zero, one = (net.constant(np.int64([n])) for n in (0, 1))
    x = net.node("Add", "x", net.node("Slice", table, zero, net.size("x", 1), zero, one))
    net.output(net.block(net.block(x)))
    model = net.model()
    found = joined(model)
    assert counts(found)["Gather"] == 2
    for shape in ((1, 1), (2, 5), (3, 16)):
        feeds = {"x": rows(*shape)}
        np.testing.assert_array_equal(run(found, feeds)[0], run(model, feeds)[0])


def test_what_leaves_the_model_stays() -> None:
    net = Blocks(("x", ("N", "T", WIDTH)))
    first = net.block("x")
    sizes = [net.size(first, 1), net.size(net.block(first), 1)]
    for name in (first, *sizes):
        net.output(name, TensorProto.FLOAT if name == first else TensorProto.INT64)
    model = net.model()
    found = joined(model)
    assert [o.name for o in found.graph.output] == [o.name for o in model.graph.output]
    feeds = {"x": rows(2, 5)}
    for wanted, given in zip(run(model, feeds), run(found, feeds), strict=True):
        np.testing.assert_array_equal(given, wanted)


@pytest.mark.parametrize("wrong", [lambda model: {}, lambda model: {"x": [None, None, WIDTH]}])
def test_where_nothing_is_known_nodes_alike_are_joined_alone(wrong: object) -> None:
    net = Blocks(("x", ("N", "T", WIDTH)))
    net.output(net.block(net.block("x")))
    model = net.model()
    found = ir.to_proto(axes_joined(ir.from_proto(model), wrong))  # type: ignore[arg-type]
    assert counts(found)["Shape"] == 4 < counts(model)["Shape"]  # of each tensor once
    feeds = {"x": rows(2, 5)}
    np.testing.assert_array_equal(run(found, feeds)[0], run(model, feeds)[0])


def test_models_without_dense_layers_are_left_alone() -> None:
    net = Blocks(("x", ("N", "T", WIDTH)))
    net.output(
        net.node("Expand", "x", net.node("Concat", net.size("x", 0), net.size("x", 1), net.size("x", 2), axis=0))
    )
    model = ir.from_proto(net.model())
    assert axes_joined(model, axes_of) is model
