"""GraphBuilder: names are unique, and tensors of the user's graph keep theirs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantpipe.graph.build import GraphBuilder, ir_dtype
from quantpipe.graph.execute import Session


def builder(*reserved: str) -> GraphBuilder:
    return GraphBuilder("g", 17, 9, reserved)


def test_taken_names_get_a_number() -> None:
    b = builder()
    assert [b.constant("a", np.float32(1)).name for _ in range(3)] == ["a", "a_2", "a_3"]


def test_reserved_names_are_for_those_who_claim_them() -> None:
    b = builder("y", "y_2")
    x = b.input("x", "float32", [None])
    first = b.op("Relu", x, name="first", output="y")
    own = b.op("Relu", x, name="second", output="y", claim=True)
    again = b.op("Relu", x, name="second", output="y", claim=True)
    assert (first.name, own.name, again.name) == ("y_3", "y", "y_4")
    assert b.constant("y_2", np.float32(1)).name not in ("y", "y_2")


@given(st.lists(st.tuples(st.sampled_from(["x", "x_q", "x_2", "x_q_2", "x_"]), st.booleans()), max_size=12))
def test_names_are_unique_whatever_is_asked(asked: list[tuple[str, bool]]) -> None:
    b = builder("x_q", "x_2")
    x = b.input("in", "float32", [None])
    for name, claim in asked:
        x = b.op("Relu", x, name=name, output=name, claim=claim)
    x = b.op("Relu", x, name="end")
    model = b.build([x])
    outputs = [v.name for n in model.graph for v in n.outputs]
    assert len(outputs) == len(set(outputs)) and len({n.name for n in model.graph}) == len(outputs)
    for reserved in ("x_q", "x_2"):
        assert (reserved in outputs) == ((reserved, True) in asked)


def test_what_is_built_runs() -> None:
    b = builder()
    x = b.input("x", "float32", [None, 2])
    y = b.op("Add", x, b.constant("one", np.float32(1)), name="add", output="y")
    import onnx_ir as ir

    y.type = ir.TensorType(ir.DataType.FLOAT)
    found = Session(b.build([y])).run({"x": np.zeros((3, 2), np.float32)})["y"]
    assert found.tolist() == [[1, 1]] * 3


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("float32", "FLOAT"),
        ("int8", "INT8"),
        ("int4", "INT4"),
        ("uint4", "UINT4"),
        ("int2", "INT2"),
        ("uint2", "UINT2"),
    ],
)
def test_dtypes(name: str, expected: str) -> None:
    assert ir_dtype(name).name == expected
