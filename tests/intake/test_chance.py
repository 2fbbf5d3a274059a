"""Ops that draw random numbers: an input that carries the numbers, their mean, or a refusal that names the ways out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantpipe
from quantpipe.errors import ModelError, QuantpipeError
from quantpipe.graph.execute import Session
from quantpipe.intake.load import RawModel, read_graph
from quantpipe.types import RandomOps

X = np.random.default_rng(0).standard_normal((256, 4, 6)).astype(np.float32)
TRUE, HALF = np.array(True), np.float32(0.25)
DRAWS: dict[str, tuple[list[str], dict[str, Any], float | None]] = {
    "RandomNormalLike": (["h"], {"mean": 0.5, "scale": 2.0}, 0.5),
    "RandomUniformLike": (["h"], {"low": -1.0, "high": 3.0}, 1.0),
    "RandomNormal": ([], {"shape": [1, 8, 6]}, 0.0),
    "RandomUniform": ([], {"shape": [1, 8, 6]}, 0.5),
    "Bernoulli": (["p"], {}, None),
    "Dropout": (["h", "ratio", "true"], {}, None),
}
"""Op -> its inputs, its attributes and the mean of what it draws."""


def model(op: str, inputs: list[str], attributes: dict[str, Any]) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], pads=[1, 1]),
        helper.make_node("Sigmoid", ["h"], ["p"]),
        helper.make_node(op, inputs, ["e"], name="draw", **attributes),
        helper.make_node("Add", ["h", "e"], ["s"]),
        helper.make_node("Conv", ["s", "v"], ["y"]),
    ]
    rng = np.random.default_rng(1)
    held = {"w": rng.standard_normal((8, 4, 3)), "v": rng.standard_normal((2, 8, 1))}
    constants = [numpy_helper.from_array(a.astype(np.float32), n) for n, a in held.items()]
    constants += [numpy_helper.from_array(np.asarray(TRUE), "true"), numpy_helper.from_array(np.asarray(HALF), "ratio")]
    ports = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", ["n", 4, 6]), ("y", ["n", 2, 6]))
    ]
    graph = helper.make_graph(nodes, "net", ports[:1], ports[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def read(tmp_path: Path, op: str, random: RandomOps | None) -> RawModel:
    inputs, attributes, _ = DRAWS[op]
    onnx.save(model(op, inputs, attributes), tmp_path / "m.onnx")
    return read_graph(tmp_path / "m.onnx", random=random)


def drawn(raw: RawModel, feeds: dict[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    model = raw.graph.model
    known = {v.name: v for n in model.graph for v in n.outputs}
    model.graph.outputs.extend([known["e"], known["h"]])
    found = Session(model).run(feeds)
    return found["e"] / found["h"] if "Dropout" in raw.graph.source else found["e"]


@pytest.mark.parametrize("op", DRAWS)
def test_numbers_come_by_an_input(op: str, tmp_path: Path) -> None:
    raw = read(tmp_path, op, RandomOps.INPUT)
    assert [i.name for i in raw.graph.inputs] == ["x", "noise/draw"]
    assert raw.graph.inputs[1].shape == (None, 8, 6)
    assert not any(node.op == op for node in raw.graph.nodes)
    noise = np.random.default_rng(2).uniform(0, 1, (256, 8, 6)).astype(np.float32)
    found = drawn(raw, {"x": X, "noise/draw": noise})
    if op == "Bernoulli":
        assert set(np.unique(found)) == {0, 1} and not np.array_equal(found, noise)
    elif op == "Dropout":
        assert 0.7 < np.mean(found != 0) < 0.8  # one in four is dropped
    else:
        assert np.array_equal(found, noise)


@pytest.mark.parametrize("op", DRAWS)
def test_numbers_are_their_mean(op: str, tmp_path: Path) -> None:
    raw = read(tmp_path, op, RandomOps.ZERO)
    assert [i.name for i in raw.graph.inputs] == ["x"]
    assert not any(node.op == op for node in raw.graph.nodes)
    outputs = Session(raw.graph.model).run({"x": X})
    again = Session(raw.graph.model).run({"x": X})
    assert np.array_equal(outputs["y"], again["y"])
    mean = DRAWS[op][2]
    if mean:
        assert np.allclose(drawn(raw, {"x": X}), mean)
    if mean == 0 and op.endswith("Like"):
        assert [n.op for n in raw.graph.nodes if n.op == "Add"] == []


def test_sums_with_zeros_are_taken_out(tmp_path: Path) -> None:
    onnx.save(model("RandomNormalLike", ["h"], {}), tmp_path / "m.onnx")
    assert "Add" not in {n.op for n in read_graph(tmp_path / "m.onnx", random=RandomOps.ZERO).graph.nodes}


@pytest.mark.parametrize("op", DRAWS)
def test_without_the_option_the_ways_out_are_named(op: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"node 'draw'.*model\.random=input.*model\.random=zero"):
        read(tmp_path, op, None)


def test_a_hash_of_its_own(tmp_path: Path) -> None:
    hashes = {read(tmp_path, "RandomNormalLike", how).graph.model_hash for how in RandomOps}
    assert len(hashes) == 2


def refused(op: str, inputs: list[str], attributes: dict[str, Any], random: RandomOps, tmp_path: Path) -> str:
    onnx.save(model(op, inputs, attributes), tmp_path / "m.onnx")
    with pytest.raises(ModelError) as caught:
        read_graph(tmp_path / "m.onnx", random=random)
    return str(caught.value)


def test_numbers_without_an_axis_of_samples_are_refused(tmp_path: Path) -> None:
    text = refused("RandomNormal", [], {"shape": [8, 6]}, RandomOps.INPUT, tmp_path)
    assert "draws [8, 6] numbers whatever the number of samples is" in text and "model.random=zero" in text


@pytest.mark.parametrize("how", RandomOps)
def test_drawn_places_are_refused(how: RandomOps, tmp_path: Path) -> None:
    assert "draws places" in refused("Multinomial", ["h"], {}, how, tmp_path)


@pytest.mark.parametrize("how", RandomOps)
def test_a_draw_inside_a_loop_is_refused(how: RandomOps, tmp_path: Path) -> None:
    body = helper.make_graph(
        [
            helper.make_node("RandomNormalLike", ["s"], ["e"], name="inner"),
            helper.make_node("Add", ["s", "e"], ["t"]),
            helper.make_node("Identity", ["c"], ["d"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("s", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("d", TensorProto.BOOL, []),
            helper.make_tensor_value_info("t", TensorProto.FLOAT, None),
        ],
    )
    nodes = [helper.make_node("Loop", ["m", "c0", "x"], ["y"], body=body)]
    held = [numpy_helper.from_array(np.array(3), "m"), numpy_helper.from_array(np.array(True), "c0")]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 4]) for n in "xy"]
    graph = helper.make_graph(nodes, "net", ports[:1], ports[1:], held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    with pytest.raises(
        ModelError, match=r"node 'inner': RandomNormalLike draws random numbers in the body of another op"
    ):
        read_graph(tmp_path / "m.onnx", random=how)


def small(tmp_path: Path, samples: Any, **options: Any) -> quantpipe.Result:
    onnx.save(model("RandomNormalLike", ["h"], {"scale": 0.5}), tmp_path / "m.onnx")
    dataset = {"samples": {"calibrate": 128, "search": 16, "evaluate": 16}}
    return quantpipe.quantize(tmp_path / "m.onnx", samples, dataset=dataset, recover="none", **options)


@pytest.mark.program
def test_a_run_draws_numbers_by_its_seed_for_all_models(tmp_path: Path) -> None:
    result = small(tmp_path, X, random="input")
    assert result.report["agreement"]["differing"] == 0 and result.report["outputs"][0]["sqnr_db"] > 25
    again = small(tmp_path, X, random="input")
    other = small(tmp_path, X, random="input", seed=1)
    assert again.report["outputs"][0]["sqnr_db"] == result.report["outputs"][0]["sqnr_db"]
    assert other.report["outputs"][0]["sqnr_db"] != result.report["outputs"][0]["sqnr_db"]


@pytest.mark.program
def test_data_of_the_name_of_the_input_are_used(tmp_path: Path) -> None:
    noise = np.zeros((256, 8, 6), np.float32)
    noise[:, :, 0] = 7
    result = small(tmp_path, {"x": X, "noise/draw": noise}, random="input")
    assert result.report["agreement"]["differing"] == 0 and "drawn" not in str(result.report["data"])


def test_another_value_is_refused(tmp_path: Path) -> None:
    with pytest.raises(QuantpipeError, match=r"model\.random: is 'none'; legal are null, input, zero"):
        small(tmp_path, X, random="none")


@pytest.mark.parametrize(("ratio", "text"), [(None, "a ratio that is no constant"), (1.0, "the ratio 1")])
def test_a_dropout_without_a_usable_ratio_is_refused(ratio: float | None, text: str, tmp_path: Path) -> None:
    """A ratio that is no constant must not become the default of the op."""
    ports = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])]
    constants = [numpy_helper.from_array(np.asarray(True), "training")]
    if ratio is None:
        ports.append(helper.make_tensor_value_info("ratio", TensorProto.FLOAT, []))
    else:
        constants.append(numpy_helper.from_array(np.asarray(ratio, np.float32), "ratio"))
    node = helper.make_node("Dropout", ["x", "ratio", "training"], ["y"], name="drop")
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    made = helper.make_graph([node], "made", ports, [output], constants)
    path = tmp_path / "drop.onnx"
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    with pytest.raises(ModelError, match=text):
        read_graph(path, random=RandomOps.INPUT)
