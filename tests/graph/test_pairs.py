"""int8 tensors with one reader each, and the same results."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from quantpipe.graph import execute
from quantpipe.graph.execute import Session
from quantpipe.graph.pairs import PAIR, pair, separated
from quantpipe.graph.session_options import EXACT_PAIRS, carry


def tied(readers: int) -> onnx.ModelProto:
    """A square weight of one sign, with zero points, that multiplies again and again."""
    nodes, x = [], "x"
    for number in range(readers):
        nodes += [
            helper.make_node("MatMulInteger", [x, "w", "xz", "wz"], [f"sum{number}"]),
            helper.make_node("Cast", [f"sum{number}"], [f"real{number}"], to=TensorProto.FLOAT),
            helper.make_node("QuantizeLinear", [f"real{number}", "s", "xz"], [f"q{number}"]),
        ]
        x = f"q{number}"
    values = {"w": np.full((8, 8), 120, np.int8), "wz": np.zeros(8, np.int8)}
    scalars = {"xz": np.asarray(9, np.uint8), "s": np.asarray(1100, np.float32)}
    graph = helper.make_graph(
        nodes,
        "tied",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, [3, 8])],
        [helper.make_tensor_value_info(x, TensorProto.UINT8, [3, 8])],
        [numpy_helper.from_array(v, n) for n, v in (values | scalars).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_each_int8_tensor_has_one_reader() -> None:
    found = onnx.load_from_string(separated(tied(3).SerializeToString()))
    onnx.checker.check_model(found)
    readers = Counter(name for node in found.graph.node for name in node.input)
    held = {t.name: numpy_helper.to_array(t) for t in found.graph.initializer}
    assert {name: readers[name] for name, a in held.items() if a.dtype == np.int8} == dict.fromkeys(
        ("w", "w/reader1", "w/reader3", "wz", "wz/reader2", "wz/reader4"), 1
    )
    assert all((a == held[name.split("/")[0]]).all() for name, a in held.items())
    assert (readers["xz"], readers["s"]) == (6, 3)


def test_without_shared_weights_nothing_changes() -> None:
    data = tied(1).SerializeToString()
    assert separated(data) is data


def test_tied_weights_are_exact_on_every_cpu() -> None:
    q = np.full((3, 8), 255, np.uint8)
    (found,) = Session(tied(2).SerializeToString()).run({"x": q}).values()
    first = min(round(8 * (255 - 9) * 120 / 1100) + 9, 255)
    second = min(round(8 * (first - 9) * 120 / 1100) + 9, 255)
    np.testing.assert_array_equal(found, np.full((3, 8), second))


def test_names_that_a_file_has_already_are_not_given_again() -> None:
    """A file of ours has copies under such names before a session makes some more."""
    model = tied(3)
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((8, 8), np.int8), "w/reader1"))
    model.graph.node.append(helper.make_node("Identity", ["w/reader1"], ["beside"]))
    found = onnx.load_from_string(separated(model.SerializeToString()))
    names = [t.name for t in found.graph.initializer]
    assert len(names) == len(set(names)) and "w/reader1" in names
    onnx.checker.check_model(found)


def test_ops_that_quantize_at_run_time_keep_their_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such an op of a user's own file computes what it computes in a default session, on every processor."""
    asked: list[bool] = []

    def exact(*given: Any) -> Any:
        asked.append(True)
        return execute._loaded(*given)

    monkeypatch.setattr(execute, "pairs_saturate", lambda: True)
    monkeypatch.setattr(execute, "_loaded_exact", exact)
    Session(ir.from_proto(tied(1)))
    assert asked == [True]
    for text in (
        "y, s, z = DynamicQuantizeLinear (x)",
        "y = com.microsoft.DynamicQuantizeMatMul (x, w, k)",
    ):
        graph = f"g (float[2, 3] x) => (y) <int8[3, 2] w = {{1, 1, 1, 1, 1, 1}}, float k = {{0.5}}> {{ {text} }}"
        model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]> {graph}')
        Session(ir.from_proto(model))
    assert asked == [True]


def test_an_option_that_the_model_carries_is_set_once(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A second entry of an option is a line of the runtime on the terminal."""
    monkeypatch.setattr(execute, "pairs_saturate", lambda: True)
    model = ir.from_proto(onnx.load_from_string(pair()))
    carry(model, EXACT_PAIRS)
    found = execute.Session(model).run({"x": np.full((1, 2), 255, np.uint8)})["y"]
    assert int(found[0, 0]) == PAIR and "already exists" not in capfd.readouterr().err
