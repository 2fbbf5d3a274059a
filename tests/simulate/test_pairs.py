"""Pairs of products that saturate in int16 (x86 without VNNI), against plain Python integers."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from quantpipe.errors import HardwareError
from quantpipe.evaluate.overflow import overflow_report
from quantpipe.graph.execute import Kernels, Session, pairs_saturate
from quantpipe.graph.normalize import expose
from quantpipe.simulate.simulator import Simulator, bind
from quantpipe.types import QuantPlan
from tests.ops.line import ArraySamples, Line, Net, hardware, hardware_data, line

BITS8 = {"symmetric": True, "granularity": ["per_channel"], "bits": 8, "narrow": True}


def sat(v: int) -> int:
    return min(max(v, -32768), 32767)


def paired(q: list[int], w: list[int]) -> int:
    """vpmaddubsw over neighbours, then exact; an odd end is paired with zero."""
    if len(q) % 2:
        q, w = [*q, 0], [*w, 0]
    return sum(sat(q[k] * w[k] + q[k + 1] * w[k + 1]) for k in range(0, len(q), 2))


def truth(made: Line, plan: QuantPlan, q: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The accumulators of the node "first" from its stored input, product by product."""
    node, kernel = made.graph.by_name["first"], plan.kernels["first"]
    weight, z = plan.weights[kernel.weight].values.astype(int), plan.quantizers["x"].zero_point
    bias = np.zeros(weight.shape[0], int) if kernel.bias is None else kernel.bias
    if weight.ndim == 2:
        rows = weight if node.attr("transB", 0) else weight.T
        found = [[paired(x.tolist(), w.tolist()) - z * int(w.sum()) for w in rows] for x in q.astype(int)]
        return np.asarray(found) + (0 if kernel.bias is None else bias)
    group, each = node.attr("group", 1), weight.shape[1]
    top, left, bottom, right = node.attr("pads", [0, 0, 0, 0])
    sh, sw = node.attr("strides", [1, 1])
    padded = np.pad(q.astype(int), ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=z)
    kh, kw = weight.shape[2:]
    high, wide = (padded.shape[2] - kh) // sh + 1, (padded.shape[3] - kw) // sw + 1
    acc = np.zeros((len(q), len(weight), high, wide), int)
    for n, o, y, x in itertools.product(*(range(s) for s in acc.shape)):
        first = o // (len(weight) // group) * each
        window = padded[n, first : first + each, y * sh : y * sh + kh, x * sw : x * sw + kw]
        xs, ws = window.transpose(1, 2, 0).reshape(-1).tolist(), weight[o].transpose(1, 2, 0).reshape(-1).tolist()
        acc[n, o, y, x] = paired(xs, ws) - z * sum(ws) + int(bias[o])
    return acc


