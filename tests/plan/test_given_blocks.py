"""Weights in blocks that onnxruntime's own quantizer made: codes, scales and zero points are taken over as they are."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnxruntime.quantization import QuantFormat
from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer

import quantpipe
from quantpipe.errors import ModelError
from quantpipe.intake.quantized.grids import unpacked
from quantpipe.types import HardwareSpec
from tests.ops.line import Line, Net, hardware, hardware_data, line

DEPTH, INNER, OUTPUTS = 70, 40, 24


def net() -> Net:
    """Two dense layers, the first of three blocks of 32 and the second of two, with a shorter last one each."""
    made = Net(seed=4)
    x = made.input(None, DEPTH)
    first, second = (
        made.constant(made.rng.standard_normal(shape).astype(np.float32))
        for shape in ((DEPTH, INNER), (INNER, OUTPUTS))
    )
    made.output(made.node("MatMul", made.node("Relu", made.node("MatMul", x, first)), second))
    return made


def quantized(bits: int, symmetric: bool, form: QuantFormat, *, block: int = 32, level: int = 1) -> onnx.ModelProto:
    how = DefaultWeightOnlyQuantConfig(
        block_size=block, is_symmetric=symmetric, accuracy_level=level, bits=bits, quant_format=form
    )
    tool = MatMulNBitsQuantizer(net().proto(), algo_config=how)
    tool.process()
    return tool.model.model


def device(bits: int, symmetric: bool, block: int = 32) -> dict[str, Any]:
    data = dict(hardware_data("ort_matmul_nbits"))
    data["weights"] = data["weights"] | {"bits": bits, "symmetric": symmetric, "block": block}
    return data


def spec(bits: int, symmetric: bool, block: int = 32) -> HardwareSpec:
    return hardware("ort_matmul_nbits", weights=device(bits, symmetric, block)["weights"])


def stored(model: onnx.ModelProto) -> list[tuple[np.ndarray, np.ndarray, np.ndarray | None]]:
    """Codes, scales and zero points of MatMulNBits nodes, in graph order, as they lie in the file."""
    held = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    nodes = [n for n in model.graph.node if n.op_type == "MatMulNBits"]
    return [tuple(held[n.input[i]] if i < len(n.input) and n.input[i] else None for i in (1, 2, 3)) for n in nodes]  # type: ignore[misc]


def written(made: Line, bits: int, form: str) -> onnx.ModelProto:
    return ir.to_proto(made.realize(made.plan(bits), form).model)


KINDS = [(4, True), (4, False), (8, True)]


def schema_of(symmetric: bool) -> str:
    return "symmetric" if symmetric else "asymmetric"


@pytest.mark.parametrize(("bits", "symmetric"), KINDS)
def test_a_packed_file_is_written_again_byte_by_byte(bits: int, symmetric: bool) -> None:
    """But for codes that fill up a last block, which multiply nothing; and it computes what the file computes."""
    given = quantized(bits, symmetric, QuantFormat.QOperator)
    made = line(given, spec(bits, symmetric), schema_of(symmetric))
    assert [w.frozen for w in made.topology.weights] == [True, True]
    again = written(made, bits, "matmul_nbits")
    found, wanted = stored(again), stored(given)
    assert len(found) == len(wanted) == 2
    for (codes, scale, zero), (own, steps, middle), depth in zip(found, wanted, (DEPTH, INNER), strict=True):
        used = depth * bits // 8
        assert np.array_equal(codes.reshape(len(codes), -1)[:, :used], own.reshape(len(own), -1)[:, :used])
        assert np.array_equal(scale.reshape(-1), steps.reshape(-1))
        assert (zero is None) == (middle is None) == symmetric
        if zero is not None and middle is not None:
            count = -(-depth // 32)
            low, high = (unpacked(z.reshape(len(own), -1), bits, count) for z in (zero, middle))
            assert np.array_equal(low, high)
    assert made.agree(made.plan(bits), "matmul_nbits").differing == 0
    x = {"x": np.random.default_rng(1).standard_normal((8, DEPTH)).astype(np.float32)}
    ours, theirs = (
        ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, x)[0]
        for m in (again, given)
    )
    assert np.array_equal(ours, theirs)


@pytest.mark.parametrize(("bits", "symmetric"), KINDS[:2])  # the tool writes no others
def test_a_dequantized_file_becomes_packed_with_its_codes(bits: int, symmetric: bool) -> None:
    """DequantizeLinear with block_size, whose scales the tool gives a sign."""
    given = quantized(bits, symmetric, QuantFormat.QDQ)
    made = line(given, spec(bits, symmetric), schema_of(symmetric))
    held = {t.name: t for t in given.graph.initializer}
    nodes = [n for n in given.graph.node if n.op_type == "DequantizeLinear"]
    plan = made.plan(bits)
    assert len(nodes) == len(plan.weights) == 2
    for node, weight in zip(nodes, plan.weights.values(), strict=True):
        codes, scale = (onnx.numpy_helper.to_array(held[node.input[i]]).astype(np.float32) for i in (0, 1))
        zero = np.zeros_like(scale)
        if len(node.input) > 2:
            zero = onnx.numpy_helper.to_array(held[node.input[2]]).astype(np.float32)
        middle = 0 if symmetric else 1 << (bits - 1)
        assert weight.block is not None and np.array_equal(weight.scale, scale.T)
        assert np.array_equal(weight.values, codes - middle)
        assert np.array_equal(weight.block.zero_point, (zero - middle).T if not symmetric else zero.T)
    assert made.agree(plan, "matmul_nbits").differing == 0


def test_a_block_of_zeros_is_kept_and_a_scale_that_is_no_number_refused_by_name() -> None:
    given = quantized(4, True, QuantFormat.QOperator)
    node = given.graph.node[0]
    held = next(t for t in given.graph.initializer if t.name == node.input[2])
    array = onnx.numpy_helper.to_array(held).copy()
    for value in (0.0, np.nan):
        array.reshape(-1)[3] = value
        held.CopyFrom(onnx.numpy_helper.from_array(array, held.name))
        if value == 0:
            made = line(given, spec(4, True))
            plan = made.plan(4)
            assert next(iter(plan.weights.values())).scale.reshape(-1)[3] == 0
            assert made.agree(plan, "matmul_nbits").differing == 0
    with pytest.raises(ModelError, match=rf"MatMulNBits '{node.name}': its scale is nan; legal are finite numbers"):
        line(given, spec(4, True))


@pytest.mark.program
def test_what_the_device_has_otherwise_is_rounded_anew_and_said(tmp_path: Path) -> None:
    path = tmp_path / "file.onnx"
    onnx.save(quantized(4, False, QuantFormat.QOperator, block=64), path)
    x = np.random.default_rng(3).standard_normal((48, DEPTH)).astype(np.float32)
    reasons = {}
    for name, target in {"size": device(4, False), "zero": device(4, True, 64), "kept": device(4, False, 64)}.items():
        schema = "symmetric" if name == "zero" else "asymmetric"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = quantpipe.quantize(
                path, x, target, schema=schema, folder=tmp_path / name, recover="none", precision="none",
                executor="serial", evaluate={"latency_runs": 1},
            )  # fmt: skip
        part = result.report["imported"]
        reasons[name] = [row["reason"] for row in part["changed"]]
        if name == "kept":
            assert part["weight_differing"] == 0 and part["weight_integers"] == DEPTH * INNER + INNER * OUTPUTS
            assert part["compared"]["outputs"][0]["differing"] == 0
    assert reasons["size"] == ["blocks of 64, and blocks have 32 here (hardware.weights.block=64)"]
    assert reasons["zero"] == ["zero points, and weights are symmetric here"] * 2 and not reasons["kept"]
