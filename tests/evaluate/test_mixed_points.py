"""Points that decide on the topology, too: every one is valid, its integers agree, its cost is what a count by hand
gives, and its score is that of the whole model."""

from __future__ import annotations

import pickle
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from quantpipe.hardware.cost import COSTS
from quantpipe.metrics.reference import objective_value, output_metrics, outputs_of
from quantpipe.scoring.candidate import EvaluatorKind
from quantpipe.simulate.simulator import Simulator
from quantpipe.types import Form, Point, Score
from tests.evaluate.mixed import Mixed, layers, residual
from tests.hardware.test_whole_line import digits
from tests.ops.line import ArraySamples, hardware, line

CONV_MACS, CONV_WEIGHTS = 5 * 6 * 6 * 27, 5 * 27
DENSE_MACS = DENSE_WEIGHTS = 180 * 4
SPECS = ["mixed_npu", "ort_cpu", "tensorrt", "int4_weights", "tflite_int8", "openvino_x86"]


@cache
def small(spec: str) -> Mixed:
    return Mixed(line(layers(), spec))


@cache
def net(spec: str) -> Mixed:
    made = line(residual(), spec)
    rng = np.random.default_rng(3)
    graph = replace(made.graph)
    graph.__dict__["batch_size"] = 8
    inputs = {
        i.name: rng.standard_normal((20, *[d or 1 for d in i.shape[1:]])).astype(np.float32) for i in graph.inputs
    }
    return Mixed(replace(made, graph=graph, samples=ArraySamples(inputs)))


@cache
def on_digits(spec: str) -> Mixed:
    graph, samples = digits()
    few = ArraySamples({k: v[:16] for k, v in samples.inputs.items()})
    return Mixed(line(graph, hardware(spec), samples=few))


@pytest.mark.grid
@pytest.mark.sliced(7)
@pytest.mark.parametrize("spec", SPECS)
def test_random_points_on_digits_agree(spec: str) -> None:
    mixed = on_digits(spec)
    structures = set()
    for point in mixed.points(6, seed=len(spec)):
        found = mixed.agreement(point)
        assert found.differing == 0, (mixed.space.decode(point), found)
        structures.add(mixed.strategy(point).structure)
    assert len(structures) > 4, "the points are of several topologies"


@pytest.mark.grid
@pytest.mark.parametrize("spec", SPECS)
def test_random_points_on_a_residual_net_agree(spec: str) -> None:
    mixed = net(spec)
    for point in mixed.points(12, seed=len(spec)):
        found = mixed.agreement(point)
        assert found.differing == 0, (mixed.space.decode(point), found)


@pytest.mark.grid
@pytest.mark.parametrize("spec", SPECS)
def test_the_ends_of_the_space_agree(spec: str) -> None:
    """Every structural choice alone at each of its options, and all of them at the last."""
    mixed, start = net(spec), net(spec).space.start
    first = len(start) - len(mixed.variants.choices)
    flips = [
        (*start[:i], o, *start[i + 1 :])
        for i in range(first, len(start))
        for o in range(1, len(mixed.space.choices[i].options))
    ]
    last = (*start[:first], *(len(c.options) - 1 for c in mixed.variants.choices))
    for point in [start, *flips, last]:
        assert mixed.agreement(point).differing == 0, mixed.space.decode(point)
    assert mixed.agreement(start).elements > 0


def test_a_model_all_in_float_is_the_model_itself() -> None:
    mixed = small("ort_cpu")
    point = mixed.point(float_conv="float", float_dense="float")
    topology, plan = mixed.planned(point)
    assert not topology.kernels and not plan.quantizers
    session, parameters = Simulator(mixed.made.graph, topology).prepare(plan)
    (expected,) = mixed.made.outputs().values()
    found = outputs_of(session, mixed.made.samples, 4, parameters)
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-5, atol=1e-6)


def cost(name: str, mixed: Mixed, point: Point) -> float:
    strategy = mixed.strategy(point)
    topology = mixed.variants.at(strategy.structure)
    found = COSTS[name](topology, mixed.made.graph, mixed.made.spec, strategy.bits)
    assert found == mixed.recipe(name).make().cost(point), "the evaluator counts the same"
    return found


def test_a_float_convolution_is_counted_at_32_bits() -> None:
    """mixed_npu at 16 bits. In float: conv, relu and flat, so x -> conv, the weight of conv, relu -> flat."""
    mixed = small("mixed_npu")
    point = mixed.point(float_conv="float")
    assert cost("bits", mixed, mixed.space.start) == 5 * 16
    assert cost("bits", mixed, point) == 3 * 32 + 2 * 16
    assert cost("weight_bytes", mixed, mixed.space.start) == (CONV_WEIGHTS + DENSE_WEIGHTS) * 2
    assert cost("weight_bytes", mixed, point) == CONV_WEIGHTS * 4 + DENSE_WEIGHTS * 2
    assert cost("bops", mixed, point) == CONV_MACS * 1024 + DENSE_MACS * 256
    in_integers = (CONV_MACS + DENSE_MACS) / 16 + ((CONV_WEIGHTS + DENSE_WEIGHTS) * 2 + (5 + 4) * 4) / 16
    assert cost("cycles", mixed, mixed.space.start) == pytest.approx(in_integers)
    in_float = CONV_MACS / 4 + CONV_WEIGHTS * 4 / 16 + DENSE_MACS / 16 + (DENSE_WEIGHTS * 2 + 4 * 4) / 16
    assert cost("cycles", mixed, point) == pytest.approx(in_float)
    assert cost("peak_activation_bytes", mixed, point) == (3 * 64 + 180) * 4, "x and the convolution's result"


