"""Reading and cleaning models: what is rewritten, that names stay the user's, that bad files are refused in words."""

from __future__ import annotations

import pickle
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from quantpipe.errors import ModelError
from quantpipe.graph import normalize
from quantpipe.graph.execute import Kernels, Session
from quantpipe.graph.io import file_hash, model_bytes, model_proto
from quantpipe.graph.view import Graph
from quantpipe.intake import cleanup
from quantpipe.intake.load import load_graph
from quantpipe.intake.read_model import read_model
from quantpipe.types import TensorInfo
from tests.ops.line import Net, line, load, normal_samples


def batch_norm(net: Net, x: str, channels: int, name: str) -> str:
    values = [net.floats(channels) for _ in range(3)]
    variance = net.constant(np.abs(net.rng.standard_normal(channels)).astype(np.float32) + 0.5)
    return net.node("BatchNormalization", x, *values, variance, name=name)


def outputs(graph: Graph) -> dict[str, np.ndarray]:
    return Session(graph.model).run(next(iter(normal_samples(graph).batches(4))).inputs)


def raw_outputs(net: Net, graph: Graph) -> dict[str, np.ndarray]:
    session = Session(net.proto().SerializeToString(), kernels=Kernels.AS_WRITTEN)
    return session.run(next(iter(normal_samples(graph).batches(4))).inputs)


def assert_same_function(net: Net, graph: Graph) -> None:
    for name, expected in raw_outputs(net, graph).items():
        np.testing.assert_allclose(outputs(graph)[name], expected, rtol=1e-3, atol=1e-4)


# --- rewrites -------------------------------------------------------------------------------------------------------


def test_folded_batch_norms_leave_the_users_names() -> None:
    net = Net(seed=1)
    x = net.conv(net.input(None, 3, 8, 8), 3, 4, 3, 3, bias=False, name="stem/conv")
    x = net.node("Relu", batch_norm(net, x, 4, "stem/bn"), name="stem/relu")
    x = net.conv(x, 4, 4, 3, 3, group=4, name="block/depthwise")
    net.output(net.node("Relu", batch_norm(net, x, 4, "block/bn"), name="block/relu"))
    graph = load(net)
    assert [(n.op, n.name) for n in graph.nodes] == [
        ("Conv", "stem/conv"), ("Relu", "stem/relu"), ("Conv", "block/depthwise"), ("Relu", "block/relu")
    ]  # fmt: skip
    assert not graph.notes
    assert_same_function(net, graph)


def test_matmul_and_bias_become_gemm_on_rank_2() -> None:
    net = Net(seed=2)
    x = net.node("MatMul", net.input(None, 6), net.floats(6, 5), name="first")
    x = net.node("Relu", net.node("Add", x, net.floats(5), name="first_bias"), name="relu")
    x = net.node("MatMul", x, net.floats(5, 4), name="second")
    net.output(net.node("Add", net.floats(4), x, name="second_bias"))
    graph = load(net)
    assert [(n.op, n.name) for n in graph.nodes] == [("Gemm", "first"), ("Relu", "relu"), ("Gemm", "second")]
    assert [o.name for o in graph.outputs] == ["second_bias_out"]
    assert_same_function(net, graph)


def test_matmul_keeps_its_add_where_gemm_would_change_it() -> None:
    net = Net(seed=3)
    x = net.node("MatMul", net.input(None, 6), net.floats(6, 5), name="dense")
    net.output(net.node("Add", x, net.floats(5)), net.node("Relu", x))
    graph = load(net)
    assert "Gemm" not in {n.op for n in graph.nodes}, "the product is read twice"
    assert_same_function(net, graph)


def test_average_over_the_whole_map_is_global() -> None:
    net = Net(seed=4)
    x = net.conv(net.input(None, 3, 7, 5), 3, 4, 1, 1)
    net.output(net.node("AveragePool", x, kernel_shape=[7, 5], name="pool"))
    graph = load(net)
    assert graph.by_name["pool"].op == "GlobalAveragePool" and not graph.by_name["pool"].attributes
    assert_same_function(net, graph)


