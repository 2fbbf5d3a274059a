"""Tensors that a quantized file stores are there after the clean-up, where its scales are kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from quantpipe.graph.view import Graph
from quantpipe.intake.load import clean_graph, read_graph
from quantpipe.intake.quantized.locate import flat_view
from quantpipe.types import Keep

RNG = np.random.default_rng(3)
X = RNG.standard_normal((4, 5, 8)).astype(np.float32)


def loaded(folder: Path, stored: tuple[str, ...], keep: Keep) -> Graph:
    """A dense layer over rows, then Gelu in several nodes, then heads; some of its tensors go through Q and DQ."""
    steps = [
        ("MatMul", ["x", "w"], "product"), ("Add", ["product", "b"], "sum"), ("Div", ["sum", "root"], "inside"),
        ("Erf", ["inside"], "erf"), ("Add", ["erf", "one"], "more"), ("Mul", ["sum", "more"], "twice"),
        ("Mul", ["twice", "half"], "gelu"), ("Reshape", ["gelu", "heads"], "parts"), ("MatMul", ["gelu", "v"], "next"),
        ("Add", ["next", "c"], "y"),
    ]  # fmt: skip
    constants = {
        "w": RNG.standard_normal((8, 12)), "b": RNG.standard_normal(12), "root": 2.0**0.5, "one": 1.0, "half": 0.5,
        "v": RNG.standard_normal((12, 6)), "c": RNG.standard_normal(6), "s": 0.05,
    }  # fmt: skip
    arrays = {name: np.asarray(value, np.float32) for name, value in constants.items()}
    arrays |= {"z": np.asarray(128, np.uint8), "heads": np.asarray([0, -1, 3, 4], np.int64)}
    nodes, renamed = [], dict[str, str]()
    for op, inputs, out in steps:
        nodes.append(helper.make_node(op, [renamed.get(i, i) for i in inputs], [out], name=f"n_{out}"))
        if out in stored:
            nodes.append(helper.make_node("QuantizeLinear", [out, "s", "z"], [f"{out}_q"], name=f"q_{out}"))
            nodes.append(helper.make_node("DequantizeLinear", [f"{out}_q", "s", "z"], [f"{out}_dq"], name=f"d_{out}"))
            renamed[out] = f"{out}_dq"
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("y", "parts")]
    port = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 5, 8])
    held = [numpy_helper.from_array(a, n) for n, a in arrays.items()]
    graph = helper.make_graph(nodes, "net", [port], outputs, held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "m.onnx")
    return clean_graph(read_graph(folder / "m.onnx", keep=keep), {"x": X}, isolate=False)


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


@pytest.mark.parametrize("stored", [("product",), ("sum", "erf", "gelu"), ("twice",), ("gelu",)], ids=", ".join)
def test_no_step_takes_them_into_another_op(stored: tuple[str, ...], tmp_path: Path) -> None:
    kept = loaded(tmp_path, stored, Keep.ALL)
    assert kept.imported is not None and not kept.imported.lost
    made = {tensor for node in kept.nodes for tensor in node.outputs}
    assert {*stored} <= made and [p.name for p in kept.outputs] == ["y", "parts"]
    for name in stored:
        assert kept.consumers[name], "whoever read it reads it still"
    assert ("Gelu" in ops(kept)) == (stored == ("product",) or stored == ("gelu",))
    assert ops(kept).count("Gemm") == (1 if stored == ("product",) else 2)
    assert {*ops(loaded(tmp_path, stored, Keep.WEIGHTS))} == {"Gemm", "Gelu", "Reshape"}


def test_rows_laid_flat_have_the_grid_of_the_tensor(tmp_path: Path) -> None:
    graph = loaded(tmp_path, ("gelu",), Keep.ALL)
    given = graph.imported
    flat = flat_view("gelu", graph)
    assert given is not None and flat == "gelu_flat"
    assert given.tensor[flat].grid is given.tensor["gelu"].grid
    assert given.tensor[flat].stored == given.tensor["gelu"].stored
