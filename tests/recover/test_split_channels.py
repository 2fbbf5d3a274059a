"""Channels as several: the network computes what it did, and outliers set the step of no other channel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import quantpipe
from quantpipe.annotate.conditions import AnnotateOptions
from quantpipe.data import SampleSets
from quantpipe.errors import ConfigError
from quantpipe.graph.execute import Session
from quantpipe.recover.rescale.outlier_channels import FEW, SHARE, WORTH, copies, outlier_channels
from quantpipe.recover.rescale.split_channels import split_channels
from quantpipe.recover.rescale.splittable import splittable
from tests.explain.planted import loss_of, options_of, run
from tests.ops.line import Line, Net, line, normal_samples
from tests.recover.test_recover_channels import blocks, outputs

PAD = {"pads": [1, 1, 1, 1]}


def slopes() -> Net:
    """A slope per channel, a map laid flat by a Reshape that is told its size, a matrix stored turned."""
    net = Net(5)
    x = net.conv(net.input(None, 2, 4, 4), 2, 5, name="conv")
    x = net.node("PRelu", x, net.constant(np.linspace(0.1, 0.5, 5, dtype=np.float32).reshape(5, 1, 1)), name="prelu")
    x = net.node("Reshape", x, net.constant(np.array([-1, 80])), name="flat")
    net.output(net.dense(net.node("LeakyRelu", x, alpha=0.2), 80, 3, name="dense"))
    return net


def rows() -> Net:
    """Dense layers over rows, with a view of a given shape between."""
    net = Net(6)
    x = net.node("MatMul", net.input(None, 7, 4), net.floats(4, 6), name="first")
    x = net.node("Relu", net.node("Add", x, net.floats(6), name="bias"), name="relu")
    x = net.node("Reshape", x, net.constant(np.array([-1, 6])), name="rows")
    net.output(net.node("MatMul", x, net.floats(6, 5), name="second"))
    return net


NETS = {"blocks": lambda: blocks("Relu"), "slopes": slopes, "rows": rows}


def made_of(name: str, hw: str = "vta") -> Line:
    return line(NETS[name](), hw)


@pytest.mark.parametrize("name", NETS)
def test_the_network_computes_what_it_did(name: str) -> None:
    made = made_of(name)
    before = outputs(made.graph)
    known, _ = splittable(made.graph, made.topology)
    assert known
    for tensor, way in known.items():
        wanted = [0, way.channels - 1, way.channels - 1]
        graph = split_channels(made.graph, made.topology, {tensor: wanted})
        np.testing.assert_allclose(outputs(graph), before, rtol=1e-5, atol=1e-5)
        measured = Session(graph.model).run(normal_samples(graph, 1).inputs)
        assert {t: a.shape for t, a in measured.items()} == {t: graph.shapes[t] for t in measured}
        assert graph.model_hash != made.graph.model_hash
        grown = {t for t in graph.shapes if graph.shapes[t] != made.graph.shapes[t]}
        assert grown.issuperset(way.tensors)


def test_what_each_copy_is() -> None:
    made = made_of("blocks")
    constants = {name: made.graph.constant(name) for name in made.graph.constant_names()}
    known, _ = splittable(made.graph, made.topology)
    assert known["expand_out"] is known["depthwise_clamp_out"]
    assert (known["expand_out"].depthwise, known["expand_out"].consumers) == (("depthwise",), ("project",))
    weight = {k.node: k.weight for k in made.topology.kernels}
    bias = {k.node: k.bias for k in made.topology.kernels}
    of_values = split_channels(made.graph, made.topology, {"depthwise_out": [4, 4, 1]})
    for kind, node in ((weight, "expand"), (bias, "expand"), (bias, "depthwise")):
        old, new = constants[kind[node]], of_values.constant(kind[node])
        share = np.array([1, 2, 1, 1, 3, 1]).reshape(-1, *[1] * (old.ndim - 1))
        np.testing.assert_allclose(new, (old / share)[[0, 1, 2, 3, 4, 5, 1, 4, 4]], rtol=1e-6)
    np.testing.assert_array_equal(
        of_values.constant(weight["depthwise"]), constants[weight["depthwise"]][[0, 1, 2, 3, 4, 5, 1, 4, 4]]
    )
    np.testing.assert_array_equal(
        of_values.constant(weight["project"]), constants[weight["project"]][:, [0, 1, 2, 3, 4, 5, 1, 4, 4]]
    )
    assert of_values.by_name["depthwise"].attr("group") == 9
    of_weights = split_channels(made.graph, made.topology, {weight["project"]: [2]})
    np.testing.assert_array_equal(of_weights.constant(bias["expand"]), constants[bias["expand"]][[0, 1, 2, 3, 4, 5, 2]])
    half = constants[weight["project"]] * np.array([1, 1, 0.5, 1, 1, 1], np.float32).reshape(1, -1, 1, 1)
    np.testing.assert_array_equal(of_weights.constant(weight["project"]), half[:, [0, 1, 2, 3, 4, 5, 2]])


def test_values_and_weights_of_one_way_and_of_two() -> None:
    made = made_of("blocks")
    weight = next(k.weight for k in made.topology.kernels if k.node == "project")
    wanted = {"expand_clamp_out": [3], weight: [3, 0], "project_out": [1], "flat_out": [2, 2]}
    graph = split_channels(made.graph, made.topology, wanted)
    np.testing.assert_allclose(outputs(graph), outputs(made.graph), rtol=1e-5, atol=1e-5)
    assert graph.shapes["expand_out"][1] == 6 + 3 + 1  # channel 3 is halved on both sides: four of it


@given(arrays(np.float64, st.integers(1, 200), elements=st.floats(0, 1e6)))
def test_copies_lower_the_greatest_peak(peaks: Any) -> None:
    found = copies(peaks)
    assert len(found) <= max(FEW, int(SHARE * len(peaks)))
    parts = 1 + np.bincount(np.asarray(found, np.int64), minlength=len(peaks))
    if found:
        assert (peaks / parts).max() <= WORTH * peaks.max()
        for channel in set(found):  # none of them is one too many
            fewer = parts - (np.arange(len(peaks)) == channel)
            assert (peaks / fewer).max() > (peaks / parts).max()


def test_copies_of_known_peaks() -> None:
    assert copies(np.array([1.0, 1.0, 8.0, 1.0])) == (2, 2, 2)
    assert copies(np.array([1.0, 1.0, 1.9, 1.0])) == (2,)
    assert copies(np.ones(50)) == ()
    assert copies(np.zeros(5)) == ()


def test_outliers_are_found_where_they_are() -> None:
    net = blocks("Relu").proto()
    weights = {i.name: i for i in net.graph.initializer}
    layers = {n.name: n for n in net.graph.node}
    for layer, port, index in (("last", 1, (2,)), ("last", 2, (2,)), ("dense", 1, (slice(None), 4))):
        constant = weights[layers[layer].input[port]]
        values = onnx.numpy_helper.to_array(constant).copy()
        values[index] = np.abs(values[index]) * 30 + 3
        constant.CopyFrom(onnx.numpy_helper.from_array(values, constant.name))
    made = line(net, "vta")
    dense = layers["dense"].input[1]
    names = ["relu1_out", dense, "project_out", "dense_out", "nothing"]
    found = outlier_channels(made.graph, made.topology, names, normal_samples(made.graph, 16))
    assert (set(found["relu1_out"]), set(found[dense])) == ({2}, {4})
    assert "dense_out" not in found


@pytest.mark.parametrize(
    ("net", "wanted", "said"),
    [
        (blocks("Clip"), {"expand_out": [0]}, "expand_clamp bounds the values at 0 and 1.1"),
        (blocks("Relu"), {"dense_out": [0]}, "dense_out is an output of the model"),
        (blocks("Relu"), {"proyect_out": [0]}, "did you mean 'project_out'"),
        (blocks("Relu"), {"project_out": [4]}, "project_out has no channel 4; legal are 0 to 3"),
    ],
)
def test_what_cannot_be_split(net: Net, wanted: dict[str, list[int]], said: str) -> None:
    made = line(net, "vta")
    with pytest.raises(ConfigError, match=said):
        split_channels(made.graph, made.topology, wanted)


@pytest.mark.parametrize("wanted", [3, "conv", {"a": 3}, {"a": []}, {"a": [-1]}, {"a": ["0"]}, {"a": [True]}])
def test_what_is_no_statement(wanted: Any) -> None:
    with pytest.raises(ConfigError, match="legal is a mapping of tensors or weights to lists of channels"):
        AnnotateOptions(split_channels=wanted)


def planted(path: Path) -> Path:
    """A chain of convolutions; one channel of the second is thirty times as large, and read by a thirtieth."""
    net = Net(3)
    x = net.node("Relu", net.conv(net.input(None, 1, 8, 8), 1, 16, 3, 3, **PAD))
    x = net.node("Relu", net.conv(x, 16, 16, 3, 3, name="far", **PAD), name="relu")
    x = net.node("Relu", net.conv(x, 16, 16, 3, 3, name="near", **PAD))
    net.output(net.dense(net.node("Flatten", net.node("GlobalAveragePool", x)), 16, 5))
    proto = net.proto()
    weights = {i.name: i for i in proto.graph.initializer}
    layers = {n.name: n for n in proto.graph.node}
    for layer, port, where, factor in (("far", 1, 3, 30), ("far", 2, 3, 30), ("near", 1, (slice(None), 3), 1 / 30)):
        constant = weights[layers[layer].input[port]]
        values = onnx.numpy_helper.to_array(constant).copy()
        values[where] *= factor
        constant.CopyFrom(onnx.numpy_helper.from_array(values, constant.name))
    onnx.save(proto, path)
    return path


@pytest.mark.program
def test_a_run_with_a_split_gives_what_explain_promised(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).random((96, 1, 8, 8), dtype=np.float32)
    samples = SampleSets(calibrate=pixels[:48], search=pixels[48:72], evaluate=pixels[72:])
    options: dict[str, Any] = {"model": planted(tmp_path / "m.onnx"), "hardware": "vta", "threshold": "max_range"}
    result = run(samples, tmp_path / "run", **options)
    answer = quantpipe.explain(result.folder, samples, culprits=4)
    rows = {row["members"][0]: row for row in answer["advice"] if "split" in row["change"]}
    row = rows["relu_out"]
    assert row["overrides"] == ["annotate.split_channels={relu_out:[3,3,3]}"]
    assert row["gain"] > 0.3
    assert row["cost_after"] > row["cost_before"]
    again = run(samples, tmp_path / "again", **options_of(row["overrides"], options))
    assert loss_of(again) == pytest.approx(row["loss_after"], rel=0.02)
    assert again.report["agreement"]["differing"] == 0
    assert again.report["search"]["metrics"] != result.report["search"]["metrics"]
