"""Values beyond the calibrated ranges: counted against what calibration cut off, with the right tensor named first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save

import quantpipe
from quantpipe.annotate.half import LEAST, below_half
from quantpipe.calibrate.collector import StatsCollector
from quantpipe.data import DigitsDataset
from quantpipe.evaluate.beyond_ranges import Clipped, _Sums, beyond_warnings, cut_off
from quantpipe.types import BeyondRow, QuantPlan, TableNumbers

QUICK: Any = {"evaluate": {"latency_runs": 1, "baseline": "none", "explain": "none"}}


def test_what_calibration_cut_off_is_what_its_values_say() -> None:
    values = np.random.default_rng(0).standard_normal(200_000)
    collector = StatsCollector("t")
    collector.update(values.astype(np.float32), 0)
    for low, high in ((-1.0, 2.0), (-2.5, 2.5), (-9.0, 9.0), (0.0, 1.0)):
        found = cut_off(collector.finish(), low, high)
        outside = values[(values < low) | (values > high)]
        lost = float(np.sum((outside - np.clip(outside, low, high)) ** 2) / np.sum(values**2))
        assert found is not None and found.share == pytest.approx(len(outside) / len(values), abs=2e-3)
        assert found.error == pytest.approx(lost, rel=0.02, abs=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64])
@pytest.mark.parametrize(("low", "high"), [(-9.0, 9.0), (-1.0, 2.0), (-3.0, 0.5), (0.0, 0.0), (4.0, 5.0)])
def test_what_is_beyond_is_what_float64_says(low: float, high: float, dtype: Any) -> None:
    found = np.random.default_rng(0).standard_normal((30, 4)) * 3
    found = np.clip(found, low, high) if low == -9.0 else found
    stored = found.astype(dtype)
    if dtype != np.int64:
        stored[3, 1], stored[5] = np.nan, np.inf
    sums = _Sums()
    sums.add(stored, low, high)
    real = stored.astype(np.float64).reshape(-1)
    real = real[np.isfinite(real)]
    outside = real[(real < low) | (real > high)]
    assert (sums.elements, sums.beyond) == (real.size, outside.size)
    assert sums.squares == float(np.einsum("i,i->", real, real))
    assert sums.lost == float(np.sum((outside - np.clip(outside, low, high)) ** 2))


def test_an_end_between_two_float32_numbers_is_not_rounded() -> None:
    """Rounded to float32, it would be the value itself, which is outside."""
    value = np.float32(0.1)
    sums = _Sums()
    sums.add(np.full(3, value), -1.0, float(value) - 1e-10)
    assert sums.beyond == 3 and sums.lost > 0
    sums.add(np.full(2, np.nan, np.float32), -1.0, 1.0)
    assert sums.elements == 3


def test_no_loss_has_no_sqnr() -> None:
    assert Clipped(0.0, 0.0).sqnr_db is None and Clipped(0.1, 0.01).sqnr_db == pytest.approx(20.0)


def row(tensor: str, far: bool) -> BeyondRow:
    return {
        "split": "evaluate", "tensor": tensor, "low": -1.0, "high": 1.0, "share": 0.25, "sqnr_db": 10.0,
        "cut_off": 0.001, "cut_off_sqnr_db": 40.0, "far": far,
    }  # fmt: skip


def test_the_first_tensor_in_graph_order_is_named() -> None:
    (said,) = beyond_warnings([row("a", False), row("b", True), row("c", True)])
    assert said.startswith("25 % of the elements of b") and "0.1 %" in said and "10.0 dB" in said and "c 25 %" in said
    assert not list(beyond_warnings([row("a", False)]))


def digits(factor: float) -> Any:
    splits = DigitsDataset().splits(quantpipe_ports(), 10, 0)
    arrays = [
        np.concatenate([b.inputs["image"] for b in s.batches(64)])[:64] for s in (splits.calibrate, splits.evaluate)
    ]
    return quantpipe.SampleSets(arrays[0][:32], arrays[1] * np.float32(factor), arrays[0][32:])


def quantpipe_ports() -> Any:
    from quantpipe.types import TensorInfo

    return [TensorInfo("image", (None, 1, 8, 8), "float32")]


@pytest.mark.program
@pytest.mark.parametrize("hardware", ["ort_cpu", "esp32p4"])
def test_a_shifted_evaluation_is_the_first_thing_said(hardware: str, tmp_path: Path) -> None:
    model = quantpipe.example_model()
    found = quantpipe.quantize(model, digits(1.5), hardware, folder=tmp_path / "shifted", **QUICK).report
    first = found["warnings"][0]
    assert "elements of image are beyond the calibrated range" in first and "evaluation samples" in first
    assert any(r["far"] and r["tensor"] == "image" and r["split"] == "evaluate" for r in found["beyond"])
    assert not any(r["far"] for r in found["beyond"] if r["split"] == "search")
    clean = quantpipe.quantize(model, digits(1.0), hardware, folder=tmp_path / "clean", **QUICK).report
    assert not any(r["far"] for r in clean["beyond"])
    assert not any("calibrated range" in said or "average hides" in said for said in clean["warnings"])


def chain(path: Path, factor: float) -> Path:
    """A chain of float16 nodes, of which onnxruntime's CPU kernels keep float32 between."""

    def held(name: str, values: Any) -> Any:
        return numpy_helper.from_array(np.asarray(values, np.float16), name)

    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["g"]),
        helper.make_node("Relu", ["g"], ["a"]),  # else the factors become weights
        helper.make_node("Mul", ["a", "big"], ["h"]),
        helper.make_node("Mul", ["h", "small"], ["s"]),
        helper.make_node("Relu", ["s"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["y"]),
    ]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT16, ["n", size]) for n, size in (("x", 8), ("y", 4))]
    held_values = {"w": rng.standard_normal((8, 16)), "b": np.zeros(16), "v": rng.standard_normal((16, 4))}
    constants = [held(n, v) for n, v in {**held_values, "big": factor, "small": 1 / factor}.items()]
    graph = helper.make_graph(nodes, "chain", [ports[0]], [ports[1]], constants)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)
    return path


def test_a_float16_chain_that_overflows_is_named_first(tmp_path: Path) -> None:
    x = np.random.default_rng(1).standard_normal((96, 8)).astype(np.float16)
    found = quantpipe.quantize(chain(tmp_path / "m.onnx", 30000.0), x, folder=tmp_path / "run", **QUICK).report
    assert "exceed 65504" in found["warnings"][0] and "is h," in found["warnings"][0]
    found = quantpipe.quantize(chain(tmp_path / "n.onnx", 100.0), x, folder=tmp_path / "run2", **QUICK).report
    assert not any("65504" in said for said in found["warnings"])


def test_subnormal_scales_of_float16_tables_are_named() -> None:
    from quantpipe.types import RowTable

    values, scale = np.zeros((4, 2), np.int8), np.array([1, 1, LEAST / 2, LEAST / 8], np.float32)
    table = RowTable("words", values, scale, None, 8, (4, 2), numbers=TableNumbers.FLOAT16)
    plan = QuantPlan.__new__(QuantPlan)
    object.__setattr__(plan, "tables", {"words": table})
    assert (said := below_half(plan)) is not None and said.startswith("2 of 4 scales of the table words")
    object.__setattr__(plan, "tables", {"words": replace(table, numbers=TableNumbers.FLOAT32)})
    assert below_half(plan) is None
