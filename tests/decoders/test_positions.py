"""Angles of positions beyond those of the samples, and new keys that keep their bits up to the cache."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from quantpipe.annotate.conditions import AnnotateOptions
from quantpipe.graph.io import model_bytes
from quantpipe.graph.view import Graph
from quantpipe.oprules.positions import angles_of, sines_of
from quantpipe.types import DType, HardwareSpec, Range
from tests.decoders.exported import KV, PLACES, SIZE, WIDTH, attention
from tests.decoders.stepping import stated
from tests.ops.line import ArraySamples, Line, Net, hardware, load, normal_samples, schema_for

FORMS = {"npu_w8a16": "integer", "qnn_htp": "integer", "ort_cpu": "qdq", "esp32p4": "integer"}
ANGLES = {"column", "angles", "twice", "cos", "sin"}
NEAR, FAR = 0, 5000
COUNT, STEPS = 64, 12


def samples(first: int = NEAR) -> ArraySamples:
    """Return eight positions from one on, eight times each, after caches of random numbers."""
    rng = np.random.default_rng(1)
    shapes = {"x": (COUNT, 1, WIDTH)} | {f"past.{kind}": (COUNT, KV, PLACES, SIZE) for kind in ("key", "value")}
    arrays = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    return ArraySamples(arrays | {"place": first + np.arange(COUNT, dtype=np.float32)[:, None] % 8})


def line_on(spec: HardwareSpec, **options: Any) -> Line:
    """Return the attention whose queries and keys are turned by positions, on a device."""
    graph = load(attention(rotary=True), lambda raw: samples(), declared=spec.ops)
    return Line(graph, spec, schema_for(spec), samples(), AnnotateOptions(**options))


@cache
def rotary(device: str) -> Line:
    return line_on(hardware(device))


def keys_error(model: onnx.ModelProto, first: int) -> float:
    """Return the mean error of new keys from a position on, after empty caches."""
    rows = {row["input"]: row for row in stated(model)}
    found = []
    for proto in (model, attention(rotary=True).proto()):
        session = ort.InferenceSession(proto.SerializeToString())
        given = samples(first).inputs
        for port in session.get_inputs():
            if port.name.startswith("past"):
                kind = rows[port.name]["stored"] if proto is model and rows else "float32"
                given[port.name] = np.zeros((COUNT, KV, 0, SIZE), kind)
        found.append(session.run(["present.key"], {p.name: given[p.name] for p in session.get_inputs()})[0])
    scale, zero = (rows["past.key"][n] for n in ("scale", "zero_point")) if rows else (1.0, 0)
    return float(np.abs((found[0].astype(np.float64) - zero) * scale - found[1]).mean())


def realized(line: Line, form: str) -> onnx.ModelProto:
    return onnx.load_from_string(model_bytes(line.realize(line.plan(16), form).model))


@pytest.mark.parametrize("name", FORMS)
def test_keys_of_positions_that_no_sample_has_are_as_exact(name: str) -> None:
    line = rotary(name)
    assert set(line.topology.float_nodes) >= ANGLES
    assert line.agree(line.plan(16), FORMS[name]).differing == 0
    model = realized(line, FORMS[name])
    assert keys_error(model, FAR) < 2 * keys_error(model, NEAR)


def test_stored_angles_saturate(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test above would find: without the rule the error is that of other angles."""
    monkeypatch.setattr("quantpipe.annotate.conditions.angles_of", lambda graph: frozenset())
    line = line_on(hardware("npu_w8a16"))
    assert "angles" not in line.topology.float_nodes
    model = realized(line, "integer")
    assert keys_error(model, FAR) > 10 * keys_error(model, NEAR)


@pytest.mark.parametrize("name", ["npu_w8a16", "qnn_htp"])
def test_sines_have_the_range_of_their_function(name: str) -> None:
    groups = rotary(name).topology.group_of
    assert {groups[t].fixed for t in ("cos_out", "sin_out")} == {Range(-1.0, 1.0)}


def test_new_keys_come_to_the_bits_of_the_cache_where_they_join_it() -> None:
    line = rotary("qnn_htp")
    kernels = {k.node: k for k in line.topology.kernels}
    assert [o.rescaled for o in kernels["key_joined"].operands] == [False, True]
    assert not any(o.rescaled for o in kernels["value_joined"].operands)  # a product of weights, which stores 8 bits
    found = {t: q.dtype for t, q in line.plan(16).quantizers.items()}
    assert found["present.key"] is found["present.value"] is DType.UINT8
    wide = [t for n in ("scores", "share", "key_turned", "query_turned") for t in (kernels[n].output,)]
    assert {found[t] for t in wide} == {DType.UINT16}


def test_new_keys_of_one_type_with_the_cache_are_stored_as_the_cache() -> None:
    """On npu_w8a16 the sum of the rotation is stored in the cache's bits, with one rounding."""
    kernels = {k.node: k for k in rotary("npu_w8a16").topology.kernels}
    assert not any(o.rescaled for n in ("key_joined", "value_joined") for o in kernels[n].operands)


def test_steps_are_one_run_with_keys_of_more_bits_than_the_cache() -> None:
    model = realized(rotary("qnn_htp"), "integer")
    session = ort.InferenceSession(model.SerializeToString())
    rows = {row["input"]: row for row in stated(model)}
    rng = np.random.default_rng(5)
    x = rng.standard_normal((1, STEPS, WIDTH)).astype(np.float32)
    past = {n: np.full((1, KV, 0, SIZE), row["zero_point"], row["stored"]) for n, row in rows.items()}
    kept: dict[str, list[Any]] = {n: [] for n in rows}
    for step in range(STEPS):
        feeds = {"x": x[:, step : step + 1], "place": np.float32([[step]]), **past}
        found = dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))
        past = {n: found[row["output"]] for n, row in rows.items()}
        for name, row in rows.items():
            kept[name].append(found[row["output"]][:, :, -1:])
    for name in rows:
        np.testing.assert_array_equal(past[name], np.concatenate(kept[name], 2))


def graph_of(net: Net) -> Graph:
    return load(net, normal_samples)


def test_only_angles_of_integers_are_found() -> None:
    net = Net(name="angles")
    x, place = net.input(None, 4), net.input(None, 1, name="place")
    counted = net.node("Cast", place, name="counted", to=7)
    table = net.node("Gather", net.floats(4, 4), net.node("Abs", counted, name="row"), name="looked_up")
    seen = net.node("Cast", net.node("Cast", counted, name="seen", to=9), name="bits", to=1)
    grown = net.node("Mul", net.node("Cast", counted, name="count", to=1), net.floats(4, name="speeds"), name="grown")
    for name, value in (("of_x", x), ("of_table", table), ("of_bits", seen), ("of_count", grown)):
        net.output(net.node("Sin", value, name=name))
    net.output(net.node("Cos", net.node("Add", grown, x, name="shifted"), name="of_both"))
    graph = load(
        net, lambda raw: ArraySamples({"x": np.ones((4, 4), np.float32), "place": np.zeros((4, 1), np.float32)})
    )
    assert sines_of(graph) == ("of_count",)
    assert angles_of(graph) == {"of_count", "grown", "count"}