def test_one_scale_is_less_to_load_than_one_per_channel() -> None:
    mixed = small("mixed_npu")
    (weight,) = (mixed.variants.base.kernel_of["dense"].weight,)
    saved = 3 * 4 / 16
    point = mixed.point(**{f"granularity_{weight}": "per_tensor"})
    assert cost("cycles", mixed, point) == pytest.approx(cost("cycles", mixed, mixed.space.start) - saved)
    assert cost("weight_bytes", mixed, point) == cost("weight_bytes", mixed, mixed.space.start)
    assert mixed.strategy(point).weights[weight].shape == ()
    assert mixed.strategy(mixed.space.start).weights[weight].shape == (4,)


def test_additions_are_counted_by_what_they_read() -> None:
    """first = point + relu(front). In float: both edges and the relu behind it, read twice, at 32 bits; handed on: the
    edge from `point` is none that is stored."""
    mixed = net("mixed_npu")
    start = cost("bits", mixed, mixed.space.start)
    assert cost("bits", mixed, mixed.point(add_first="residual_only")) == start - 16
    topology, _ = mixed.planned(mixed.point(add_first="residual_only"))
    forms = {o.tensor: o.form for o in topology.kernel_of["first"].operands}
    assert sorted(forms.values()) == [Form.QUANTIZED, Form.RAW]
    topology, _ = mixed.planned(mixed.point(add_first="none"))
    assert "first" not in topology.kernel_of and "it adds in float by the choice" in topology.float_nodes["first"].text
    # relu(front) and relu2's result stay stored for the layers that read them; of the addition's operands `point`'s
    # result is still stored, as the device gives no real one.
    stored = {t for g in topology.groups for t in g.tensors}
    assert {"point_out", "relu1_out", "relu3_out"} <= stored


def test_what_only_a_variant_stores_has_the_most_bits() -> None:
    """With the addition behind it handing accumulators on, `point` has a choice of bits without effect; a result that
    the default fuses away has none of its own."""
    mixed = small("mixed_npu")
    keys = {c.key for c in mixed.space}
    assert "bits:conv_out" not in keys
    made = Mixed(line(layers(), hardware("mixed_npu", ops=without_float_clamps())), kinds=("bits", "float"))
    low = {c.key: c.options[-1] for c in made.space if c.kind == "bits"}
    point = made.space.encode(made.space.decode(made.space.start) | low | {"float:conv": "float"})
    strategy = made.strategy(point)
    assert strategy.bits["conv_out"] == strategy.bits["relu_out"] == 4, "a part of the group of relu_out"
    assert made.agreement(point).differing == 0


def without_float_clamps() -> dict[str, object]:
    from tests.ops.line import hardware_data

    ops = dict(hardware_data("mixed_npu")["ops"])
    return ops | {op: [s for s in ops[op] if s["in"] != ["float32"]] for op in ("Relu", "Flatten")}


def whole(mixed: Mixed, point: Point) -> Score:
    """The oracle: one simulated graph, all samples, no section, nothing kept."""
    r, (topology, plan) = mixed.recipe(), mixed.planned(point)
    session, parameters = Simulator(r.graph, topology).prepare(plan)
    metrics = output_metrics(r.reference, outputs_of(session, r.samples, 8, parameters))
    return Score(objective_value("kl", metrics), r.make().cost(point), tuple(metrics.items()))


def close(found: Score, expected: Score) -> bool:
    """Islands of float arithmetic may be fused otherwise in a section than in the whole model."""
    return found.cost == expected.cost and np.isclose(found.value, expected.value, rtol=1e-3, atol=1e-7)


@pytest.mark.sliced(3)
@pytest.mark.parametrize("spec", ["mixed_npu", "ort_cpu", "tensorrt"])
def test_scores_are_those_of_the_whole_model(spec: str) -> None:
    mixed = net(spec)
    asked = mixed.points(10, seed=5)
    found = list(mixed.recipe().make()(asked))
    for point, score in zip(asked, found, strict=True):
        assert close(score, whole(mixed, point)), mixed.space.decode(point)


@pytest.mark.parametrize("kind", [EvaluatorKind.SIMULATED, EvaluatorKind.INTEGER])
def test_what_variants_share_changes_no_bit(kind: EvaluatorKind) -> None:
    """In turns between topologies, twice, and each by a measure of its own."""
    mixed = net("ort_cpu")
    asked = mixed.points(7, seed=9)
    alone = [next(mixed.recipe(kind=kind).make()([p])) for p in asked]
    measure = mixed.recipe(kind=kind).make()
    assert list(measure([*asked, *asked[::-1]])) == [*alone, *alone[::-1]]
    assert len(measure._chains) <= 4 < len({mixed.strategy(p).structure for p in asked})


def test_integer_sections_have_the_scores_of_simulated_ones() -> None:
    mixed = net("ort_cpu")
    asked = mixed.points(8, seed=11)
    pairs = zip(
        *(mixed.recipe(kind=k).make()(asked) for k in (EvaluatorKind.INTEGER, EvaluatorKind.SIMULATED)), strict=True
    )
    assert all(close(a, b) for a, b in pairs)


def test_a_recipe_that_was_sent_gives_the_same() -> None:
    mixed = net("mixed_npu")
    asked = mixed.points(3, seed=2)
    there = pickle.loads(pickle.dumps(mixed.recipe()))
    there.graph.__dict__["batch_size"] = 8
    assert list(there.make()(asked)) == list(mixed.recipe().make()(asked))
