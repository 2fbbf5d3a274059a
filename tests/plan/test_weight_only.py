"""Real numbers times integer weights in blocks: what the files hold, what they compute, and what the checker finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from quantpipe.check.compatibility import check as fit
from quantpipe.errors import HardwareError
from quantpipe.graph.execute import Session
from quantpipe.graph.session_options import REAL_ACTIVATIONS, carried
from quantpipe.hardware.cost import bops, stored_bytes
from quantpipe.hardware.load import load_hardware
from quantpipe.plan import Overrides, Problem, weight_blocks
from quantpipe.plan.planner import Planner
from quantpipe.plan.weight_blocks import integers, with_scales
from quantpipe.recover.reconstruct.layer import LayerOptions
from quantpipe.recover.reconstruct.layerwise import Effort, recover
from quantpipe.recover.stored import overrides_arrays, overrides_from_arrays
from quantpipe.types import DType, HardwareSpec, QuantPlan, Symmetry, TensorSchema
from quantpipe.verify import verify_folder
from tests.ops.line import Line, Net, hardware, hardware_data, line
from tests.verify.folders import constants, with_constant, write

FORMS = ("matmul_nbits", "qdq", "integer")
Array = NDArray[Any]


def device(*, bits: int = 4, block: int = 32, symmetric: bool = True, convs: bool = False) -> HardwareSpec:
    data = hardware_data("ort_matmul_nbits")
    weights = data["weights"] | {"bits": bits, "block": block, "symmetric": symmetric}
    conv = {"Conv": [{"in": ["float32", "int4"], "out": ["float32"]}]} if convs else {}
    return hardware("ort_matmul_nbits", weights=weights, ops=data["ops"] | conv)


def net(width: int = 70) -> Net:
    """A MatMul and two Gemm with bias, one of them transposed, with a Relu and a Softmax between them."""
    made = Net(seed=4)
    x = made.input(None, width)
    first = made.node(
        "Relu", made.node("MatMul", x, made.constant(made.rng.standard_normal((width, 40)).astype(np.float32)))
    )
    second = made.dense(first, 40, 33, trans=1)
    made.output(made.dense(made.node("Softmax", second, axis=-1), 33, 5, trans=0))
    return made


def conv_net() -> Net:
    made = Net(seed=5)
    x = made.input(None, 20, 5, 5)
    front = made.node("Relu", made.conv(x, 20, 24, 3, 3, pads=[1, 1, 1, 1]))
    made.output(made.node("GlobalAveragePool", made.conv(front, 24, 8, 1, 1, group=2)))
    return made


def expected(made: Line, plan: QuantPlan, tensor: str) -> Array:
    """The real weight, element by element, by the definition of a blocked DequantizeLinear."""
    weight, axis = plan.weights[tensor], 1 - made.topology.weight_of[tensor].channel_axis
    real = np.empty(weight.values.shape, np.float32)
    assert weight.block is not None
    for at in np.ndindex(*real.shape):
        block = (at[1 - axis], at[axis] // weight.block.size)
        code = int(weight.values[at]) - int(weight.block.zero_point[block])
        real[at] = np.float32(code) * weight.scale[block]
    return real


CASES = {
    "4 bits": (net, {}, "symmetric"),
    "8 bits": (net, {"bits": 8, "block": 16}, "symmetric"),
    "5 bits, asymmetric": (net, {"bits": 5, "symmetric": False}, "asymmetric"),
    "2 bits, asymmetric": (net, {"bits": 2, "block": 16, "symmetric": False}, "asymmetric"),
    "convolutions": (conv_net, {"convs": True, "block": 16, "symmetric": False}, "asymmetric"),
    "powers of two": (net, {}, "symmetric_with_power2_scale"),
}


@pytest.mark.sliced(4)
@pytest.mark.parametrize("case", CASES)
def test_every_form_computes_the_float_ops_of_the_real_weights(case: str, tmp_path: Path) -> None:
    make, how, schema = CASES[case]
    made = line(make(), device(**how), schema, min_bits=2)
    plan = made.plan(how.get("bits", 4))
    assert plan.weights and len(made.topology.weighted) == len(plan.weights) and not made.topology.kernels
    float_model = onnx.ModelProto.FromString(ir.to_proto(made.graph.model).SerializeToString())
    for tensor in float_model.graph.initializer:
        if tensor.name in plan.weights:
            tensor.CopyFrom(onnx.numpy_helper.from_array(expected(made, plan, tensor.name), tensor.name))
    wanted = made.outputs(ir.from_proto(float_model))
    for form in FORMS:
        rendered = made.realize(plan, form)
        found = made.outputs(rendered.model)
        for name, value in wanted.items():
            assert np.allclose(found[name], value, rtol=1e-5, atol=1e-5 * np.abs(value).max()), (form, name)
        agreement = made.agree(plan, form)
        assert agreement.differing == 0 and agreement.elements > 0
        root = write(made, plan, form, tmp_path / form)
        assert verify_folder(root).wrong is None, form
        ops = [n.op_type for n in rendered.model.graph]
        assert ("MatMulNBits" in ops) is (form == "matmul_nbits" and make is net)
        asks = form != "matmul_nbits" or make is conv_net
        assert carried(rendered.model) == (REAL_ACTIVATIONS if asks else {})


@settings(max_examples=30, deadline=None, derandomize=True)
@given(inputs=st.integers(1, 40), bits=st.integers(2, 8), affine=st.booleans(), seed=st.integers(0, 99))
def test_each_block_is_fitted_by_itself(inputs: int, bits: int, affine: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = (rng.standard_normal((3, inputs, 1)) + affine).astype(np.float32)
    schema = TensorSchema(symmetry=Symmetry.ASYMMETRIC if affine else Symmetry.SYMMETRIC, narrow=False)
    ends = (rows.min(axis=(1, 2)).astype(np.float64), rows.max(axis=(1, 2)).astype(np.float64))
    dtype = DType.INT4 if bits <= 4 else DType.INT8
    if not affine:
        ends = (-np.abs(rows).max(axis=(1, 2)).astype(np.float64), np.abs(rows).max(axis=(1, 2)).astype(np.float64))
    scale, grid = with_scales(rows, ends, bits, dtype, size=16, schema=schema)
    assert scale.shape == grid.zero_point.shape == (3, -(-inputs // 16)) and (grid.low, grid.high) == (
        -(1 << (bits - 1)),
        (1 << (bits - 1)) - 1,
    )
    for c, b in np.ndindex(*scale.shape):
        part = rows[c : c + 1, 16 * b : 16 * (b + 1)]
        own = tuple(e[c : c + 1] for e in ends)
        alone = with_scales(part, own, bits, dtype, size=16, schema=schema)
        assert alone[0][0, 0] == scale[c, b] and alone[1].zero_point[0, 0] == grid.zero_point[c, b]


@pytest.mark.sliced(2)
@pytest.mark.parametrize("affine", [False, True])
def test_a_large_weight_is_fitted_a_few_channels_at_a_time(affine: bool) -> None:
    rng, side = np.random.default_rng(0), 2100
    rows = rng.standard_normal((side + 40, side, 1)).astype(np.float32)
    schema = TensorSchema(symmetry=Symmetry.ASYMMETRIC if affine else Symmetry.SYMMETRIC, narrow=False)
    ends = (rows.min(axis=(1, 2)).astype(np.float64), rows.max(axis=(1, 2)).astype(np.float64))
    scale, grid = with_scales(rows, ends, 4, DType.INT4, size=32, schema=schema)
    codes = integers(rows, scale, grid, np.int8)
    last = slice(side + 20, None)
    alone, own = with_scales(rows[last], (ends[0][last], ends[1][last]), 4, DType.INT4, size=32, schema=schema)
    np.testing.assert_array_equal(scale[last], alone)
    np.testing.assert_array_equal(grid.zero_point[last], own.zero_point)
    np.testing.assert_array_equal(codes[last], integers(rows[last], alone, own))
    assert codes.dtype == np.int8 and codes.shape == rows.shape


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_fitted_scales_lose_less_than_any_share_of_the_range(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, schema = np.random.default_rng(bits), TensorSchema(narrow=False)
    rows = rng.standard_normal((60, 50, 1)).astype(np.float32)
    widest, importance = np.abs(rows).max(axis=(1, 2)).astype(np.float64), rng.uniform(0.1, 10, (1, 50, 1))
    lost = []
    for fits in (0, weight_blocks.FITS):
        monkeypatch.setattr(weight_blocks, "FITS", fits)
        ends = (-widest, widest)
        scale, grid = with_scales(rows, ends, bits, DType.INT8, size=16, schema=schema, importance=importance)
        steps = np.repeat(scale, 16, axis=1)[:, :50, None]
        squares = importance * (rows - integers(rows, scale, grid) * steps) ** 2
        lost.append(np.add.reduceat(squares.sum(axis=2), [0, 16, 32, 48], axis=1))
    assert (lost[1] <= lost[0] * 1.0001).all()
    assert lost[1].sum() < (0.995 if bits < 8 else 1) * lost[0].sum()


def test_recovery_halves_the_error_and_fits_a_file(tmp_path: Path) -> None:
    made = line(net(), device())
    strategy, float_outputs = made.strategy(4), made.outputs()

    def lost(plan: QuantPlan) -> float:
        found = made.outputs(made.realize(plan, "matmul_nbits").model)
        return sum(float(np.sum((found[n] - float_outputs[n]) ** 2)) for n in float_outputs)

    found = recover(made.problem, strategy, made.samples, LayerOptions(), effort=Effort(2048, 256))
    assert len(found.layers) == 3 and not found.overrides.biases
    back = overrides_from_arrays(overrides_arrays(found.overrides), made.topology, "here")
    plan = made.planner.plan(strategy, back)
    assert lost(plan) < 0.5 * lost(made.plan(4))
    assert verify_folder(write(made, plan, "matmul_nbits", tmp_path)).wrong is None
    assert made.agree(plan, "matmul_nbits").differing == 0


def test_blocks_of_recovered_weights_are_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    made = line(net(), device())
    plan = made.plan(4)

    def searched(*_: Any, **__: Any) -> None:
        raise AssertionError("recovery has given these weights")

    monkeypatch.setattr(weight_blocks, "with_scales", searched)
    problem = Problem(made.graph, made.topology, made.spec, made.schema)
    again = problem.plan(made.strategy(4), Overrides(dict(plan.weights), {}))
    assert all(again.weights[tensor] is weight for tensor, weight in plan.weights.items())


def test_what_is_changed_in_the_file_is_found(tmp_path: Path) -> None:
    made = line(net(), device(symmetric=False), "asymmetric")
    plan = made.plan(4)
    for form in ("matmul_nbits", "qdq"):
        root = write(made, plan, form, tmp_path / form)
        for end in ("_q", "_scale", "_zero_point"):
            name, value = next((n, v) for n, v in constants(root) if n.endswith(end) and v.size > 4)
            other = value.copy()
            other.flat[1] = other.flat[1] + 1 if other.flat[1] < 1 else other.flat[1] - 1
            with_constant(root, name, other)
            assert "its " in str(verify_folder(root).wrong), (form, end)
            with_constant(root, name, value)
            assert verify_folder(root).wrong is None
        model = onnx.load(root / "realize" / "model.onnx")
    assert form == "qdq" and any(n.op_type == "DequantizeLinear" for n in model.graph.node)


def test_costs_count_codes_and_scales_and_check_says_what_runs() -> None:
    made = line(net(), device())
    bits = made.strategy(4).bits
    shapes = [made.graph.shapes[w.tensor] for w in made.topology.weights]
    weights = sum(a * b for a, b in shapes)
    blocks = 40 * 3 + 33 * 2 + 5 * 2  # ceil(70 / 32), ceil(40 / 32), ceil(33 / 32) for each output
    assert stored_bytes(made.topology, made.graph, made.spec, bits) == pytest.approx(weights / 2 + 4 * blocks)
    assert bops(made.topology, made.graph, made.spec, bits) == weights * 4 * 32
    found = fit(made.graph, made.topology, made.spec, made.schema)
    assert found.exit_code == 3 and {r.op for r in found.refused} == {"Relu", "Softmax"}
    assert found.notes[-1].startswith("3 nodes multiply float inputs") or any(
        "3 nodes multiply" in n for n in found.notes
    )


def test_a_weight_with_another_reader_and_a_node_kept_in_float_stay_real() -> None:
    made = Net(seed=6)
    x, weight = made.input(None, 5), made.constant(made.rng.standard_normal((5, 5)).astype(np.float32))
    scaled = made.node("Mul", weight, made.node("ReduceMean", x, keepdims=0))
    shared = made.node("Add", made.node("MatMul", x, weight), made.node("ReduceMax", scaled, keepdims=0))
    made.output(made.dense(shared, 5, 3, trans=1))
    assert [k.op for k in line(made, device()).topology.weighted] == ["Gemm"]
    kept = line(net(), device(), float_ops=["MatMul"])
    assert [k.op for k in kept.topology.weighted] == ["Gemm", "Gemm"]


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no block": ({"weights": {"block": None}}, "is float32, int4: float inputs times integer weights"),
    "multiplier": ({"weights": {"block": {"size": 32, "multiplier_bits": 4}}}, "float inputs times integer weights"),
    "size": ({"weights": {"block": 48}}, "weights.block.size is 48; legal are 8, 16, 32, 64, 128, 256"),
    "unsigned": ({"ops": {"Gemm": [{"in": ["float32", "uint4"], "out": ["float32"]}]}}, "legal are int4 and int8"),
    "result": ({"ops": {"Gemm": [{"in": ["float32", "int4"], "out": ["int8"]}]}}, "ops.Gemm.out must be float32"),
    "nothing": ({"ops": {"Gemm": [{"in": ["float32"], "out": ["float32"]}]}}, "no op multiplies float inputs by int"),
    "bits": ({"weights": {"bits": 9}}, "weights.bits is 9, but no op multiplies by weights of more than 8 bits"),
}


@pytest.mark.parametrize("mistake", BAD)
def test_mistakes_are_named(mistake: str) -> None:
    change, message = BAD[mistake]
    data = dict(hardware_data("ort_matmul_nbits"))
    for part, content in change.items():
        data[part] = content if part == "ops" else data[part] | content
    with pytest.raises(HardwareError) as caught:
        load_hardware(data)
    assert message in str(caught.value) and "\n" not in str(caught.value) and caught.value.exit_code == 2


def test_a_session_by_itself_runs_the_packed_form_as_it_is() -> None:
    made = line(net(), device())
    plan = made.plan(4)
    model = made.realize(plan, "matmul_nbits").model
    feeds = next(iter(made.samples.batches(4))).inputs
    assert {n.op_type for n in model.graph if n.domain == "com.microsoft"} == {"MatMulNBits"}
    assert Session(model).run(feeds)


def test_scales_of_blocks_are_searched_once_for_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    made = line(net(), device())
    asked: list[int] = []

    def counted(*given: Any, **options: Any) -> Any:
        asked.append(1)
        return with_scales(*given, **options)

    monkeypatch.setattr("quantpipe.plan.weight_blocks.with_scales", counted)
    strategy = made.strategy(4)
    first, second = (Planner(made.graph, made.topology, made.spec, made.schema).plan(strategy) for _ in range(2))
    assert len(asked) == len(made.topology.weights)
    for tensor, weight in first.weights.items():
        assert np.array_equal(weight.values, second.weights[tensor].values)
        assert np.array_equal(weight.scale, second.weights[tensor].scale)
    other = next(iter(first.weights))
    value = made.graph.model.graph.initializers[other]
    value.const_value = ir.tensor(made.graph.constant(other) * np.float32(2), name=other)
    Planner(made.graph, made.topology, made.spec, made.schema).plan(strategy)
    assert len(asked) == len(made.topology.weights) + 1
