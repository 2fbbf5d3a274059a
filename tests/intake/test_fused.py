"""Fused ops of onnxruntime: written as ops of ONNX they give the numbers that onnxruntime gives for the fused op."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import onnxruntime.capi.onnxruntime_pybind11_state as schemas
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from quantpipe.errors import ModelError
from quantpipe.graph.execute import Session
from quantpipe.intake.load import load_graph, read_graph
from quantpipe.intake.output_difference import difference
from quantpipe.intake.rewrites.fused import FUSED, fused_written_out
from quantpipe.intake.rewrites.fused.blocked import DOMAIN, block
from quantpipe.intake.runnable import runnable
from tests.intake.fused_cases import DECODERS, MS, Array, B, Case, D, H, S, T, model, values

X4, W4 = values(B, 4, 6, 6), values(6, 4, 3, 3)
CONV = {"kernel_shape": [3, 3], "pads": [1] * 4}
X2, W2 = values(B, D), values(D, 4)
X3 = values(B, S, D)
QKV = {1: values(D, 3 * D), 2: values(3 * D)}
HEADS = {"num_heads": H}
KEEP = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 0, 1, 1, 0]], np.int32)
APART = {0: X3, 1: values(B, S, D, seed=1), 2: values(B, S, D, seed=2)}
CACHE = {6: values(B, H, T - S, D // H, seed=3), 7: values(B, H, T - S, D // H, seed=4)}
NORM = {2: values(D), 3: values(D, seed=1)}
WORDS = np.random.default_rng(0).integers(0, 9, (B, S)).astype(np.int32)
TABLES = {2: values(9, D), 3: values(16, D, seed=1), 5: values(D), 6: values(D, seed=1)}

CASES = {
    "conv": Case("FusedConv", {0: X4}, {1: W4, 2: values(6)}, CONV | {"activation": "Relu"}),
    "conv without activation": Case("FusedConv", {0: X4}, {1: W4}, {"strides": [2, 2], "group": 1}),
    "conv with z": Case(
        "FusedConv", {0: X4, 3: values(B, 6, 6, 6)}, {1: W4, 2: values(6)}, CONV | {"activation": "Relu"}
    ),
    "conv, z without bias": Case("FusedConv", {0: X4, 3: values(B, 6, 6, 6)}, {1: W4}, CONV),
    "conv, leaky": Case("FusedConv", {0: X4}, {1: W4}, CONV | {"activation": "LeakyRelu", "activation_params": [0.3]}),
    "conv, clip": Case("FusedConv", {0: X4}, {1: W4}, CONV | {"activation": "Clip", "activation_params": [-0.5, 0.75]}),
    "conv, clip, opset 9": Case(
        "FusedConv", {0: X4}, {1: W4}, CONV | {"activation": "Clip", "activation_params": [0.0, 6.0]}, opset=9
    ),
    "conv, hard sigmoid": Case(
        "FusedConv", {0: X4}, {1: W4}, CONV | {"activation": "HardSigmoid", "activation_params": [0.3, 0.4]}
    ),
    "conv, tanh": Case("FusedConv", {0: X4}, {1: W4}, CONV | {"activation": "Tanh"}),
    "conv, sigmoid": Case("FusedConv", {0: X4}, {1: W4}, CONV | {"activation": "Sigmoid"}),
    "channels last": Case("NhwcConv", {0: values(B, 6, 6, 4)}, {1: W4, 2: values(6)}, CONV, runs=False),
    "channels last, fused": Case(
        "NhwcFusedConv", {0: values(B, 6, 6, 4)}, {1: W4, 2: values(6)}, CONV | {"activation": "Relu"}, runs=False
    ),
    "pool, channels last": Case("NhwcMaxPool", {0: values(B, 6, 6, 4)}, {}, {"kernel_shape": [2, 2]}, runs=False),
    "matmul": Case("FusedMatMul", {0: X2}, {1: W2}, {"alpha": 0.5}),
    "matmul, transposed weight": Case("FusedMatMul", {0: X2}, {1: W2.T.copy()}, {"alpha": 0.5, "transB": 1}),
    "matmul, transposed data": Case("FusedMatMul", {0: values(B, D, S)}, {1: W2}, {"transA": 1}),
    "matmul of activations": Case("FusedMatMul", {0: X3, 1: values(B, S, D, seed=1)}, {}, {"alpha": 0.25, "transB": 1}),
    "matmul, batches moved": Case(
        "FusedMatMul",
        {0: values(4, 3, 2, 6), 1: values(3, 2, 5, 6, seed=1)},
        {},
        {"transBatchA": 1, "transB": 1, "alpha": 2.0},
    ),
    "matmul, both batches moved": Case(
        "FusedMatMul",
        {0: values(4, 3, 2, 6), 1: values(6, 3, 2, 5, seed=1)},
        {},
        {"transBatchA": 1, "transBatchB": 1},
    ),
    "transpose and matmul": Case("TransposeMatMul", {0: values(B, D, S)}, {1: W2}, {"transA": 1, "alpha": 3.0}),
    "gemm": Case("FusedGemm", {0: X2}, {1: W2, 2: values(4)}, {"activation": "Relu", "alpha": 2.0, "beta": 0.5}),
    "gemm, leaky": Case(
        "FusedGemm", {0: X2}, {1: W2, 2: values(4)}, {"activation": "LeakyRelu", "activation_alpha": 0.3}
    ),
    "gelu": Case("Gelu", {0: X3}),
    "gelu with bias": Case("BiasGelu", {0: X3}, {1: values(D)}),
    "fast gelu": Case("FastGelu", {0: X3}),
    "fast gelu with bias": Case("FastGelu", {0: X3}, {1: values(D)}),
    "quick gelu": Case("QuickGelu", {0: X3}),
    "quick gelu, alpha": Case("QuickGelu", {0: X3}, {}, {"alpha": 1.0}),
    "split gelu": Case("BiasSplitGelu", {0: values(B, S, 2 * D)}, {1: values(2 * D)}, runs=False),
    "bias add": Case("BiasAdd", {0: X3, 2: values(B, S, D, seed=1)}, {1: values(D)}, runs=False),
    "skip": Case("SkipLayerNormalization", {0: X3, 1: values(B, S, D, seed=1)}, NORM),
    "skip, opset 12": Case("SkipLayerNormalization", {0: X3, 1: values(B, S, D, seed=1)}, NORM, opset=12),
    "skip, bias and sum": Case(
        "SkipLayerNormalization",
        {0: X3, 1: values(B, S, D, seed=1)},
        NORM | {4: values(D, seed=2)},
        {"epsilon": 1e-5},
        outputs=4,
        skip=(1, 2),
    ),
    "skip, root mean square": Case(
        "SkipSimplifiedLayerNormalization",
        {0: X3, 1: values(B, S, D, seed=1)},
        {2: values(D), 3: values(D, seed=3)},
        outputs=4,
        skip=(1, 2),
    ),
    "root mean square": Case(
        "SimplifiedLayerNormalization", {0: X3}, {1: values(D)}, {"axis": -1, "epsilon": 1e-5}, domain=""
    ),
    "root mean square, opset 18": Case("SimplifiedLayerNormalization", {0: X3}, {1: values(D)}, domain="", opset=18),
    "early layer normalization": Case(
        "LayerNormalization", {0: X3}, {1: values(D), 2: values(D)}, {"axis": -1}, domain="", opset=13
    ),
    "embeddings": Case("EmbedLayerNormalization", {0: WORDS}, TABLES, outputs=2),
    "embeddings, segments, mask, sum": Case(
        "EmbedLayerNormalization",
        {0: WORDS, 1: (WORDS % 2), 7: KEEP},
        TABLES | {4: values(2, D, seed=5)},
        {"epsilon": 1e-5},
        outputs=3,
    ),
    "embeddings, places": Case(
        "EmbedLayerNormalization", {0: WORDS, 8: (WORDS + 3).astype(np.int32)}, TABLES, outputs=2
    ),
    "attention": Case("Attention", {0: X3}, QKV, HEADS),
    "attention, opset 11": Case("Attention", {0: X3}, QKV, HEADS, opset=11),
    "attention, mask": Case("Attention", {0: X3, 3: KEEP}, QKV, HEADS),
    "attention, mask per query": Case(
        "Attention", {0: X3, 3: np.tril(np.ones((B, S, S), np.int32))}, QKV, HEADS | {"mask_filter_value": -50.0}
    ),
    "attention, causal": Case("Attention", {0: X3}, QKV, HEADS | {"unidirectional": 1, "scale": 0.2}),
    "attention, past": Case(
        "Attention", {0: X3, 4: values(2, B, H, T - S, D // H)}, QKV, HEADS | {"unidirectional": 1}, outputs=2
    ),
    "attention, bias of scores": Case("Attention", {0: X3, 5: values(B, H, S, S)}, QKV, HEADS),
    "attention, sizes": Case(
        "Attention", {0: X3}, {1: values(D, 20), 2: values(20)}, HEADS | {"qkv_hidden_sizes": [8, 8, 4]}
    ),
    "heads": Case("MultiHeadAttention", APART, {}, HEADS),
    "heads, bias and mask": Case("MultiHeadAttention", APART | {4: KEEP}, {3: values(3 * D)}, HEADS),
    "heads, causal with past": Case(
        "MultiHeadAttention", APART | CACHE, {}, HEADS | {"unidirectional": 1, "scale": 0.4}, outputs=3
    ),
    "heads, bias of scores": Case("MultiHeadAttention", APART | {5: values(1, H, S, S)}, {}, HEADS),
    "heads of another text": Case(
        "MultiHeadAttention", {0: X3, 1: values(B, H, T, D // H), 2: values(B, H, T, D // H, seed=1)}, {}, HEADS
    ),
    **DECODERS,
}


def written(case: Case) -> tuple[ir.Model, ir.Model]:
    given = ir.from_proto(model(case))
    return given, fused_written_out(given)


@pytest.mark.sliced(2)
@pytest.mark.parametrize("name", CASES)
def test_written_out_gives_the_numbers_of_the_fused_op(name: str) -> None:
    case = CASES[name]
    given, found = written(case)
    assert found is not given
    assert {n.op_type for n in found.graph}.isdisjoint({case.op} - {"LayerNormalization"})
    assert all(not n.domain for n in found.graph)
    feeds = {f"i{port}": array for port, array in case.feeds.items()}
    if case.by_reference:
        wanted = ReferenceEvaluator(model(case)).run(None, feeds)
        worst = difference(
            dict(zip([o.name for o in given.graph.outputs], wanted, strict=True)), Session(found).run(feeds)
        )
    elif case.runs:
        worst = difference(Session(given).run(feeds), Session(found).run(feeds))
    else:
        with pytest.raises(ModelError):
            Session(given)
        worst = difference(by_hand(case), Session(found).run(feeds))
    assert worst < 1e-5
    assert [o.name for o in found.graph.outputs] == [o.name for o in given.graph.outputs]


def by_hand(case: Case) -> dict[str, Array]:
    """Return the outputs of an op without a kernel: by onnxruntime's kernel of the op that it is another form of."""
    data = case.feeds[0]
    if case.op == "BiasAdd":
        return {"o0": data + case.held[1] + case.feeds[2]}
    if case.op == "BiasSplitGelu":
        left, right = np.split(data + case.held[1], 2, -1)
        gelu = Session(ir.from_proto(model(Case("Gelu", {0: right})))).run({"i0": right})["o0"]
        return {"o0": left * gelu}
    first = {0: np.moveaxis(data, -1, 1).copy()}
    domain, op = ("", "MaxPool") if case.op == "NhwcMaxPool" else (MS, "FusedConv")
    other = Case(op, first, case.held, case.attributes, domain=domain)
    return {"o0": np.moveaxis(Session(ir.from_proto(model(other))).run({"i0": first[0]})["o0"], 1, -1)}


