"""The list of nodes that onnxruntime has no kernel of their own for."""

from __future__ import annotations

from typing import Any

import pytest

from quantpipe.realize.kernels import without_kernel
from tests.ops.line import hardware, line
from tests.ops.test_every_op import graph_of, line_of


def reasons(case: str, spec: str, form: str, bits: int = 8, **changes: Any) -> list[str]:
    made = line(graph_of(case), hardware(spec, **changes))
    return [r for entry in without_kernel(made.topology, made.plan(bits), form) for r in entry["reasons"]]


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_plain_models_of_the_default_target_have_kernels_throughout(form: str) -> None:
    for case in ("residual_projection", "conv_depthwise", "gemm_trans", "max_pool"):
        made = line_of(case, "ort_cpu", "auto")
        assert without_kernel(made.topology, made.plan(8), form) == []


@pytest.mark.parametrize(
    ("case", "spec", "form", "bits", "reason"),
    [
        ("conv_asymmetric_pads", "mixed_npu", "integer", 16, "int16 weights: products are made of bytes"),
        (
            "conv_asymmetric_pads",
            "mixed_npu",
            "integer",
            16,
            "int16 tensors: products are made of bytes",
        ),
        ("conv_asymmetric_pads", "int4_weights", "qdq", 4, "int4 weights: cast to a byte each at load"),
        ("conv_asymmetric_pads", "hago_int16_acc", "integer", 8, "an int16 accumulator that may wrap"),
        ("conv_asymmetric_pads", "vta", "integer", 8, "requantized by shift, half_up"),
        ("gemm_trans", "tflite_int8", "integer", 8, "requantized by fixed_point, double"),
        ("conv_asymmetric_pads", "ascend_acl", "integer", 8, "a zero point of each channel"),
        ("transposed_strides", "ort_cpu", "qdq", 8, "no integer kernel of the op"),
    ],
)
def test_each_reason(case: str, spec: str, form: str, bits: int, reason: str) -> None:
    assert any(r.startswith(reason) for r in reasons(case, spec, form, bits))


def test_saturating_pairs() -> None:
    found = reasons("conv_asymmetric_pads", "ort_cpu", "integer", isa="avx2")
    assert any("pairs of products" in r for r in found)
    assert not reasons("gemm_trans", "ort_cpu", "qoperator")
