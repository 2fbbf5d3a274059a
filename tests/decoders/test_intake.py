"""Decoders of several exporters: their attentions with a cache are written as ops whose rules exist."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantpipe
from quantpipe.annotate.conditions import AnnotateOptions
from quantpipe.annotate.topology import analyze
from quantpipe.data.cache_inputs import empty_cache
from quantpipe.errors import DataError, ModelError
from quantpipe.graph.execute import Session
from quantpipe.graph.outputs import with_extremes, with_outputs
from quantpipe.graph.view import Graph
from quantpipe.intake.load import load_graph, read_graph
from tests.decoders import nets
from tests.decoders.lines import past_of
from tests.decoders.stepping import PIECE, run, texts
from tests.ops.line import hardware, schema_for

Array = np.ndarray[Any, Any]
FUSED = {"Attention", "GroupQueryAttention", "RotaryEmbedding", "SkipSimplifiedLayerNormalization", "If"}


def loaded(proto: onnx.ModelProto, folder: Path, fixed: dict[str, Any] | None = None) -> Graph:
    onnx.save(proto, folder / "m.onnx")
    past = Session(ir.from_proto(nets.standard())).run(given(nets.standard(), nets.feeds(nets.text(3, 4))))
    carried = {name.replace("present", "past_key_values"): array for name, array in past.items() if name != "logits"}
    every = nets.feeds(nets.text(3, 1, seed=2), carried) | {"use_cache_branch": np.array([True])}
    found = load_graph(
        folder / "m.onnx", lambda g: {i.name: every[i.name] for i in g.inputs}, isolate=False, fixed=fixed
    )
    (folder / "m.onnx").unlink()
    return found


def given(proto: onnx.ModelProto, feeds: dict[str, Array]) -> dict[str, Array]:
    return {value.name: feeds[value.name] for value in proto.graph.input}


@pytest.mark.sliced(2)
@pytest.mark.parametrize("style", ["standard", "runtime"])
def test_a_decoder_is_written_out_and_runs_at_every_length(style: str, tmp_path: Path) -> None:
    proto = getattr(nets, style)()
    graph = loaded(proto, tmp_path)
    assert not graph.notes
    assert FUSED.isdisjoint(n.op for n in graph.nodes)
    reference, clean = Session(ir.from_proto(nets.standard())), Session(graph.model)
    for length in (1, 3, 8):
        every = nets.feeds(nets.text(2, length))
        wanted, found = reference.run(given(nets.standard(), every)), clean.run(given(proto, every))
        for name, array in wanted.items():
            np.testing.assert_allclose(found[name], array, rtol=1e-3, atol=1e-4)


def test_a_branch_that_is_selected_is_written_out_too(tmp_path: Path) -> None:
    graph = loaded(nets.merged(), tmp_path, fixed={"use_cache_branch": True})
    assert not graph.notes
    assert FUSED.isdisjoint(n.op for n in graph.nodes)


def test_a_decoder_in_branches_is_told_how_to_select_one(tmp_path: Path) -> None:
    graph = loaded(nets.merged(), tmp_path)
    assert [n.op for n in graph.nodes] == ["If"]
    spec = hardware("ort_cpu")
    topology = analyze(graph, spec, schema_for(spec), AnnotateOptions())
    assert "model.fixed" in topology.float_nodes["if"].text


def with_room(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the decoder with a past that is as long as the present, in place."""
    for value in (*proto.graph.input, *proto.graph.output):
        if "." in value.name:
            value.type.tensor_type.shape.dim[2].dim_param = "max_length"
    return proto


def test_a_buffer_with_room_stays_one_op_in_float(tmp_path: Path) -> None:
    graph = loaded(with_room(nets.runtime()), tmp_path)
    assert [n.op for n in graph.nodes].count("GroupQueryAttention") == nets.LAYERS


@pytest.mark.parametrize("cut", [with_outputs, lambda m, t: with_extremes(m, dict.fromkeys(t, 3))[0]])
def test_the_present_of_an_attention_survives_a_cut(cut: Any) -> None:
    """onnxruntime runs an attention with a past only if its node has the present, too."""
    model = cut(ir.from_proto(nets.standard()), ["0.w"])
    kept = next(n for n in model.graph if n.op_type == "Attention")
    assert [value.name for value in kept.outputs] == ["0.w", "present.0.key", "present.0.value"]
    assert "1.w" not in {value.name for n in model.graph for value in n.outputs}
    assert "head" not in model.graph.initializers
    every = given(nets.standard(), nets.feeds(nets.text(2, 3), {k: v + 0 for k, v in nets.empty_cache(2).items()}))
    assert Session(model).run(every)


def with_type(proto: onnx.ModelProto, ending: str, kind: int) -> onnx.ModelProto:
    for value in (*proto.graph.input, *proto.graph.output):
        if value.name.endswith(ending):
            value.type.tensor_type.elem_type = kind
    return proto