def test_every_op_of_the_table_has_a_case() -> None:
    on_blocks = {key for key in FUSED if key[0] == DOMAIN}
    assert {(case.domain, case.op) for case in CASES.values()} == set(FUSED) - on_blocks
    tried = {
        "Conv",
        "MaxPool",
        "Upsample",
        "GlobalAveragePool",
        "GlobalMaxPool",
        "AveragePool",
        "ReorderInput",
        "ReorderOutput",
    }
    assert {op for _, op in on_blocks} == tried  # in the models of `blocks`, and by themselves


def test_attributes_are_those_of_the_schemas_of_onnxruntime() -> None:
    found: dict[tuple[str, str], set[str]] = {}
    for schema in schemas.get_all_operator_schema():
        if (schema.domain, schema.name) in FUSED:
            found.setdefault((schema.domain, schema.name), set()).update(schema.attributes)
    assert found == {key: set(op.attributes) for key, op in FUSED.items()}


@pytest.mark.parametrize(
    ("op", "attribute", "near"), [("FusedConv", "kernel_shapes", "kernel_shape"), ("QuickGelu", "beta", "alpha")]
)
def test_attributes_that_nobody_defined_are_refused(op: str, attribute: str, near: str, tmp_path: Path) -> None:
    case = next(c for c in CASES.values() if c.op == op)
    given = model(case)
    given.graph.node[0].attribute.append(helper.make_attribute(attribute, 1.0))
    onnx.save(given, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=f"node 'fused': {MS}.{op} has the attribute '{attribute}'.*legal are.*{near}"):
        read_graph(tmp_path / "m.onnx")


