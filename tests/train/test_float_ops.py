"""Each row of the table of float ops computes what onnxruntime computes, in each form that it supports."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from quantpipe.graph.execute import Kernels, Session
from quantpipe.graph.view import Graph, view
from tests.train.cases import CASES, REJECTED, Array, Case

torch = pytest.importorskip("torch")

from quantpipe.train.network import FloatNetwork, NotTrainable  # noqa: E402
from quantpipe.train.torch_ops import FLOAT_ROWS  # noqa: E402

CPU = torch.device("cpu")


def named(case: Case) -> str:
    shapes = "x".join(str(len(a.shape)) if a is not None else "none" for a in case.operands)
    return "-".join([case.op, shapes, *(f"{k}={v}" for k, v in case.attributes.items() if k != "value")])


def graph_of(proto: onnx.ModelProto) -> Graph:
    """The graph as written, without the clean-up."""
    return view(ir.from_proto(proto), "", "net")


def computed(graph: Graph, feeds: Mapping[str, Array]) -> dict[str, Array]:
    values = {name: torch.tensor(array) for name, array in feeds.items()}
    found = FloatNetwork.of(graph, CPU).run(values, [o.name for o in graph.outputs])
    return {name: value.numpy() for name, value in found.items()}


def assert_equal(found: Array, expected: Array) -> None:
    """Same shape, same kind of numbers, and floats nearer than 1e-5 of the largest."""
    assert found.shape == expected.shape
    if expected.dtype.kind == "f":
        assert found.dtype == np.float32
        largest = float(np.abs(expected).max(initial=1.0))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * largest)
    else:
        assert found.dtype == (bool if expected.dtype == bool else np.int64)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("constants", [True, False], ids=["constants", "computed"])
@pytest.mark.parametrize("case", CASES, ids=named)
def test_a_row_computes_what_onnxruntime_computes(case: Case, constants: bool) -> None:
    proto = case.proto(constants)
    feeds = case.feeds(constants)
    expected = Session(proto.SerializeToString(), kernels=Kernels.AS_WRITTEN).run(feeds)
    found = computed(graph_of(proto), feeds)
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert_equal(found[name], array)


def test_every_row_and_every_attribute_has_a_case() -> None:
    seen: dict[str, set[str]] = defaultdict(set)
    ports: dict[str, set[int]] = defaultdict(set)
    for case in CASES:
        seen[case.op] |= set(case.attributes)
        ports[case.op] |= {port for port, array in enumerate(case.operands) if array is not None}
    assert set(seen) == set(FLOAT_ROWS)
    for op, row in FLOAT_ROWS.items():
        assert row.attributes == seen[op], op
        assert row.numbers <= ports[op], op


@pytest.mark.parametrize("name", REJECTED)
def test_other_forms_are_rejected_by_name(name: str) -> None:
    case, words = REJECTED[name]
    graph = view(ir.from_proto(case.proto(constants=True)), "", "net")
    with pytest.raises(NotTrainable, match=rf"node mid \((com\.microsoft\.)?{case.op}\).*{words}"):
        FloatNetwork.of(graph, CPU)


@pytest.mark.parametrize(
    ("op", "wrong"),
    [
        ("Round", lambda call: torch.floor(call[0] + 0.5)),
        ("Selu", lambda call: torch.nn.functional.elu(call[0])),
        ("GlobalAveragePool", lambda call: call[0].sum((2, 3), keepdim=True)),
        ("Transpose", lambda call: call[0]),
        ("Shape", lambda call: torch.tensor(call[0].shape, dtype=torch.int32)),
    ],
)
def test_a_wrong_row_is_found(op: str, wrong: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FLOAT_ROWS, op, replace(FLOAT_ROWS[op], compute=wrong))
    with pytest.raises(AssertionError):
        for case in CASES:
            if case.op == op:
                test_a_row_computes_what_onnxruntime_computes(case, True)
