"""Ports in half precision around a float32 model: names, types and values."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from quantpipe.data.input_checks import cast
from quantpipe.errors import DataError
from quantpipe.graph.execute import Session
from quantpipe.graph.io import model_bytes
from quantpipe.intake.half_ends import cast_ends, inside_of
from quantpipe.types import TensorInfo
from tests.ops.line import Net, load

KINDS = {"x": ir.DataType.FLOAT16, "y": ir.DataType.FLOAT16}


def two_readers() -> ir.Model:
    """y = relu(x) is an output and read inside, too; z is float32."""
    net = Net()
    y = net.node("Relu", net.input(None, 4), output="y")
    net.node("Add", y, "x", output="z")
    net.output("y", "z")
    return load(net).model


def test_ports_keep_their_names_and_values() -> None:
    model = two_readers()
    narrow = cast_ends(model, KINDS)
    session = ort.InferenceSession(model_bytes(narrow), providers=["CPUExecutionProvider"])
    assert {p.name: p.type for p in (*session.get_inputs(), *session.get_outputs())} == {
        "x": "tensor(float16)",
        "y": "tensor(float16)",
        "z": "tensor(float)",
    }
    x = np.array([[1.0003, -2, 3, 4.4]], np.float32)
    y, z = session.run(["y", "z"], {"x": x.astype(np.float16)})
    x16 = x.astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(y, np.maximum(x16, 0).astype(np.float16))
    np.testing.assert_array_equal(z, np.maximum(x16, 0) + x16)
    assert inside_of(narrow, KINDS) == {"y": "y/float32"}
    assert [p.dtype for p in model.graph.inputs] == [ir.DataType.FLOAT]  # the model itself is as it was


def test_sessions_round_what_goes_into_a_half_port() -> None:
    x = np.array([[1.0003, -2, 3, 4.4]], np.float32)
    found = Session(cast_ends(two_readers(), KINDS)).run({"x": x})
    np.testing.assert_array_equal(found["y"], np.maximum(x.astype(np.float16), 0))


def test_nothing_to_change_changes_nothing() -> None:
    model = two_readers()
    assert cast_ends(model, {}) is model
    assert cast_ends(model, {"z": ir.DataType.FLOAT}) is model


def test_samples_are_rounded_to_the_type_of_the_file() -> None:
    port = TensorInfo("x", (None, 2), "float32", "float16")
    values = np.array([[1.0003, 2.0]])
    for kind in (np.float16, np.float32, np.float64):
        found = cast(values.astype(kind), port, ["first"])
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, values.astype(np.float16))


def test_samples_that_float16_does_not_hold_are_named() -> None:
    port = TensorInfo("x", (None, 2), "float32", "float16")
    with pytest.raises(DataError, match=r"holds 70000\.0 for model input 'x', which float16 does not hold"):
        cast(np.array([[1.0, 70000.0]], np.float32), port, ["first"])
