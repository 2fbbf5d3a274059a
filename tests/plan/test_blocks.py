"""Weights in blocks: integers against fractions of the blocks, in every form, and what the checker finds of them."""

from __future__ import annotations

import itertools
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from quantpipe.errors import ArtifactError, HardwareError
from quantpipe.hardware.cost import stored_bytes
from quantpipe.hardware.load import load_hardware
from quantpipe.plan.weight_blocks import as_weight, in_blocks, rows_of
from quantpipe.recover.reconstruct.layer import LayerOptions
from quantpipe.recover.reconstruct.layerwise import Effort, recover
from quantpipe.recover.stored import overrides_arrays, overrides_from_arrays
from quantpipe.types import Blocks, DType, HardwareSpec, PowerOfTwo, Symmetry, TensorSchema
from quantpipe.verify import verify_folder
from tests.ops.line import Line, Net, hardware, hardware_data, line
from tests.simulate.test_against_interpreter import check
from tests.verify.folders import constants, read, with_constant, write

BLOCKS = {"size": 16, "multiplier_bits": 4}


def device(shipped: str, *, symmetric: bool = True, bits: int = 4, block: dict[str, int] = BLOCKS) -> HardwareSpec:
    """A shipped device with weights in blocks."""
    weights = hardware_data(shipped)["weights"] | {"symmetric": symmetric, "bits": bits, "block": block}
    return hardware(shipped, weights=weights | {"narrow": symmetric})


def net() -> Net:
    """Convolutions of 20 and 40 channels, one of them depthwise, one in groups, and two dense layers."""
    made = Net(seed=3)
    x = made.input(None, 20, 4, 4)
    front = made.node("Relu", made.conv(x, 20, 40, 3, 3, pads=[1, 1, 1, 1]))
    deep = made.conv(front, 40, 40, 3, 3, pads=[1, 1, 1, 1], group=40)
    joined = made.node("Add", made.conv(deep, 40, 40, 1, 1, group=2), front)
    pooled = made.node("Flatten", made.node("GlobalAveragePool", joined))
    made.output(made.dense(made.dense(pooled, 40, 20, trans=0), 20, 6, trans=1))
    return made


DEVICES = {
    "blocks": lambda: hardware("npu_w4_blocks"),
    "asymmetric": lambda: device("npu_w4_blocks", symmetric=False),
    "float multiplier": lambda: device("ort_cpu"),
    "16 bits": lambda: device("npu_w8a16", bits=3),
    "shift": lambda: device("vta"),
    "per tensor": lambda: device("vta", bits=2, block={"size": 8, "multiplier_bits": 6}),
}