def test_activations_that_nobody_defined_are_refused(tmp_path: Path) -> None:
    given = model(Case("FusedConv", {0: X4}, {1: W4}, {"activation": "Relu7"}))
    onnx.save(given, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"the activation 'Relu7'.*LeakyRelu, Relu"):
        read_graph(tmp_path / "m.onnx")


@pytest.mark.parametrize("name", ["matmul", "fast gelu with bias", "attention, mask", "gelu"])
def test_a_fault_in_the_body_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong constant makes the comparison of the test above fail."""
    from quantpipe.intake.rewrites.fused.body import FusedBody

    real = FusedBody.number
    monkeypatch.setattr(FusedBody, "number", lambda s, v, *a: real(s, np.asarray(v) * 1.5, *a))
    case = CASES[name]
    given, found = written(case)
    feeds = {f"i{port}": array for port, array in case.feeds.items()}
    try:
        worst = difference(Session(given).run(feeds), Session(found).run(feeds))
    except ModelError:
        worst = 1.0
    assert worst > 1e-3


def test_the_clean_up_writes_them_out_and_keeps_their_names(tmp_path: Path) -> None:
    onnx.save(model(CASES["conv, leaky"]), tmp_path / "m.onnx")
    graph = load_graph(tmp_path / "m.onnx", lambda g: {"i0": X4})
    assert [(n.op, n.name) for n in graph.nodes] == [("Conv", "fused"), ("LeakyRelu", "fused/LeakyRelu_1")]
    assert not graph.notes


def test_gelus_become_one_op_with_the_name_of_the_node(tmp_path: Path) -> None:
    onnx.save(model(CASES["fast gelu with bias"]), tmp_path / "m.onnx")
    graph = load_graph(tmp_path / "m.onnx", lambda g: {"i0": X3})
    assert [(n.op, n.name) for n in graph.nodes] == [("Add", "fused/Add_0"), ("Gelu", "fused")]


def test_ops_without_a_kernel_are_written_out_before_anything_runs() -> None:
    given = ir.from_proto(model(CASES["channels last"]))
    found, _, notes = runnable(given, {"i0": CASES["channels last"].feeds[0]}, "m")
    assert "Conv" in {n.op_type for n in found.graph}
    assert len(notes) == 1 and notes[0].startswith("NhwcConv are written as ops of ONNX")


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("opset", [7, 9, 10])
@pytest.mark.parametrize("scales", [[1, 1, 2, 2], [1, 1, 1.5, 3]])
def test_upsample_of_old_opsets_keeps_its_coordinates(
    opset: int, mode: str, scales: list[float], tmp_path: Path
) -> None:
    held = [numpy_helper.from_array(np.asarray(scales, np.float32), "s")] if opset > 7 else []
    attributes = {} if held else {"scales": [float(s) for s in scales]}
    op = "Upsample" if opset < 10 else "Resize"
    node = helper.make_node(op, ["x", "s"] if held else ["x"], ["y"], mode=mode, **attributes)
    port = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4, 6, 6])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    proto = helper.make_model(
        helper.make_graph([node], "up", [port], [out], held),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=8,
    )
    onnx.save(proto, tmp_path / "m.onnx")
    graph = load_graph(tmp_path / "m.onnx", lambda g: {"x": X4})
    assert graph.opset >= 17 and [n.op for n in graph.nodes] == ["Resize"] and not graph.notes
    expected = Session(ir.from_proto(proto)).run({"x": X4})
    assert difference(expected, Session(graph.model).run({"x": X4})) < 1e-6


def saved(given: onnx.ModelProto, path: Path) -> ir.Model:
    """Return the model as onnxruntime saves it after all its optimizations for this processor."""
    options = ort.SessionOptions()
    options.optimized_model_filepath, options.log_severity_level = str(path), 4
    ort.InferenceSession(given.SerializeToString(), options)
    return ir.from_proto(onnx.load(path))


def blocks(channels: int, *, depthwise: bool = False, last: str = "GlobalAveragePool") -> onnx.ModelProto:
    """Return two convolutions, a pool, an enlargement and an addition, which onnxruntime runs on blocks."""
    groups = channels if depthwise else 1
    held = {
        "w1": values(channels, 3, 3, 3),
        "b1": values(channels),
        "w2": values(channels, channels // groups, 3, 3, seed=1) / 8,
        "s": np.float32([1, 1, 2, 2]),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["a"], pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Conv", ["r", "w2"], ["c"], pads=[1] * 4, group=groups),
        helper.make_node("Add", ["c", "r"], ["d"]),
        helper.make_node("MaxPool", ["d"], ["m"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node(
            "Resize",
            ["m", "", "s"],
            ["u"],
            mode="nearest",
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        ),
        helper.make_node(last, ["u"], ["y"], **({"kernel_shape": [2, 2]} if last == "AveragePool" else {})),
    ]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", ["n", 3, 8, 8]), ("y", None))]
    graph = helper.make_graph(
        nodes, "net", ports[:1], ports[1:], [numpy_helper.from_array(a, n) for n, a in held.items()]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.skipif(not block(), reason="onnxruntime has no kernels on blocks of channels for this processor")
@pytest.mark.parametrize("last", ["GlobalAveragePool", "GlobalMaxPool", "AveragePool", "Relu"])
@pytest.mark.parametrize(("channels", "depthwise"), [(16, False), (20, False), (32, True), (48, False)])
def test_channels_in_blocks_are_put_back(channels: int, depthwise: bool, last: str, tmp_path: Path) -> None:
    given = saved(blocks(channels, depthwise=depthwise, last=last), tmp_path / "saved.onnx")
    assert {n.op_type for n in given.graph if n.domain == DOMAIN} >= {"Conv", "ReorderOutput"}
    found = fused_written_out(given)
    assert all(not n.domain for n in found.graph)
    feeds = {"x": values(2, 3, 8, 8)}
    assert difference(Session(given).run(feeds), Session(found).run(feeds)) < 1e-6


@pytest.mark.skipif(not block(), reason="onnxruntime has no kernels on blocks of channels for this processor")
@pytest.mark.parametrize(("channels", "last"), [(16, 0), (16, 1), (12, 0), (12, 1), (None, 0)])
def test_data_enter_blocks_with_zeros_beyond_their_channels(channels: int | None, last: int) -> None:
    shape = ["n", 3, 3, channels or "c"] if last else ["n", channels or "c", 3, 3]
    size = channels or 12
    port = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    nodes = [
        helper.make_node("ReorderInput", ["x"], ["b"], domain=DOMAIN, channels_last=last),
        helper.make_node("ReorderOutput", ["b"], ["y"], domain=DOMAIN, channels=size, channels_last=last),
    ]
    domains = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    given = ir.from_proto(
        helper.make_model(helper.make_graph(nodes, "b", [port], [out]), opset_imports=domains, ir_version=8)
    )
    found = fused_written_out(given)
    feeds = {"x": values(2, 3, 3, size) if last else values(2, size, 3, 3)}
    assert all(not n.domain for n in found.graph)
    assert np.array_equal(Session(given).run(feeds)["y"], Session(found).run(feeds)["y"])