def test_two_pasts_of_different_types_are_refused_in_one_paragraph(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        loaded(with_type(nets.standard(), "0.value", TensorProto.DOUBLE), tmp_path)
    assert "\n" not in str(caught.value) and "m.onnx" in str(caught.value)


def test_attributes_that_nobody_defined_are_refused(tmp_path: Path) -> None:
    proto = nets.runtime()
    node = next(n for n in proto.graph.node if n.op_type == "GroupQueryAttention")
    node.attribute.append(helper.make_attribute("local_windows", 3))
    with pytest.raises(ModelError, match=r"'local_windows'.*'local_window_size'"):
        loaded(proto, tmp_path)


def test_open_axes_of_a_cache_are_those_that_the_attention_needs(tmp_path: Path) -> None:
    """onnxruntime-genai's builder names heads and features of the ports; an empty cache must have them."""
    proto = nets.runtime()
    for port in (*proto.graph.input, *proto.graph.output):
        axes = port.type.tensor_type.shape.dim
        if len(axes) == 4:
            axes[3].dim_param, axes[1].dim_param = "kv_cache_dim", "kv_heads"
    onnx.save(proto, tmp_path / "m.onnx")
    raw = read_graph(tmp_path / "m.onnx").graph
    pasts = {i.name: i for i in raw.inputs if i.name in nets.empty_cache()}
    assert {i.shape for i in pasts.values()} == {(None, nets.KV, None, nets.SIZE)}
    assert {o.shape for o in raw.outputs if o.name != "logits"} == {(None, nets.KV, None, nets.SIZE)}
    feeds = given(proto, nets.feeds(nets.text(2, 3))) | {n: empty_cache(i, 2) for n, i in pasts.items()}
    wanted = Session(ir.from_proto(nets.runtime())).run(given(proto, nets.feeds(nets.text(2, 3))))
    for name, array in Session(raw.model).run(feeds).items():
        np.testing.assert_array_equal(array, wanted[name])


def test_open_axes_of_a_present_do_not_stop_other_attentions(tmp_path: Path) -> None:
    proto = nets.standard()
    for port in proto.graph.output[1:]:
        for axis in port.type.tensor_type.shape.dim[1:]:
            axis.ClearField("value")
    assert FUSED.isdisjoint(n.op for n in loaded(proto, tmp_path).nodes)


@pytest.mark.parametrize("columns", [4, 9])
def test_a_mask_that_contradicts_the_cache_ends_a_run(columns: int, tmp_path: Path) -> None:
    """The file takes a mask of the cache's length for a buffer with room; written out, it has another length."""
    graph = loaded(nets.runtime(), tmp_path)
    every = nets.feeds(nets.text(1, 4), past_of(4))
    given = {i.name: every[i.name] for i in graph.inputs}
    assert Session(graph.model).run(given)["present.0.key"].shape[2] == 8
    with pytest.raises(ModelError, match="cannot run it"):
        Session(graph.model).run({**given, "attention_mask": np.ones((1, columns), np.int64)})


def test_a_mask_that_contradicts_the_cache_of_a_later_sample_is_bad_input(tmp_path: Path) -> None:
    """It is neither as long as the sample nor as the cache with it."""
    samples = texts(tmp_path)
    with np.load(tmp_path / "texts.npz") as held:
        arrays = {**held, "attention_mask": np.ones((len(held["turn"]), PIECE + 1), np.int64)}
    np.savez(tmp_path / "texts.npz", **arrays)
    with pytest.raises(DataError, match=r"sample \d+ cannot be run.*'attention_mask' \[\d+, 5\].*mask with a column"):
        quantpipe.quantize(nets.runtime(), samples, "npu_w8a16", recover="none")


def test_a_branch_without_data_is_told_how_to_select_one(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'model.fixed=\{use_cache_branch: true\}'"):
        run(nets.merged(), "npu_w8a16", tmp_path)


def with_few_places(style: str) -> onnx.ModelProto:
    held = nets.weights()
    return getattr(nets, style)({**held, "cos": held["cos"][:12], "sin": held["sin"][:12]})


def test_positions_beyond_the_table_are_bad_input(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"sample 3 cannot be run.*'position_ids' \[1, 4\] up to 15.*positions within"):
        run(with_few_places("standard"), "npu_w8a16", tmp_path)


def test_scores_that_overflow_float16_are_named(tmp_path: Path) -> None:
    held = nets.weights()
    held |= {f"{n}.{side}": 300 * held[f"{n}.{side}"] for n in range(nets.LAYERS) for side in "qk"}
    proto = nets.standard(held)
    for tensor in proto.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
    for value in (*proto.graph.input, *proto.graph.output):
        kind = value.type.tensor_type
        kind.elem_type = TensorProto.FLOAT16 if kind.elem_type == TensorProto.FLOAT else kind.elem_type
    graph = loaded(proto, tmp_path)
    assert any("the model itself overflows" in note for note in graph.notes), graph.notes


@pytest.mark.parametrize("make", [nets.standard, nets.runtime])
@pytest.mark.parametrize("both", [True, False])
def test_a_past_of_another_type_than_its_keys_is_bad_input(make: Any, both: bool, tmp_path: Path) -> None:
    proto = make()
    pasts = [v for v in proto.graph.input if v.name.startswith("past")]
    for value in pasts if both else pasts[1:2]:
        value.type.tensor_type.elem_type = TensorProto.DOUBLE
    with pytest.raises(
        ModelError, match=r"reads the past 'past_\S+key' as \w+ and 'past_\S+value' as double; legal"
    ) as told:
        loaded(proto, tmp_path)
    assert "float16" in str(told.value) and "node '0.w'" in str(told.value)


@pytest.mark.parametrize("kinds", [("FLOAT", "FLOAT16"), ("FLOAT16", "FLOAT")])
def test_keys_and_values_of_two_types_are_bad_input(kinds: tuple[str, str], tmp_path: Path) -> None:
    key, value = (getattr(TensorProto, kind) for kind in kinds)
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"], name="seen", q_num_heads=2, kv_num_heads=2)
    ports = [helper.make_tensor_value_info(n, t, ["N", 4, 16]) for n, t in zip("qkv", (key, key, value), strict=True)]
    graph = helper.make_graph([node], "g", ports, [helper.make_tensor_value_info("y", key, ["N", 4, 16])])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    with pytest.raises(ModelError, match=r"reads keys and values 'k' as \w+ and 'v' as \w+\. ONNX defines this"):
        loaded(proto, tmp_path)
