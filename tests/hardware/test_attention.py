"""Attention on every shipped hardware file: products with weights in integers, products of two activations there where
the file has types for them, and equal integers in any case."""

from __future__ import annotations

from math import prod

import onnx
import pytest

from quantpipe.graph.io import model_bytes
from quantpipe.types import DType
from tests.lint.test_lint import SHIPPED, attention
from tests.ops.line import Net, hardware_data, line, with_products

OF_ACTIVATIONS = {"scores", "mix"}


@pytest.mark.sliced(6)
@pytest.mark.parametrize("name", SHIPPED)
def test_attention(name: str) -> None:
    made = line(attention(), name)
    agreement = made.agree(made.plan(4 if name == "hago_int16_acc" else 8), hardware_data(name)["realize"])
    assert agreement.differing == 0 and agreement.max_lsb <= 1, agreement
    declared = [s for s in hardware_data(name)["ops"].get("MatMul", ()) if s["in"][0] != "float32"]
    products = {n.name for n in made.graph.nodes if n.op == "MatMul"}
    integer = {n for n in products if made.topology.node_conds[n]}
    if not declared:
        assert not integer
    elif name == "ort_cpu":
        assert integer == products - OF_ACTIVATIONS
        reasons = {made.topology.float_nodes[n].text for n in OF_ACTIVATIONS}
        assert reasons == {"ort_cpu prefers MatMul in float (ops)"}
    elif any((s.get("when") or {}).get("operands") == "activations" for s in declared):
        assert integer == products
    elif all((s.get("when") or {}).get("operands") == "weight" for s in declared):
        assert integer == products - OF_ACTIVATIONS
        reasons = {made.topology.float_nodes[n].text for n in OF_ACTIVATIONS}
        assert reasons == {"operands is activations, the device wants weight"}


def test_products_of_two_activations_in_integers() -> None:
    """What ort_cpu can and does not prefer."""
    made = line(attention(), with_products())
    agreement = made.agree(made.plan(8), "qdq")
    assert agreement.differing == 0 and agreement.max_lsb <= 1, agreement
    assert all(made.topology.node_conds[n] for n in OF_ACTIVATIONS)


def dense(transposed: int) -> Net:
    """A Gemm with its weight either way round, a MatMul, a convolution."""
    made = Net()
    x = made.node("Relu", made.dense(made.input(None, 12), 12, 10, trans=transposed, name="gemm"))
    x = made.node("Relu", made.node("MatMul", x, made.floats(10, 16, scale=0.4), name="matmul"))
    x = made.node("Reshape", x, made.constant([-1, 4, 2, 2]))
    made.output(made.conv(x, 4, 3, 1, 1, name="conv"))
    return made


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("form", ["qdq", "qoperator", "integer"])
def test_weights_of_four_bits_in_every_kind_of_layer(form: str, transposed: int) -> None:
    made = line(dense(transposed), "int4_weights")
    plan = made.plan()
    assert {w.dtype for w in plan.weights.values()} == {DType.INT4}
    assert all(w.values.min() >= -7 and w.values.max() <= 7 for w in plan.weights.values())
    assert len(plan.weights) == 3
    agreement = made.agree(plan, form)
    assert agreement.differing == agreement.behind_float == 0
    realized = onnx.load_from_string(model_bytes(made.realize(plan, form).model))
    packed = [t for t in realized.graph.initializer if t.data_type == onnx.TensorProto.INT4]
    # In whichever layout the kernel wants them; two to the byte.
    assert sorted(sorted(t.dims) for t in packed) == sorted(sorted(w.values.shape) for w in plan.weights.values())
    assert all(2 * len(t.raw_data) == prod(t.dims) for t in packed)


def test_attention_in_four_bits() -> None:
    """Every weight in 4 bits, both products of activations in 8, all of it equal; the float Softmax stands between."""
    made = line(attention(), "int4_weights")
    plan = made.plan()
    assert {w.dtype for w in plan.weights.values()} == {DType.INT4}
    stored = {made.topology.kernels[i].node for i in range(len(made.topology.kernels))}
    assert stored >= OF_ACTIVATIONS | {"query_product", "key_product", "value_product", "dense", "map", "last"}
    assert {plan.quantizers[t].dtype for t in ("query_out", "transpose1_out", "softmax_out")} == {DType.UINT8}
    for form in ("qdq", "qoperator", "integer"):
        agreement = made.agree(plan, form)
        assert agreement.differing == 0 and agreement.max_lsb <= 1, (form, agreement)
