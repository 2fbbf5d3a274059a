"""Metadata of caches in integers: read back, and ignored where a file states what its ports are not."""

from __future__ import annotations

import json
from typing import Any

import onnx_ir as ir
import pytest

from quantpipe.graph.stored_ports import KEY, StoredPort, state_ports, stored_ports
from quantpipe.types import DType

PORT = StoredPort("past", "present", "keys", DType.INT8, 0.5, 3, -128, 127)


def model(kind: ir.DataType = ir.DataType.INT8) -> ir.Model:
    past = ir.Value(name="past", type=ir.TensorType(kind), shape=ir.Shape([1, 2]))
    node = ir.Node("", "Identity", [past])
    node.outputs[0].name, node.outputs[0].type = "present", ir.TensorType(kind)
    graph = ir.Graph([past], node.outputs, nodes=[node], opset_imports={"": 17}, name="g")
    return ir.Model(graph, ir_version=10)


def test_what_is_stated_is_read() -> None:
    made = model()
    state_ports(made, [PORT])
    assert stored_ports(made) == (PORT,)
    assert stored_ports(model()) == ()


@pytest.mark.parametrize("kind", [ir.DataType.FLOAT, ir.DataType.UINT8])
def test_ports_of_other_types_are_no_caches(kind: ir.DataType) -> None:
    made = model(kind)
    state_ports(made, [PORT])
    assert stored_ports(made) == ()


@pytest.mark.parametrize(
    "entry",
    ["not json", "7", "null", '[{"input": 3}]', "[[]]", json.dumps([{**PORT.as_dict(), "scale": 0}]),
     json.dumps([{**PORT.as_dict(), "stored": "int3"}]), json.dumps([{**PORT.as_dict(), "range": [1]}]),
     json.dumps([{**PORT.as_dict(), "input": "other"}])],
)  # fmt: skip
def test_an_entry_of_another_form_states_no_cache(entry: Any) -> None:
    made = model()
    made.metadata_props[KEY] = entry
    assert stored_ports(made) == ()
