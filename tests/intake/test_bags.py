"""Bags of rows as exporters write them, in loops: rows are looked up in front of the loop, by a table that is stored in
integers; and sequences of tensors, which are no tensors."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from quantpipe.api.model import model_file
from quantpipe.graph.execute import Session
from quantpipe.graph.view import Graph
from quantpipe.intake.load import clean_graph, read_graph
from tests.ops.line import ArraySamples, line

Array = np.ndarray[Any, Any]
ROWS, WIDTH, BAGS, SIZE = 900, 12, 6, 4
node = helper.make_node


def looping(*, step: int = 1, weighted: bool = False, within: bool = False) -> onnx.ModelProto:
    """Bags of SIZE places each, added up one by one in a Loop, as TorchScript exports an EmbeddingBag; a dense layer.

    `within`: the table is an initializer of the body.
    """
    rng = np.random.default_rng(0)
    table = numpy_helper.from_array(rng.standard_normal((ROWS, WIDTH)).astype(np.float32), "table")
    constants = {
        "offsets": np.arange(0, BAGS * SIZE + 1, SIZE), "axis": np.asarray([0]), "step": np.asarray([step]),
        "none": np.asarray([0]), "flat": np.asarray([-1]), "count": np.asarray(BAGS), "one": np.asarray(1),
        "behind": np.asarray([1]),
    }  # fmt: skip
    held = [numpy_helper.from_array(v.astype(np.int64), k) for k, v in constants.items()]
    held.append(numpy_helper.from_array(np.asarray(True), "yes"))
    held += [numpy_helper.from_array(rng.standard_normal((WIDTH, 3)).astype(np.float32), "w")]
    rows = [
        node("Gather", ["offsets", "i"], ["first"], name="first"),
        node("Add", ["i", "one"], ["next"], name="next"),
        node("Gather", ["offsets", "next"], ["last"], name="last"),
        node("Unsqueeze", ["first", "none"], ["from"], name="from"),
        node("Unsqueeze", ["last", "none"], ["to"], name="to"),
        node("Slice", ["flat_places", "from", "to", "axis", "step"], ["own"], name="own"),
        node("Gather", ["table", "own"], ["found"], name="found"),
        node("Slice", ["flat_weights", "from", "to", "axis"], ["own_weights"], name="own_weights"),
        node("Unsqueeze", ["own_weights", "behind"], ["columns"], name="columns"),
        node("Mul", ["found", "columns"], ["weighed"], name="weighed"),
        node("ReduceSum", ["weighed" if weighted else "found", "none"], ["bag"], name="bag", keepdims=0),
        node("Identity", ["yes"], ["go_on"], name="go_on"),
    ]
    if not weighted:
        rows = [n for n in rows if n.name not in ("own_weights", "columns", "weighed")]
    scalar = helper.make_tensor_value_info
    body = helper.make_graph(
        rows,
        "body",
        [scalar("i", TensorProto.INT64, []), scalar("cond", TensorProto.BOOL, [])],
        [scalar("go_on", TensorProto.BOOL, []), scalar("bag", TensorProto.FLOAT, None)],
        [table] if within else [],
    )
    nodes = [
        node("Reshape", ["places", "flat"], ["flat_places"], name="flat_places"),
        node("Reshape", ["weights", "flat"], ["flat_weights"], name="flat_weights"),
        node("Loop", ["count", "yes"], ["bags"], name="loop", body=body),
        node("MatMul", ["bags", "w"], ["scores"], name="scores"),
    ]
    inputs = [scalar("places", TensorProto.INT64, [BAGS, SIZE])]
    inputs += [scalar("weights", TensorProto.FLOAT, [BAGS, SIZE])] if weighted else []
    nodes = [n for n in nodes if weighted or n.name != "flat_weights"]
    graph = helper.make_graph(
        nodes, "bags", inputs, [scalar("scores", TensorProto.FLOAT, [BAGS, 3])], held + ([] if within else [table])
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def feeds(count: int = 1) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    return {
        "places": rng.integers(0, ROWS, (BAGS * count, SIZE)),
        "weights": rng.random((BAGS * count, SIZE)).astype(np.float32),
    }


def cleaned(model: onnx.ModelProto, given: dict[str, Array]) -> Graph:
    with tempfile.TemporaryDirectory() as folder:
        raw = read_graph(model_file(model, Path(folder)))
        names = {value.name for value in model.graph.input}
        return clean_graph(raw, {k: v for k, v in given.items() if k in names}, isolate=False)


@pytest.mark.parametrize("within", [False, True], ids=["outside", "inside"])
@pytest.mark.parametrize("weighted", [False, True], ids=["sum", "weighted"])
def test_rows_are_looked_up_in_front_of_the_loop(weighted: bool, within: bool) -> None:
    model = looping(weighted=weighted, within=within)
    graph = cleaned(model, feeds())
    (loop,) = (n for n in graph.nodes if n.op == "Loop")
    assert any(n.op == "Gather" and n.inputs[0] == "table" for n in graph.nodes) and "table" not in loop.captured
    given = {k: v for k, v in feeds().items() if k in graph.input_names}
    wanted = Session(ir.from_proto(model)).run(given)["scores"]
    np.testing.assert_array_equal(Session(graph.model).run(given)["scores"], wanted)


def test_other_parts_stay_in_the_loop() -> None:
    graph = cleaned(looping(step=2), feeds())
    (loop,) = (n for n in graph.nodes if n.op == "Loop")
    assert loop.body_ops["Gather"] == 3


def test_the_table_of_bags_is_stored_in_integers() -> None:
    given = {k: v for k, v in feeds(8).items() if k == "places"}
    graph = cleaned(looping(), feeds())
    made = line(graph, "ort_cpu", samples=ArraySamples(given))
    plan = made.plan()
    assert [site.tensor for site in made.topology.tables] == ["table"] and plan.tables["table"].bits == 8
    assert made.agree(plan, "qdq", everywhere=True).differing == 0


def into_a_sequence() -> onnx.ModelProto:
    """A loop that puts rows into a sequence, as newer exporters write an EmbeddingBag; a dense layer around it."""
    rng = np.random.default_rng(0)
    value = helper.make_tensor_value_info
    sequence = helper.make_tensor_sequence_value_info
    constants = {"count": np.asarray(3), "one": np.asarray([1]), "none": np.asarray([0])}
    held = [numpy_helper.from_array(v.astype(np.int64), k) for k, v in constants.items()]
    held += [numpy_helper.from_array(rng.standard_normal((4, 5)).astype(np.float32), "w")]
    held += [numpy_helper.from_array(np.asarray(True), "yes")]
    body = helper.make_graph(
        [
            node("Identity", ["yes"], ["go_on"], name="go_on"),
            node("ReduceSum", ["hidden", "one"], ["row"], name="row"),
            node("SequenceInsert", ["before", "row"], ["after"], name="insert"),
        ],
        "body",
        [value("i", TensorProto.INT64, []), value("cond", TensorProto.BOOL, []), sequence("before", 1, None)],
        [value("go_on", TensorProto.BOOL, []), sequence("after", 1, None)],
    )
    nodes = [
        node("MatMul", ["x", "w"], ["hidden"], name="hidden"),
        node("SequenceEmpty", [], ["empty"], name="empty"),
        node("Loop", ["count", "yes", "empty"], ["rows"], name="loop", body=body),
        node("ConcatFromSequence", ["rows"], ["y"], name="joined", axis=1),
    ]
    graph = helper.make_graph(
        nodes, "sequence", [value("x", TensorProto.FLOAT, ["N", 4])], [value("y", TensorProto.FLOAT, ["N", 3])], held
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_sequence_is_no_tensor() -> None:
    x = np.random.default_rng(2).standard_normal((12, 4)).astype(np.float32)
    graph = cleaned(into_a_sequence(), {"x": x[:4]})
    assert graph.dtypes["rows"] == "object" and graph.shapes["rows"] == ()
    made = line(graph, "ort_cpu", samples=ArraySamples({"x": x}))
    assert made.agree(made.plan(), "qdq").differing == 0
