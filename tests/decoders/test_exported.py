"""Attentions as torch's exporters write them: their keys and values are caches in integers, growing and static."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto

import quantpipe
from quantpipe.data import NpzDataset
from quantpipe.graph.execute import Session
from quantpipe.graph.io import model_bytes
from quantpipe.graph.view import Graph
from quantpipe.oprules import OP_RULES
from quantpipe.oprules.cache_paths import caches_of, is_static
from tests.decoders.exported import JOINS, KINDS, KV, PLACES, SIZE, WIDTH, attention
from tests.decoders.stepping import stated
from tests.ops.line import ArraySamples, Line, Net, hardware, load, schema_for

DEVICES = [("npu_w8a16", "integer"), ("qnn_htp", "integer"), ("ort_cpu", "qdq")]


def samples(how: str) -> ArraySamples:
    """Return positions after caches of random numbers."""
    rng = np.random.default_rng(1)
    shapes = {"x": (8, 1, WIDTH), "past.key": (8, KV, PLACES, SIZE), "past.value": (8, KV, PLACES, SIZE)}
    arrays = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    return ArraySamples(
        arrays | ({"place": np.arange(8, dtype=np.float32)[:, None] % PLACES} if how != "Concat" else {})
    )


def graph_of(how: str, device: str | None = None) -> Graph:
    declared = hardware(device).ops if device is not None else ()
    return load(attention(how), lambda raw: samples(how), declared=declared)


@pytest.mark.parametrize("how", JOINS)
def test_keys_and_values_are_told_apart(how: str) -> None:
    graph = graph_of(how)
    found = {cache.past: cache for cache in caches_of(graph)}
    assert {n: (c.present, c.keys) for n, c in found.items()} == {
        "past.key": ("present.key", True),
        "past.value": ("present.value", False),
    }
    assert all(is_static(graph, cache) == (how != "Concat") for cache in found.values())


@pytest.mark.parametrize("how", JOINS)
def test_the_clean_graph_scales_queries_alone_and_searches_for_nothing(how: str) -> None:
    graph, net = graph_of(how), attention(how)
    assert not graph.notes
    assert "IsNaN" not in {n.op for n in graph.nodes}
    assert [n.name for n in graph.nodes if n.op == "Mul"] == ["scores/factor"]
    every = {n: a[:1] for n, a in samples(how).inputs.items()}
    wanted = ort.InferenceSession(net.proto().SerializeToString()).run(None, every)
    for array, found in zip(wanted, Session(graph.model).run(every).values(), strict=True):
        np.testing.assert_allclose(found, array, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "form", "how"),
    [(*d, how) for d in DEVICES for how in JOINS if (d[0], how) != ("qnn_htp", "TensorScatter")],
)
def test_caches_go_on_as_integers(name: str, form: str, how: str) -> None:
    """Steps in plain onnxruntime: each keeps the integers that were there, and adds its own."""
    graph, spec = graph_of(how, name), hardware(name)
    line = Line(graph, spec, schema_for(spec), samples(how))
    plan = line.plan(8)
    assert line.agree(plan, form).differing == 0
    model = line.realize(plan, form).model
    rows = {row["input"]: row for row in stated(model)}
    assert {n: row["holds"] for n, row in rows.items()} == {"past.key": "keys", "past.value": "values"}
    session = ort.InferenceSession(model_bytes(model))
    outputs = [o.name for o in session.get_outputs()]
    static = how != "Concat"
    length = PLACES if static else 0
    cache = {n: np.full((1, KV, length, SIZE), row["zero_point"], row["stored"]) for n, row in rows.items()}
    rng = np.random.default_rng(3)
    for step in range(PLACES):
        feeds: dict[str, Any] = {"x": rng.standard_normal((1, 1, WIDTH)).astype(np.float32), **cache}
        feeds |= {"place": np.float32([[step]])} if static else {}
        found = dict(zip(outputs, session.run(None, feeds), strict=True))
        for past, row in rows.items():
            new = found[row["output"]]
            assert new.dtype == row["stored"] and new.shape[2] == (PLACES if static else step + 1)
            np.testing.assert_array_equal(new[:, :, :step], cache[past][:, :, :step])
            assert np.unique(new[:, :, step]).size > 1
            if static:
                assert (new[:, :, step + 1 :] == row["zero_point"]).all()
            cache[past] = new


@pytest.mark.program
@pytest.mark.parametrize(("name", "counting"), [("npu_w8a16", ["share"]), ("ort_cpu", [])])
def test_shares_of_places_that_are_not_written_yet_are_named(name: str, counting: list[str], tmp_path: Path) -> None:
    """TensorFlow Lite's 16-bit Softmax gives a hidden place exp(-10), so steps differ from one run over all tokens."""
    rng, shape = np.random.default_rng(1), (36, 2)
    arrays = {"x": rng.standard_normal((*shape, WIDTH)).astype(np.float32), "turn": np.repeat(np.arange(12), 3)}
    np.savez(tmp_path / "d.npz", **arrays, place=np.tile(np.arange(PLACES).reshape(3, 2), (12, 1)))
    state = {f"present.{kind}": f"past.{kind}" for kind in KINDS}
    data = NpzDataset(path=str(tmp_path / "d.npz"), state=state, keys={"sequence": "turn"}, duplicates="allow")
    short: dict[str, Any] = {"evaluate": {"latency_runs": 1, "baseline": "none"}, "effort": "quick", "recover": "none"}
    proto = attention("ScatterND", tokens=None).proto()
    next(port for port in proto.graph.input if port.name == "place").type.tensor_type.elem_type = TensorProto.INT64
    report = quantpipe.quantize(proto, data, name, folder=tmp_path / "run", **short).report
    assert len(report["caches"]) == 2 and report["steps"]["one_token"]["steps"] == PLACES
    assert report["steps"]["kernels"]["counts_hidden"] == counting
    named = [w for w in report["warnings"] if "share: this form of the device gives hidden places of the cache" in w]
    assert bool(named) is bool(report["steps"]["one_token"]["differing"]) is bool(counting)


def test_a_device_without_the_op_keeps_a_static_cache_in_float() -> None:
    graph, spec = graph_of("ScatterND"), hardware("tflite_int8", cache="int8")
    line = Line(graph, spec, schema_for(spec), samples("ScatterND"))
    assert not line.topology.caches
    assert "tflite_int8 does not declare ScatterND" in line.topology.real_caches["past.key"]


def test_a_scatter_that_adds_is_no_move() -> None:
    net = Net(name="adds")
    x, rows = net.input(None, 4, name="x"), net.constant(np.int64([[0]]))
    new = net.node("Slice", x, *[net.constant(np.int64([n])) for n in (0, 1)], name="first")
    net.output(net.node("ScatterND", x, rows, new, name="added", reduction="add"))
    node = load(net).by_name["added"]
    assert OP_RULES["ScatterND"].refuse(node, load(net)) == (
        "it combines new values with those in their places (reduction=add)"
    )
