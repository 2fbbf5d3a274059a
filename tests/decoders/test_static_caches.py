"""Caches of a fixed length: a ring forgets its oldest positions, and has the length of the device's rings."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from quantpipe.annotate.conditions import AnnotateOptions
from quantpipe.annotate.topology import analyze
from quantpipe.errors import HardwareError
from quantpipe.graph.io import model_bytes
from quantpipe.graph.view import Graph
from quantpipe.oprules.cache_paths import caches_of, is_static
from tests.decoders.stepping import stated
from tests.ops.line import ArraySamples, Line, Net, hardware, load, normal_samples, schema_for

PLACES, WIDTH = 6, 8


def ring(places: int = PLACES) -> Net:
    """Return an attention over the last positions; each step replaces the oldest one."""
    net = Net(name="ring")
    x = net.input(None, 1, WIDTH)
    pasts = [net.input(None, places, WIDTH, name=f"past.{kind}") for kind in ("key", "value")]
    presents = []
    for past, kind in zip(pasts, ("key", "value"), strict=True):
        new = net.node("MatMul", x, net.floats(WIDTH, WIDTH, scale=0.4), name=f"{kind}_of")
        every = net.node("Concat", past, new, name=f"{kind}_joined", axis=1)
        ends = [net.constant(np.int64([n])) for n in (1, 1 << 30, 1)]
        presents.append(net.node("Slice", every, *ends, name=f"{kind}_last", output=f"present.{kind}"))
    query = net.node("MatMul", x, net.floats(WIDTH, WIDTH, scale=0.4), name="query_of")
    turned = net.node("Transpose", presents[0], name="turned", perm=[0, 2, 1])
    share = net.node("Softmax", net.node("MatMul", query, turned, name="scores"), name="share", axis=-1)
    net.output(net.node("MatMul", share, presents[1], name="mixed"), *presents)
    return net


def graph_of(places: int = PLACES) -> Graph:
    return load(ring(places))


def test_a_ring_is_found_by_its_ops() -> None:
    graph = graph_of()
    found = {cache.past: cache for cache in caches_of(graph)}
    assert {cache.past: cache.present for cache in found.values()} == {
        f"past.{kind}": f"present.{kind}" for kind in ("key", "value")
    }
    assert found["past.key"].keys and not found["past.value"].keys
    assert found["past.key"].nodes == ("key_joined", "key_last")
    assert all(is_static(graph, cache) for cache in found.values())


def test_an_input_that_no_attention_reads_is_no_cache() -> None:
    net = Net(name="plain")
    x, state = net.input(None, 1, WIDTH), net.input(None, PLACES, WIDTH, name="past.key")
    net.output(net.node("Concat", state, x, name="joined", axis=1, output="present.key"))
    net.output(net.node("MatMul", "present.key", net.floats(WIDTH, 2), name="dense"))
    assert not caches_of(load(net))


@pytest.mark.parametrize(("name", "form"), [("npu_w8a16", "integer"), ("qnn_htp", "integer"), ("ort_cpu", "qdq")])
def test_a_ring_goes_on_as_integers(name: str, form: str) -> None:
    """Ten steps in plain onnxruntime: the file's ring holds the last integers that it made, oldest first."""
    graph, spec = graph_of(), hardware(name)
    here = Line(graph, spec, schema_for(spec), normal_samples(graph))
    plan = here.plan(8)
    assert here.agree(plan, form).differing == 0
    model = here.realize(plan, form).model
    rows = {row["input"]: row for row in stated(model)}
    assert set(rows) == {"past.key", "past.value"}
    session = ort.InferenceSession(model_bytes(model))
    outputs = [o.name for o in session.get_outputs()]
    ring_of = {n: np.full((1, PLACES, WIDTH), row["zero_point"], row["stored"]) for n, row in rows.items()}
    made: dict[str, list[Any]] = {n: list(np.moveaxis(a, 1, 0)) for n, a in ring_of.items()}
    rng = np.random.default_rng(3)
    for _ in range(10):
        step = rng.standard_normal((1, 1, WIDTH)).astype(np.float32)
        found = dict(zip(outputs, session.run(None, {"x": step, **ring_of}), strict=True))
        ring_of = {past: found[row["output"]] for past, row in rows.items()}
        for past, array in ring_of.items():
            assert array.dtype == rows[past]["stored"]
            made[past].append(array[:, -1])
            np.testing.assert_array_equal(array, np.stack(made[past][-PLACES:], axis=1))


@pytest.mark.parametrize("length", [PLACES, PLACES + 1])
def test_a_ring_has_the_length_of_the_device(length: int) -> None:
    spec = hardware("npu_w8a16", cache={"keys": "int8", "length": length})
    graph = graph_of()
    if length == PLACES:
        assert len(analyze(graph, spec, schema_for(spec), AnnotateOptions()).caches) == 2
        return
    with pytest.raises(
        HardwareError, match=r"'past.key' has the shape \[1, 6, 8\], and npu_w8a16 holds rings of 7 pos"
    ):
        analyze(graph, spec, schema_for(spec), AnnotateOptions())


def test_a_cache_that_grows_fits_no_ring() -> None:
    net = Net(name="grows")
    x, past = net.input(None, 1, WIDTH), net.input(None, None, WIDTH, name="past.key")
    present = net.node("Concat", past, x, name="joined", axis=1, output="present.key")
    turned = net.node("Transpose", present, name="turned", perm=[0, 2, 1])
    net.output(net.node("MatMul", x, turned, name="scores"), present)

    def samples(graph: Graph) -> ArraySamples:
        rng = np.random.default_rng(1)
        shapes = {"x": (4, 1, WIDTH), "past.key": (4, 3, WIDTH)}
        return ArraySamples({n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()})

    spec = hardware("npu_w8a16", cache={"keys": "int8", "length": 8})
    with pytest.raises(HardwareError, match="grows with each step, and npu_w8a16 holds rings of 8 positions"):
        analyze(load(net, samples), spec, schema_for(spec), AnnotateOptions())
