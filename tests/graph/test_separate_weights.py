"""Sessions that are given weights apart from the model compute what they compute of the whole file."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from quantpipe.graph import execute, external_weights
from quantpipe.graph.execute import Kernels, Session
from quantpipe.graph.io import model_bytes
from tests.ops.cases import CASES
from tests.ops.test_every_op import graph_of, line


@pytest.mark.parametrize("form", ["qdq", "qoperator", "integer"])
@pytest.mark.parametrize("name", ["conv_asymmetric_pads", "gemm_row_bias", "transposed_strides", "attention"])
def test_integer_weights_apart_from_a_model(name: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert name in CASES
    made = line(graph_of(name), "ort_cpu")
    model = made.realize(made.plan(), form).model
    feeds = {port.name: made.samples.inputs[port.name] for port in made.graph.inputs}
    options = ort.SessionOptions()
    expected = ort.InferenceSession(model_bytes(model), options, providers=["CPUExecutionProvider"]).run(None, feeds)
    given: list[str] = []
    ask = ort.SessionOptions.add_external_initializers
    monkeypatch.setattr(execute, "LEAST_BESIDE", 1)
    monkeypatch.setattr(external_weights, "SMALL", 1)
    monkeypatch.setattr(ort.SessionOptions, "add_external_initializers",
                        lambda self, names, values: (given.extend(names), ask(self, names, values))[1])  # fmt: skip
    found = Session(model).run(feeds)
    types = {str(model.graph.initializers[n].const_value.dtype) for n in given}  # type: ignore[union-attr]
    assert {"INT8"} & types or {"UINT8"} & types or execute.pairs_saturate()
    for one, other in zip(found.values(), expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", ["conv_asymmetric_pads", "gemm_row_bias", "transposed_strides", "attention"])
def test_float_weights_as_inputs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_weights, "SMALL", 1)
    model, feeds = graph_of(name).model, line(graph_of(name), "ort_cpu").samples.inputs
    before = set(model.graph.initializers)
    other, weights = external_weights.weights_as_inputs(model)
    assert weights and not set(weights) & set(other.graph.initializers) and set(model.graph.initializers) == before
    expected = Session(model, kernels=Kernels.AS_WRITTEN).run(feeds)
    found = Session(other, kernels=Kernels.AS_WRITTEN).run({**feeds, **weights})
    for one, two in zip(found.values(), expected.values(), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-5)


def test_weights_that_nothing_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime drops them from the graph, and knows no such initializer when it is given one."""
    made = line(graph_of("conv_asymmetric_pads"), "ort_cpu")
    model = made.realize(made.plan(), "integer").model
    feeds = {port.name: made.samples.inputs[port.name] for port in made.graph.inputs}
    expected = Session(model).run(feeds)
    monkeypatch.setattr(execute, "LEAST_BESIDE", 1)
    monkeypatch.setattr(external_weights, "SMALL", 1)
    unread = ir.Value(name="unread", const_value=ir.tensor(np.ones((64, 64), np.int8), name="unread"))
    model.graph.register_initializer(unread)
    for one, two in zip(Session(model).run(feeds).values(), expected.values(), strict=True):
        np.testing.assert_array_equal(one, two)