def conv(into: int, out: int, kernel: int, **attrs: Any) -> Net:
    net = Net(seed=into + kernel)
    x = net.input(None, into, 6, 6)
    weight = net.signs(out, into // attrs.get("group", 1), kernel, kernel, scale=0.4)
    net.output(net.node("Conv", x, weight, net.floats(out), name="first", **attrs))
    return net


def dense(features: int, trans: int) -> Net:
    net = Net(seed=features)
    shape = (4, features) if trans else (features, 4)
    x = net.input(None, features)
    net.output(net.node("Gemm", x, net.signs(*shape, scale=0.4), net.floats(4), transB=trans, name="first"))
    return net


NETS = {
    "conv": conv(4, 6, 3, pads=[1, 1, 1, 1]),
    "odd number of products": conv(3, 4, 3, strides=[2, 1]),
    "pointwise": conv(7, 5, 1),
    "grouped": conv(6, 4, 3, group=2, pads=[0, 1, 1, 0]),
    "two outputs per input": conv(4, 8, 3, group=4, pads=[1, 1, 1, 1]),
    "dense": dense(31, 1),
    "dense, plain": dense(16, 0),
}


def lined(net: Net, isa: str = "avx2", **weights: Any) -> Line:
    spec = hardware("ort_cpu", isa=isa, weights=BITS8 | weights)
    made = line(net, spec)
    rng = np.random.default_rng(3)
    shape = (3, *[d or 1 for d in made.graph.inputs[0].shape[1:]])
    ends = np.where(rng.random(shape) < 0.7, 3.0, -1.0) * np.where(rng.random(shape) < 0.8, 1.0, 0.5)
    return line(made.graph, spec, samples=ArraySamples({"x": ends.astype(np.float32)}))


def accumulators(made: Line, plan: QuantPlan, backend: str | None) -> tuple[Any, Any]:
    """(stored input, accumulator after saturation) of the simulated or a realized graph."""
    batch = next(iter(made.samples.batches(3))).inputs
    if backend is None:
        simulation = made.simulate(plan)
        model = bind(simulation.rendered.model, simulation.weights)
        names = [simulation.rendered.integers["x"], "first_out_paired"]
        values = Session(expose(model, names)).run({**batch, **simulation.scalars})
        return values[names[0]] + plan.quantizers["x"].zero_point, values[names[1]]
    realized = made.realize(plan, backend)
    names = [realized.integers["x"], "first/less_pairs"]
    values = Session(expose(realized.model, names)).run(batch)
    return values[names[0]], values[names[1]]


@pytest.mark.parametrize("name", NETS)
def test_both_graphs_saturate_pair_by_pair(name: str) -> None:
    made = lined(NETS[name])
    plan = made.plan(8)
    for backend in (None, "integer"):
        q, acc = accumulators(made, plan, backend)
        expected = truth(made, plan, q)
        np.testing.assert_array_equal(acc, expected)
    assert made.agree(plan, "integer").differing == 0
    (entry,) = overflow_report(made.graph, made.topology, plan, made.simulate(plan), samples=made.samples)
    assert (entry["node"], entry["accumulator"], entry["overflow"]) == ("first", "int16", "saturate")
    assert entry["overflowed"] > 0


@pytest.mark.parametrize("name", NETS)
def test_seven_bits_never_saturate(name: str) -> None:
    made = lined(NETS[name], reduce_range=True)
    assert made.spec.weights.bits == 7
    plan = made.plan(8)
    assert plan.kernels["first"].pairs is None and np.abs(plan.weights[plan.kernels["first"].weight].values).max() <= 64
    assert all(made.agree(plan, form).differing == 0 for form in ("qdq", "qoperator", "integer"))


def test_depthwise_kernels_multiply_in_32_bits() -> None:
    assert lined(conv(6, 6, 3, group=6)).plan(8).kernels["first"].pairs is None


def matmul(features: int) -> Net:
    net = Net(seed=features)
    net.output(net.node("MatMul", net.input(None, features), net.signs(features, 4, scale=0.4), name="first"))
    return net


NATIVE = NETS | {
    "depthwise": conv(6, 6, 3, group=6),
    "dilated": conv(5, 6, 3, dilations=[2, 2], pads=[2, 2, 2, 2]),
    "matmul": matmul(33),
}


@pytest.mark.skipif(not pairs_saturate(), reason="needs an x86 CPU without VNNI")
@pytest.mark.parametrize("form", ["qdq", "qoperator"])
@pytest.mark.parametrize("name", NATIVE)
def test_such_a_cpu_saturates_the_same_pairs(name: str, form: str) -> None:
    """The kernels that onnxruntime takes of its own accord there, against what `isa: avx2` says of them."""
    paired, exact = (lined(NATIVE[name], isa) for isa in ("avx2", "vnni"))
    (batch,) = paired.samples.batches(3)
    simulation = paired.simulate(paired.plan(8))
    (expected,) = (
        Session(bind(simulation.rendered.model, simulation.weights))
        .run({**batch.inputs, **simulation.scalars})
        .values()
    )
    realized = exact.realize(exact.plan(8), form).model
    (native,) = Session(realized, kernels=Kernels.NATIVE, options={}).run(batch.inputs).values()
    (without,) = Session(realized).run(batch.inputs).values()
    np.testing.assert_array_equal(native, expected)
    assert (native != without).any() == (name != "depthwise")


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_forms_that_leave_it_to_the_cpu_are_refused(form: str) -> None:
    made = lined(NETS["conv"])
    with pytest.raises(HardwareError, match=r"first: \d+ pairs of its products can saturate.*reduce_range=true"):
        made.realize(made.plan(8), form)


@pytest.mark.parametrize("name", ["openvino_x86", "fbgemm"])
def test_shipped_files_for_such_cpus_cannot_saturate(name: str) -> None:
    assert hardware_data(name)["isa"] == "any"
    made = line(NETS["conv"], hardware(name, isa="avx2"))
    assert made.plan(8).kernels["first"].pairs is None


def test_a_search_simulates_them_too() -> None:
    """Sessions of a search take weights apart from their graph, and the bounds of int16 are scalars."""
    made = lined(NETS["conv"])
    plan = made.plan(8)
    (batch,) = made.samples.batches(3)
    session, scalars = Simulator(made.graph, made.topology).prepare(plan)
    simulation = made.simulate(plan)
    whole = Session(bind(simulation.rendered.model, simulation.weights))
    (found,), (expected,) = (s.run({**batch.inputs, **scalars}).values() for s in (session, whole))
    np.testing.assert_array_equal(found, expected)