@pytest.mark.sliced(4)
@pytest.mark.parametrize("name", DEVICES)
def test_every_form_holds_the_integers_of_plain_arithmetic(name: str) -> None:
    made = line(net(), DEVICES[name](), min_bits=2)
    bits = made.spec.weights.bits
    for plan in (made.plan(), made.ties((8, bits, 3), seed=2)):
        assert all(w.block is not None and w.bits <= bits for w in plan.weights.values())
        assert max(int(w.block.multiplier.max()) for w in plan.weights.values() if w.block is not None) > 1
        for form in ("qdq", "qoperator", "integer") if name == "float multiplier" else ("integer",):
            check(made, plan, form)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 21), st.integers(1, 3)),
    bits=st.integers(2, 8),
    more=st.integers(2, 5),
    size=st.sampled_from([8, 16]),
    affine=st.booleans(),
    power=st.booleans(),
    seed=st.integers(0, 99),
)
def test_every_integer_is_the_nearest_code_times_its_multiplier(
    shape: tuple[int, int, int], bits: int, more: int, size: int, affine: bool, power: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    rows = (rng.standard_normal(shape) * np.exp(rng.standard_normal((shape[0], shape[1], 1)))).astype(np.float32)
    schema = TensorSchema(
        symmetry=Symmetry.ASYMMETRIC if affine else Symmetry.SYMMETRIC,
        narrow=False,
        power_of_two=PowerOfTwo.UP if power else PowerOfTwo.NONE,
    )
    ends = (-np.abs(rows).max(axis=(1, 2)).astype(np.float64), np.abs(rows).max(axis=(1, 2)).astype(np.float64))
    dtype = DType.INT8 if bits + more <= 8 else DType.INT16
    values, scale, grid = in_blocks(rows, ends, bits, widest=dtype.qmax, blocks=Blocks(size, more), schema=schema)
    assert grid.multiplier.shape == (shape[0], -(-shape[1] // size))
    assert grid.multiplier.min() >= 1 and grid.multiplier.max() <= min(grid.most, (1 << more) - 1)
    assert grid.high - grid.low == (1 << bits) - 1 and np.abs(values).max() <= dtype.qmax
    for c, i, t in itertools.islice(np.ndindex(*shape), 60):
        m, z = int(grid.multiplier[c, i // size]), int(grid.zero_point[c, i // size])
        v = int(values[c, i, t])
        assert v % m == 0 and grid.low <= v // m + z <= grid.high
        # No other code of the block is nearer to the weight.
        real, step = Fraction(float(rows[c, i, t])), Fraction(float(scale[c])) * m
        best = min(abs(real - step * (q - z)) for q in range(grid.low, grid.high + 1))
        assert abs(real - step * (v // m)) <= best * (1 + Fraction(1, 1 << 20))


@pytest.mark.parametrize("axis", [0, 1])
def test_layouts_come_back(axis: int) -> None:
    weight = np.arange(120).reshape(4, 5, 2, 3)
    assert np.array_equal(as_weight(rows_of(weight, axis), weight.shape, axis), weight)


def uneven(bits: int = 4) -> tuple[NDArray[np.float32], TensorSchema]:
    """Channels whose blocks of 16 have ranges of 1 to 8."""
    rows = np.random.default_rng(0).standard_normal((8, 64, 1)) * np.repeat([1, 2, 4, 8], 16)[:, np.newaxis]
    return rows.astype(np.float32), TensorSchema()


def test_blocks_of_other_ranges_lose_less_than_channels() -> None:
    rows, schema = uneven()
    top = np.abs(rows).max(axis=(1, 2)).astype(np.float64)

    def lost(size: int) -> float:
        values, scale, _ = in_blocks(
            rows, (-top, top), 4, widest=DType.INT8.qmax, blocks=Blocks(size, 4), schema=schema
        )
        error = rows - values * scale.reshape(-1, 1, 1).astype(np.float64)
        return float(10 * np.log10(np.mean(rows[:, :16] ** 2) / np.mean(error[:, :16] ** 2)))

    assert lost(16) > lost(64) + 9  # the block of the least range has steps of an eighth


def wide_line(bits: int = 4) -> Line:
    return line(net(), hardware("npu_w4_blocks"), min_bits=2)


def test_recovery_stays_on_the_blocks_and_lowers_the_error(tmp_path: Path) -> None:
    made, errors = wide_line(), {}
    for rounding in ("gptq", "coordinate_descent", "nearest"):
        options = LayerOptions(rounding=rounding, propagate=False, own_bias=True)
        found = recover(made.problem, made.strategy(), made.samples, options, effort=Effort(2048, 256))
        assert len(found.layers) == 5 and set(found.overrides.weights) == set(made.topology.weight_of)
        errors[rounding] = [r["error_recovered"] for r in found.layers]
        assert all(r["error_recovered"] <= r["error_nearest"] * 1.001 for r in found.layers)
        plan = made.planner.plan(made.strategy(), found.overrides)
        check(made, plan, "integer")
        folder = verify_folder(write(made, plan, "integer", tmp_path / rounding))
        assert folder.wrong is None and folder.proved == folder.kernels
    assert sum(errors["gptq"]) < 0.95 * sum(errors["nearest"])
    assert sum(errors["coordinate_descent"]) < 0.95 * sum(errors["nearest"])
    back = overrides_from_arrays(overrides_arrays(found.overrides), made.topology, "here")
    again = made.planner.plan(made.strategy(), back)
    assert [w.digest for w in again.weights.values()] == [w.digest for w in plan.weights.values()]
    with pytest.raises(ArtifactError, match="in other blocks than it has here"):
        overrides_from_arrays(overrides_arrays(found.overrides), line(net(), "tflite_int8").topology, "here")


def test_a_changed_code_multiplier_or_claim_is_found(tmp_path: Path) -> None:
    made = wide_line()
    plan = made.plan()
    for number, (end, wrong) in enumerate({"_code4": "its weights", "_multiplier": "its weights"}.items()):
        root = write(made, plan, "integer", tmp_path / str(number))
        assert verify_folder(root).wrong is None
        name, value = next((n, v) for n, v in constants(root) if n.endswith(end))
        other = value.copy()
        other.flat[0] = 1 if value.flat[0] != 1 else 2
        with_constant(root, name, other)
        assert wrong in str(verify_folder(root).wrong)


def test_what_is_stored_is_codes_of_few_bits(tmp_path: Path) -> None:
    made = wide_line()
    plan = made.plan()
    root = write(made, plan, "integer", tmp_path)
    model = onnx.load(root / "realize" / "model.onnx")
    elements = sum(w.values.size for w in plan.weights.values())
    held = sum(len(t.raw_data) for t in model.graph.initializer if t.data_type == onnx.TensorProto.INT4)
    assert elements / 2 <= held <= elements / 2 + len(plan.weights)
    assert not any(t.name.endswith("weight_q") for t in model.graph.initializer)
    bits = made.strategy().bits
    counted = stored_bytes(made.topology, made.graph, made.spec, bits)
    blocks = sum(w.block.multiplier.size for w in plan.weights.values() if w.block is not None)
    assert counted == pytest.approx(elements / 2 + blocks / 2)
    entry = next(iter(read(root, "plan.json")["weights"].values()))
    assert entry["block"]["size"] == 32 and entry["bits"] == 4 and entry["dtype"] == "int8"


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "size": ({"block": {"size": 33, "multiplier_bits": 4}}, "weights.block.size is 33; legal are 8, 16, 32"),
    "flag": ({"block": {"size": True, "multiplier_bits": 4}}, "weights.block.size is True; legal are"),
    "kind": ({"block": 32}, "weights.block is 32, a float scale for each block, and no op multiplies"),
    "key": ({"block": {"length": 32}}, "weights.block.length is not a field"),
    "bits": ({"block": {"size": 32, "multiplier_bits": 1}}, "weights.block.multiplier_bits is 1; legal are integers"),
    "room": ({"block": {"size": 32, "multiplier_bits": 5}}, "is 5 with weights.bits=4, and ops multiply by int8"),
}


@pytest.mark.parametrize("mistake", BAD)
def test_mistakes_are_named(mistake: str) -> None:
    change, message = BAD[mistake]
    data = dict(hardware_data("npu_w4_blocks"))
    with pytest.raises(HardwareError) as caught:
        load_hardware(data | {"weights": data["weights"] | change})
    assert message in str(caught.value) and "\n" not in str(caught.value) and caught.value.exit_code == 2
