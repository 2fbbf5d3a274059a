"""Weights recovered on the float model's own inputs: their moments, and what they do for candidates."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from quantpipe.graph.execute import Session
from quantpipe.graph.outputs import with_outputs
from quantpipe.graph.view import Graph
from quantpipe.plan import NO_OVERRIDES
from quantpipe.recover import LayerOptions, Moments, Variants, float_moments
from quantpipe.recover.reconstruct import variants as module
from quantpipe.recover.reconstruct.prepare import WeightLayer, layer_of
from quantpipe.types import Kernel, Topology
from tests.ops.line import Line
from tests.recover.test_recover_walk import digits, kl, same

ROUNDING = LayerOptions(propagate=False)


@cache
def moments(name: str, bits: int = 8) -> dict[str, Moments]:
    made = digits(name, bits)
    return float_moments(made.graph, made.topology, made.samples, 2048, memory_mb=256, seed=0)


def variants(name: str, bits: int = 8) -> tuple[Line, Variants]:
    made = digits(name, bits)
    found = Variants(
        made.graph, made.topology, made.schema, made.planner, moments=moments(name, bits), options=ROUNDING
    )
    return made, found


def test_moments_of_a_dense_layer_are_its_inputs_covariance() -> None:
    made = digits("ort_cpu")
    node = next(n for n in made.graph.nodes if n.op == "Gemm")
    (batch,) = made.samples.batches(len(made.samples))
    x = Session(with_outputs(made.graph.model, [node.inputs[0]])).run(batch.inputs)[node.inputs[0]]
    found = moments("ort_cpu")[node.inputs[1]]
    assert found.rows == len(x)
    np.testing.assert_allclose(found.hessian[0], np.cov(x.astype(np.float64).T, bias=True), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.mean[0], x.mean(axis=0), rtol=1e-5, atol=1e-6)


def test_moments_do_not_depend_on_the_memory() -> None:
    made = digits("ort_cpu")
    found = float_moments(made.graph, made.topology, made.samples, 2048, memory_mb=1, seed=0)
    for tensor, known in moments("ort_cpu").items():
        np.testing.assert_array_equal(found[tensor].hessian, known.hessian)
        assert found[tensor].rows == known.rows


def test_every_weight_of_a_matrix_product_has_moments() -> None:
    made = digits("ort_cpu")
    assert set(moments("ort_cpu")) == {k.weight for k in made.topology.kernels if k.weight}


@pytest.mark.parametrize(("name", "bits"), [("ort_cpu", 4), ("vta", 7)])
def test_few_bits_lose_less_than_by_rounding_to_the_nearest(name: str, bits: int) -> None:
    made, found = variants(name, bits)
    assert kl(made, found.overrides(made.strategy(8))) < 0.7 * kl(made, NO_OVERRIDES)


def test_what_was_asked_before_plays_no_part() -> None:
    made, first = variants("ort_cpu")
    _, second = variants("ort_cpu")
    forward = {b: first.overrides(made.strategy(b)) for b in (8, 4, 2)}
    backward = {b: second.overrides(made.strategy(b)) for b in (2, 4, 8)}
    assert all(same(forward[b], backward[b]) for b in forward)


def test_integers_are_made_once_per_tensor_and_bits() -> None:
    made, found = variants("ort_cpu")
    full, low = made.strategy(8), made.strategy(4)
    some = next(iter(moments("ort_cpu")))
    mixed = replace(full, bits={**full.bits, some: 4}, weights={**full.weights, some: low.weights[some]})
    a, b, c = (found.overrides(s).weights for s in (full, low, mixed))
    assert c[some] is b[some]
    assert all(c[t] is a[t] for t in c if t != some)


def test_biases_fit_at_any_width_of_the_activations() -> None:
    made, found = variants("ort_cpu")
    full = made.strategy(8)
    for bits in range(2, 9):
        few = made.strategy(bits)
        groups = {g.key for g in made.topology.groups}
        both = {**full.bits, **{k: b for k, b in few.bits.items() if k in groups}}
        strategy = replace(full, bits=both, ranges=few.ranges)
        assert made.planner.plan(strategy, found.overrides(strategy)).weights


def test_layers_are_looked_up_once_per_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    made, found = variants("ort_cpu")
    asked: list[str | None] = []

    def counted(graph: Graph, topology: Topology, kernel: Kernel) -> WeightLayer | None:
        asked.append(kernel.weight)
        return layer_of(graph, topology, kernel)

    monkeypatch.setattr(module, "layer_of", counted)
    for bits in (8, 4, 8):
        asked.clear()
        found.overrides(made.strategy(bits))
        assert sorted(map(str, asked)) == sorted(moments("ort_cpu"))
