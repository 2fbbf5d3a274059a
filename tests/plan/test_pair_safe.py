"""Weights without saturating pairs (`isa: any`): for all inputs, in recovery, and where integers are given."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantpipe.check import made_up
from quantpipe.check.host import host_warning
from quantpipe.check.lint import Severity, lint_model
from quantpipe.plan import UNSIGNED, Overrides, Problem, kernels_with_wide_pairs, rounded_pairs
from quantpipe.plan.pair_safe import SATURATES, _Scales, _smallest
from quantpipe.plan.saturating_pairs import kernel_order, pair_sums, saturates
from quantpipe.recover.reconstruct.gptq import ROUNDINGS, PairBound
from quantpipe.recover.reconstruct.layer import LayerOptions
from quantpipe.recover.reconstruct.layerwise import Effort, recover
from quantpipe.types import DType, Quantizer, WeightTensor
from quantpipe.verify import verify_folder
from tests.intake import quantized_files
from tests.ops.line import ArraySamples, Line, Net, hardware, line
from tests.recurrent.test_loops import frames, loop_of
from tests.verify.folders import changed, refreshed, write

MOST = 128


def worst_pair(rows: np.ndarray[Any, Any]) -> int:
    """The largest |Σ| that inputs of 0 or 255 give two neighbours, in plain Python."""
    worst = 0
    for row in rows.reshape(len(rows), -1).tolist():
        for a, b in zip(row[0::2], [*row[1::2], 0], strict=False):
            sums = (x * a + y * b for x in (0, 255) for y in (0, 255))
            worst = max(worst, *(abs(s) for s in sums))
    return worst


@pytest.mark.program
@settings(deadline=None)
@given(
    st.integers(1, 9),
    st.integers(0, 10_000),
    st.sampled_from([128, 129, 200, 253]),
)
def test_rounded_pairs_keep_to_their_limit_and_are_the_nearest(width: int, seed: int, most: int) -> None:
    steps = np.random.default_rng(seed).uniform(-140, 140, (3, width))
    found = rounded_pairs(steps, -127, 127, most)
    assert np.abs(found).max() <= 127 and pair_sums(found).max(initial=0) <= most
    for row, real in zip(found, steps, strict=True):
        for k in range(0, width - 1, 2):
            error = ((row[k : k + 2] - real[k : k + 2]) ** 2).sum()
            span = range(-127, 128)
            near = [a for a in span if abs(a - real[k]) < 40] or [127 if real[k] > 0 else -127]
            others = (
                (a - real[k]) ** 2 + (b - real[k + 1]) ** 2
                for a in near
                for b in span
                if abs(b - real[k + 1]) < 40 and not (a * b > 0 and abs(a + b) > most)
            )
            assert error <= min(others, default=np.inf) + 1.0  # one step of rounding between the two


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(1, 12), st.integers(0, 10_000), st.data())
def test_smallest_prices_come_as_a_stable_sort_gives_them(
    rows: int, width: int, seed: int, data: st.DataObject
) -> None:
    price = np.random.default_rng(seed).choice([-1.0, 0.0, 0.25, 0.5, np.inf], (rows, width))
    count = data.draw(st.integers(1, width))
    assert np.array_equal(_smallest(price, count), np.argsort(price, axis=1, kind="stable")[:, :count])


NETS = {
    "conv": lambda net, x: net.node("Conv", x, net.signs(8, 6, 3, 3, scale=0.4), net.floats(8), name="first"),
    "odd": lambda net, x: net.conv(net.conv(x, 6, 5, 1, 1), 5, 7, 3, 3, name="first"),
    "grouped": lambda net, x: net.node("Conv", x, net.signs(8, 3, 3, 3, scale=0.4), name="first", group=2),
    "transposed": lambda net, x: net.node("ConvTranspose", x, net.signs(6, 4, 2, 2, scale=0.4), name="first"),
}


def made_of(name: str, **changes: Any) -> Line:
    net = Net(seed=11)
    net.output(net.node("Relu", NETS[name](net, net.input(None, 6, 6, 6))))
    return line(net, hardware("ort_cpu", **changes))


@pytest.mark.parametrize("granularity", ["per_channel", "per_tensor"])
@pytest.mark.parametrize("name", NETS)
def test_no_input_drives_a_pair_out_of_int16(name: str, granularity: str) -> None:
    weights = {"symmetric": True, "granularity": [granularity], "bits": 8, "narrow": True}
    made = made_of(name, weights=weights)
    free = made_of(name, isa="vnni", weights=weights)
    plan, other = made.plan(8), free.plan(8)
    assert kernels_with_wide_pairs(free.graph, free.topology, other), "the net is one that would saturate"
    assert not kernels_with_wide_pairs(made.graph, made.topology, plan)
    for weight in plan.weights.values():
        axis = made.topology.weight_of[weight.tensor].channel_axis
        rows = kernel_order(weight.values, axis)
        assert weight.dtype is DType.INT8 and (rows is None or worst_pair(rows) <= DType.INT16.qmax)
        assert rows is not None or np.abs(weight.values).max() <= MOST // 2
    assert made.agree(plan, "qdq").differing == 0


def test_planners_of_one_graph_share_what_they_make() -> None:
    """The search, the plan of its result and the comparisons each have a planner."""
    made = made_of("conv")
    topology = replace(made.topology)
    one, other = (
        Problem(made.graph, t, made.spec, made.schema).plan(made.strategy()) for t in (made.topology, topology)
    )
    weights = [w for w in one.weights.values() if w is other.weights[w.tensor]]
    raised = {row["tensor"] for row in one.raised if row["reason"] == SATURATES}
    assert raised and {w.tensor for w in weights} == raised
    again = made_of("conv")
    assert all(again.plan(8).weights[t] is not one.weights[t] for t in raised)  # another graph


def test_less_than_half_of_what_seven_bits_cost_is_lost() -> None:
    def lost(**changes: Any) -> float:
        made = made_of("odd", **changes)
        wanted, found = made.outputs(), made.outputs(made.realize(made.plan(8), "qdq").model)
        return sum(float(np.sum((wanted[n] - found[n]) ** 2)) for n in wanted)

    exact, seven = lost(isa="vnni"), lost(isa="vnni", weights={**WEIGHTS, "reduce_range": True})
    assert lost() - exact < 0.5 * (seven - exact)


WEIGHTS = {"symmetric": True, "granularity": ["per_channel"], "bits": 8, "narrow": True}


@pytest.mark.parametrize("how", ROUNDINGS)
def test_roundings_of_recovery_keep_to_the_limit(how: str) -> None:
    rng = np.random.default_rng(4)
    groups, outs, width = 2, 3, 11
    x = rng.standard_normal((groups, width, 64))
    hessian = x @ x.transpose(0, 2, 1) / 64 + 0.01 * np.eye(width)
    target = rng.uniform(-1, 1, (groups, outs, width))
    order = rng.permutation(width)
    scales = np.stack([np.full((groups, outs), s) for s in (1 / 127, 1.3 / 127)])
    bounds = (np.full((groups, outs), -127.0), np.full((groups, outs), 127.0))
    free, _ = ROUNDINGS[how](hessian, None)(target, scales, bounds)
    found, errors = ROUNDINGS[how](hessian, PairBound(order, MOST))(target, scales, bounds)
    assert pair_sums(free[..., order]).max() > MOST >= pair_sums(found[..., order]).max()
    assert np.all(errors >= 0) and found.shape == free.shape


def given_line(isa: str = "any") -> Line:
    """A net whose int8 weights are given by another tool, over their full range."""
    return line(quantized_files.qdq(), hardware("ort_cpu", isa=isa))


def test_given_integers_are_exact_as_uint8_and_named() -> None:
    made = given_line()
    plan = made.plan(8)
    given_int8 = given_line("vnni").plan(8)
    for name, weight in plan.weights.items():
        assert weight.dtype is DType.UINT8
        np.testing.assert_array_equal(weight.centred(), given_int8.weights[name].centred())
        np.testing.assert_array_equal(weight.scale, given_int8.weights[name].scale)
    assert len(plan.raised) == len(plan.weights) and all(row["reason"].endswith(UNSIGNED) for row in plan.raised)
    told = host_warning(made.graph, made.topology, plan, made.spec)
    assert told is not None and f"({sum(row['channels'] for row in plan.raised)} channels)" in told
    assert told.endswith("use import.keep=scales")
    assert all(made.agree(plan, form).differing == 0 for form in ("qdq", "qoperator", "integer"))


def test_recovered_integers_of_another_isa_are_exact_as_uint8_with_a_remedy_of_their_own() -> None:
    made, free = made_of("conv"), made_of("conv", isa="vnni").plan(8)
    overrides = Overrides(dict(free.weights), {})
    plan = made.planner.plan(made.strategy(), overrides)
    assert plan.raised and all(row["reason"].endswith(UNSIGNED) for row in plan.raised)
    told = host_warning(made.graph, made.topology, plan, made.spec)
    assert told is not None and told.endswith("search and recover again with this hardware file")
    assert made.agree(plan, "qdq").differing == 0


def test_pairs_are_verified_for_all_inputs(tmp_path: Path) -> None:
    """A file with saturating pairs is found, unless it names the session option that makes its sums exact."""
    safe, free = made_of("conv"), made_of("conv", isa="vnni")
    assert verify_folder(write(safe, safe.plan(8), "qdq", tmp_path / "safe")).wrong is None
    root = write(free, free.plan(8), "qdq", tmp_path / "free", isa="any")
    assert verify_folder(root).wrong is None
    path = root / "realize" / "model.onnx"
    model = onnx.load(path)
    del model.metadata_props[:]
    onnx.save(model, path)
    refreshed(root)
    assert "saturate in int16" in (verify_folder(root).wrong or "")


def test_lint_counts_channels_of_other_tools_that_saturate(tmp_path: Path) -> None:
    path = tmp_path / "given.onnx"
    onnx.save(quantized_files.qdq(), path)
    notes = [
        f
        for f in lint_model(path, hardware("ort_cpu"), lambda inputs: made_up(inputs, {})).findings
        if f.rule == "pairs"
    ]
    assert len(notes) == 1 and all(f.severity is Severity.NOTE and "saturate in int16" in f.message for f in notes)
    assert not [
        f
        for f in lint_model(path, hardware("ort_cpu", isa="vnni"), lambda inputs: made_up(inputs, {})).findings
        if f.rule == "pairs"
    ]


@settings(deadline=None, max_examples=25)
@given(
    st.integers(2, 11),
    st.integers(0, 10_000),
    st.booleans(),
    st.sampled_from([0, 3, 128]),
)
def test_weights_stay_safe_where_rounding_makes_up_for_limits(
    width: int, seed: int, per_channel: bool, zero_point: int
) -> None:
    """Inputs that are never negative: weights next to a tie move, and none of them beyond the limit of its pair."""
    rng = np.random.default_rng(seed)
    real = (rng.choice([1.0, -1.0], (5, 1)) * rng.uniform(0.4, 1.0, (5, width))).astype(np.float32)
    scale = np.abs(real).max(axis=1) / 127 if per_channel else np.asarray(np.abs(real).max() / 127)
    each = scale[:, None] if per_channel else scale
    codes = np.rint(real / each).astype(np.int8)
    weight = WeightTensor("w", codes, scale.astype(np.float32), 0 if per_channel else None, DType.INT8, 8)
    data = Quantizer("x", np.float32(1), zero_point, DType.UINT8, 8, 0, 255)
    made = _Scales(weight, real, 0, data, power_of_two=False).chosen()
    assert pair_sums(made.values.astype(np.int64)).max() <= MOST and np.abs(made.values.astype(int)).max() <= 127
    assert not saturates(made.values, 0, 255)


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 9),
    st.integers(1, 40),
    st.integers(0, 10_000),
    st.booleans(),
    st.sampled_from([0, 3, 128]),
    st.booleans(),
)
def test_shares_that_are_not_tried_are_no_better(
    channels: int, width: int, seed: int, last: bool, zero_point: int, known: bool
) -> None:
    """Each channel gets the first share of smallest error, as if every share were tried for all channels."""
    rng = np.random.default_rng(seed)
    real = (rng.standard_normal((channels, width)) * rng.choice([0.0, 0.1, 1.0], (channels, width))).astype(np.float32)
    scale = np.maximum(np.abs(real).max(axis=1) / 127, 1e-6).astype(np.float32)
    codes = np.rint(real / scale[:, None]).astype(np.int8)
    axis = int(last)
    real, codes = (np.ascontiguousarray(one.T) if last else one for one in (real, codes))
    data = Quantizer("x", np.float32(1), zero_point, DType.UINT8, 8, 0, 255)
    scales = _Scales(WeightTensor("w", codes, scale, axis, DType.INT8, 8), real, axis, data, power_of_two=False)
    if known:  # bounds from the same weight with another input
        other, bounds = replace(data, zero_point=77), scales._bounds
        weight = WeightTensor("w", codes, scale, axis, DType.INT8, 8)
        _Scales(weight, real, axis, other, power_of_two=False, bounds=bounds).chosen()
        assert bounds
    every = [scales._tried(slice(None), share) for share in scales._shares]
    best = np.array([errors for _, _, errors in every]).argmin(axis=0)
    made = scales.chosen()
    rows = made.values.T if last else made.values
    for channel, number in enumerate(best):
        assert made.scale[channel] == every[number][1][channel]
        assert np.array_equal(rows[channel], every[number][0][channel])


@pytest.mark.parametrize("how", ROUNDINGS)
@pytest.mark.parametrize("name", NETS)
def test_recovered_weights_are_safe_as_int8(name: str, how: str) -> None:
    """Nothing is left for uint8: the order of pairs in recovery is that of the kernels."""
    net = Net(seed=5)
    x = net.node("Relu", net.conv(net.input(None, 3, 7, 7), 3, 6, 2, 2))
    x = net.conv(x, 6, 8, 3, 3, name="first") if name == "conv" else NETS[name](net, x)
    net.output(net.node("Relu", x))
    made = line(net, hardware("ort_cpu"))
    options = LayerOptions(rounding=how)
    found = recover(made.problem, made.strategy(), made.samples, options, effort=Effort(2048, 256))
    plan = made.planner.plan(made.strategy(), found.overrides)
    assert set(plan.weights) <= set(found.overrides.weights) | {"c1"}
    assert all(w.dtype is DType.INT8 for w in plan.weights.values()) and not plan.raised
    assert not kernels_with_wide_pairs(made.graph, made.topology, plan)


def test_weights_in_blocks_are_safe() -> None:
    weights = {"symmetric": True, "granularity": ["per_channel"], "bits": 4, "narrow": True}
    block = {"block": {"size": 16, "multiplier_bits": 4}}
    found = {}
    for isa in ("any", "vnni"):
        net = Net(seed=3)
        weight = net.signs(8, 32, 3, 3, scale=0.4)
        net.output(net.node("Conv", net.input(None, 32, 4, 4), weight, name="first"))
        made = line(net, hardware("ort_cpu", isa=isa, weights=weights | block), min_bits=2)
        plan = made.plan()
        assert all(w.block is not None for w in plan.weights.values())
        found[isa] = kernels_with_wide_pairs(made.graph, made.topology, plan)
    assert found == {"any": [], "vnni": ["first"]}


@pytest.mark.parametrize("isa", ["any", "vnni", "avx2"])
def test_products_of_loops_never_saturate(isa: str) -> None:
    graph = loop_of("LSTM")
    made = line(graph, hardware("ort_cpu", isa=isa), samples=ArraySamples({"x": frames(8)}))
    plan = made.plan(8)
    (site,) = made.topology.loops
    state = plan.quantizers[site.state]
    for _, tensor in site.products:
        weight = plan.weights[tensor]
        assert weight.dtype is (DType.INT8 if isa == "any" else DType.UINT8)
        assert weight.dtype is DType.UINT8 or not saturates(weight.values, 1, state.qmax)
    reasons = {row["reason"] for row in plan.raised if row["tensor"] in {t for _, t in site.products}}
    assert any(reason.endswith(UNSIGNED) for reason in reasons) == (isa != "any")


def test_another_largest_pair_in_the_certificate_is_found(tmp_path: Path) -> None:
    made = made_of("conv")
    root = write(made, made.plan(8), "qdq", tmp_path)

    def smaller(content: Any) -> None:
        content["kernels"]["first"]["pairs"]["largest"] -= 1

    changed(root, "certificate.json", smaller)
    assert "pairs" in (verify_folder(root).wrong or "")
