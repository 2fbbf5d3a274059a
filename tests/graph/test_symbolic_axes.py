"""Axes are inferred without the bytes of large constants, and with the values of small ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from quantpipe.graph import symbolic_axes
from quantpipe.graph.symbolic_axes import axes_of, axes_of_inputs, plain_axes_and_types_of
from tests.ops.line import Net

LARGE = 96 * 64


def _model() -> tuple[ir.Model, str, str]:
    """Return a net, and the results of its MatMul (large weight) and Reshape (small constant)."""
    net = Net(seed=1)
    x = net.input(None, 96)
    y = net.node("MatMul", x, net.constant(np.ones((96, 64), np.float32), "weight"))
    z = net.node("Reshape", y, net.constant(np.int64([-1, 8, 8]), "sizes"))
    net.output(net.node("Relu", z))
    return ir.from_proto(net.proto()), y, z


@pytest.mark.parametrize("infer", [axes_of, axes_of_inputs, lambda model: plain_axes_and_types_of(model)[0]])
def test_large_constants_are_left_out(infer: Callable[[ir.Model], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    (model, y, z), read = _model(), []

    def watched(own: Callable[..., onnx.ModelProto]) -> Callable[..., onnx.ModelProto]:
        def inferred(given: onnx.ModelProto, *more: Any, **options: Any) -> onnx.ModelProto:
            read.append(given.ByteSize())
            return own(given, *more, **options)

        return inferred

    monkeypatch.setattr(symbolic_axes, "_inferred", watched(symbolic_axes._inferred))
    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", watched(onnx.shape_inference.infer_shapes))
    found = infer(model)
    assert found[y][1] == 64 and tuple(found[z][1:]) == (8, 8)
    assert read and max(read) < LARGE
    assert set(model.graph.initializers) == {"weight", "sizes"} and len(model.graph.inputs) == 1


def test_small_constants_decide_axes(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _, z = _model()
    monkeypatch.setattr(symbolic_axes, "MANY", 0)
    assert tuple(axes_of_inputs(model).get(z, ()))[1:] != (8, 8)