@pytest.mark.parametrize(
    "attrs",
    [{"kernel_shape": [6, 5]}, {"kernel_shape": [7, 5], "pads": [0, 0, 1, 0]},
     {"kernel_shape": [7, 5], "auto_pad": "SAME_UPPER"}],
)  # fmt: skip
def test_other_averages_stay(attrs: dict[str, object]) -> None:
    net = Net(seed=4)
    x = net.conv(net.input(None, 3, 7, 5), 3, 4, 1, 1)
    net.output(net.node("AveragePool", x, name="pool", **attrs))
    graph = load(net)
    assert graph.by_name["pool"].op == "AveragePool"
    assert_same_function(net, graph)


@pytest.mark.parametrize("step", ["_raise_opset", "slimmed", "_join_functions", "_join_axes", "_small_rewrites"])
@pytest.mark.parametrize("fault", ["changes", "raises", "loses an output"])
def test_a_clean_up_that_goes_wrong_is_undone(step: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net(seed=5, opset=11)
    x = net.conv(net.input(None, 3, 6, 6), 3, 4, 3, 3, bias=False, name="conv")
    net.output(batch_norm(net, x, 4, "bn"))

    def bad(model: ir.Model) -> ir.Model:
        if fault == "raises":
            raise RuntimeError("no luck\nsecond line")
        proto = onnx.ModelProto.FromString(model_bytes(model))
        if fault == "changes":
            for tensor in proto.graph.initializer:
                array = onnx.numpy_helper.to_array(tensor)
                tensor.CopyFrom(onnx.numpy_helper.from_array(array * 1.01, tensor.name))
        else:
            proto.graph.node.append(helper.make_node("Identity", [proto.graph.output[0].name], ["other"]))
            proto.graph.output[0].name = "other"
        return ir.from_proto(proto)

    bad.__name__ = step
    monkeypatch.setattr(cleanup, step, (lambda windows: bad) if step == "_small_rewrites" else bad)
    graph = load(net)
    (note,) = graph.notes
    wanted = {"changes": "was undone: it changed the outputs by", "raises": "was skipped: no luck"}
    assert f"clean-up step {step.strip('_')} {wanted.get(fault, 'was undone')}" in note and "\n" not in note
    assert_same_function(net, graph)


def test_a_step_whose_result_is_too_large_is_named_in_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def bad(model: ir.Model) -> ir.Model:
        raise RuntimeError("Failed to serialize proto")

    bad.__name__ = "slimmed"
    monkeypatch.setattr(cleanup, "slimmed", bad)
    net = Net(seed=6)
    net.output(net.dense(net.input(None, 4), 4, 3))
    assert any("was skipped: its result is larger than the 2 GB of a model in one file" in n for n in load(net).notes)


@pytest.mark.parametrize("opset", [9, 10, 11, 12, 13])
def test_old_opsets_are_raised(opset: int) -> None:
    net = Net(seed=6, opset=opset)
    x = net.conv(net.input(None, 3, 8, 8), 3, 4, 3, 3, name="conv")
    if opset < 11:
        x = net.node("Clip", x, name="clip", min=0.0, max=6.0)
    else:
        x = net.node("Clip", x, net.constant(np.float32(0)), net.constant(np.float32(6)), name="clip")
    x = net.node("MaxPool", x, kernel_shape=[2, 2], name="pool")
    if opset >= 13:
        x = net.node("Squeeze", net.node("GlobalAveragePool", x), net.constant(np.array([2, 3])), name="squeeze")
    else:
        x = net.node("Squeeze", net.node("GlobalAveragePool", x), axes=[2, 3], name="squeeze")
    net.output(net.dense(x, 4, 3, name="dense"))
    graph = load(net)
    assert graph.opset >= 17 and not graph.notes
    assert [n.name for n in graph.nodes if n.name in ("conv", "clip", "pool", "squeeze", "dense")] == [
        "conv", "clip", "pool", "squeeze", "dense"
    ]  # fmt: skip
    assert_same_function(net, graph)
    made = line(graph)
    assert made.topology.kernel_of["conv"].bounds == (0.0, 6.0)
    assert made.agree(made.plan(), "qdq").differing == 0


def test_nodes_without_names_get_unique_ones() -> None:
    net = Net(seed=7)
    x = net.conv(net.input(None, 3, 6, 6), 3, 3, 1, 1)
    net.output(net.node("Erf", net.node("Erf", x)))
    proto = net.proto()
    for node in proto.graph.node:
        node.name = "same" if node.op_type == "Erf" else ""
    graph = load(proto)
    assert len({n.name for n in graph.nodes}) == len(graph.nodes) == 3 and all(n.name for n in graph.nodes)


# --- files ----------------------------------------------------------------------------------------------------------


def refused(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        load_graph(path, lambda graph: {})
    text = str(caught.value)
    assert "\n" not in text and str(path) in text and caught.value.exit_code == 2
    return text


def test_bad_files_are_refused_in_one_paragraph(tmp_path: Path) -> None:
    assert "there is no such file; model.path must name an ONNX model" in refused(tmp_path / "none.onnx")
    assert "this is a folder; give the .onnx file" in refused(tmp_path)
    empty, text, cut = (tmp_path / n for n in ("empty.onnx", "text.onnx", "cut.onnx"))
    empty.write_bytes(b"")
    assert "this file is empty" in refused(empty)
    text.write_text("This is no model at all, but a letter to a friend.\n" * 9)
    assert "this is not a readable ONNX model" in refused(text)
    net = Net()
    net.output(net.conv(net.input(None, 3, 8, 8), 3, 8, 3, 3))
    whole = net.proto().SerializeToString()
    for share in (0.3, 0.7, 0.95):
        cut.write_bytes(whole[: int(share * len(whole))])
        assert refused(cut)


def test_a_graph_without_nodes_is_refused(tmp_path: Path) -> None:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    path = tmp_path / "nothing.onnx"
    onnx.save(helper.make_model(helper.make_graph([], "nothing", [value], [value])), path)
    assert "the file holds no graph with nodes and outputs" in refused(path)


def convolve(folder: Path) -> Path:
    """Return the file of a model with an op that nobody knows."""
    net = Net()
    net.output(net.conv(net.input(None, 3, 8, 8), 3, 8, 3, 3))
    proto = net.proto()
    proto.graph.node[0].op_type = "Convolve"
    path = folder / "odd.onnx"
    onnx.save(proto, path)
    return path


def test_a_model_that_onnxruntime_refuses(tmp_path: Path) -> None:
    path = convolve(tmp_path)
    assert "onnxruntime cannot load it" in refused(path) and "Convolve" in refused(path)
    assert "ONNXRuntimeError" not in refused(path)


def test_the_runtimes_own_text_comes_through_the_isolated_process(tmp_path: Path) -> None:
    path = convolve(tmp_path)
    with pytest.raises(ModelError) as caught:
        load_graph(path, lambda _: {"x": np.zeros((1, 3, 8, 8), np.float32)})
    assert any("ONNXRuntimeError" in note for note in caught.value.__notes__)


def test_external_data_count_in_the_hash(tmp_path: Path) -> None:
    net = Net()
    net.output(net.conv(net.input(None, 3, 8, 8), 3, 64, 3, 3))
    for number in (0, 1):
        proto = net.proto()
        if number:
            changed = onnx.numpy_helper.to_array(proto.graph.initializer[0]) + np.float32(1)
            proto.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(changed, proto.graph.initializer[0].name))
        (tmp_path / str(number)).mkdir()
        onnx.save(proto, tmp_path / str(number) / "m.onnx", save_as_external_data=True, location="data.bin",
                  size_threshold=0)  # fmt: skip
    paths = [tmp_path / n / "m.onnx" for n in "01"]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    hashes = [file_hash(p, read_model(p)) for p in paths]
    assert hashes[0] != hashes[1] and hashes[0].startswith("sha256:")
    graph = load_graph(paths[0], lambda raw: next(iter(normal_samples(raw).batches(2))).inputs)
    made = line(graph)
    assert made.agree(made.plan(), "qdq").differing == 0
    (tmp_path / "0" / "data.bin").unlink()
    assert "data.bin: there is no such file; legal is a data file in the model's own folder" in refused(paths[0])


# --- the view -------------------------------------------------------------------------------------------------------


def test_shapes_are_those_of_one_sample() -> None:
    net = Net(seed=8)
    x = net.conv(net.input(None, 3, 8, 6), 3, 4, 3, 3, name="conv")
    net.output(net.dense(net.node("Flatten", x, name="flat"), 96, 2))
    graph = load(net)
    assert graph.shapes["conv_out"] == (1, 4, 6, 4) and graph.shapes["flat_out"] == (1, 96)
    assert graph.dtypes["conv_out"] == "float32"
    assert {t for t, s in graph.shapes.items() if s == (4, 3, 3, 3)} == {"c1"}


def test_batches_are_the_models_own_where_fixed() -> None:
    net = Net()
    net.output(net.conv(net.input(None, 3, 8, 6), 3, 4, 3, 3))
    assert load(net).batch_size > 1
    net.fix_batch(3)
    graph = load(net)
    assert graph.batch_size == 3
    made = line(graph)
    assert made.agree(made.plan(), "qdq").differing == 0


def test_the_first_axis_of_states_and_scalars_is_no_batch() -> None:
    net = Net()
    net.output(net.conv(net.input(None, 3, 8, 6), 3, 4, 3, 3))
    graph = load(net)
    state = TensorInfo("state", (2, None, 128), "float32")
    with_state = replace(graph, inputs=(state, *graph.inputs), states=frozenset({"state"}))
    assert with_state.fixed_batch is None and with_state.batch_size == graph.batch_size
    assert replace(graph, inputs=(TensorInfo("rate", (), "int64"), *graph.inputs)).fixed_batch is None
    assert replace(graph, inputs=(TensorInfo("both", (2, 3), "float32"), *graph.inputs)).fixed_batch == 2
    assert replace(graph, inputs=()).fixed_batch is None


def test_what_is_known_of_a_graph_goes_with_it_to_another_process() -> None:
    net = Net()
    net.output(net.conv(net.input(None, 3, 8, 6), 3, 4, 3, 3))
    graph = replace(load(net), varying=frozenset({"conv_out"}), states=frozenset({"x"}))
    there = pickle.loads(pickle.dumps(graph))
    assert (there.varying, there.states, there.shapes) == (graph.varying, graph.states, graph.shapes)


def test_a_graph_arrives_in_another_process_with_every_field() -> None:
    """All fields but those that are read again there, or that only the first process needs."""
    net = Net(4)
    net.output(net.node("Relu", net.input(None, 3), name="relu"))
    known = {"selected": frozenset({"y"}), "alone": True, "file_bytes": 123, "states": frozenset({"x"})}
    sent = replace(load(net), **known)  # type: ignore[arg-type]
    found = pickle.loads(pickle.dumps(sent))
    for field in fields(sent):
        if field.name not in ("model", "nodes", "imported", "as_given", "largest"):
            assert getattr(found, field.name) == getattr(sent, field.name), field.name


def test_asking_for_no_outputs_runs_nothing() -> None:
    net = Net()
    net.output(net.conv(net.input(None, 3, 8, 6), 3, 4, 3, 3))
    assert Session(net.proto().SerializeToString()).run({"x": np.zeros((1, 3, 8, 6), np.float32)}, []) == {}


def test_onnxruntimes_reasons_come_through() -> None:
    net = Net()
    net.output(net.conv(net.input(None, 3, 8, 6), 3, 4, 3, 3))
    with pytest.raises(ModelError, match=r"run: here: onnxruntime cannot run it: .*x"):
        Session(net.proto().SerializeToString(), where="here").run({"x": np.zeros((1, 3, 8), np.float32)})


def test_exposing_twice_changes_nothing() -> None:
    net = Net()
    net.output(net.node("Relu", net.conv(net.input(None, 3, 8, 6), 3, 4, 3, 3, name="conv")))
    model = normalize.expose(load(net).model, ["conv_out", "relu1_out", "conv_out"])
    assert [o.name for o in model_proto(model).graph.output] == ["relu1_out", "conv_out"]
