"""What bounds, pads and chooses among integers in a file is the op of real numbers that it stands for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from quantpipe.data import SampleSets
from quantpipe.errors import ModelError
from quantpipe.intake.quantized.restore import restore
from tests.explain.planted import run
from tests.ops.line import Net

PIXELS = np.random.default_rng(0).standard_normal((32, 4, 8, 8)).astype(np.float32)
SAMPLES = SampleSets(calibrate=PIXELS[:12], search=PIXELS[12:20], evaluate=PIXELS[20:])


def ends(net: Net, *results: str) -> Net:
    net.output(*(net.conv(x, 4, 3, 1, 1) for x in results))
    return net


def front(net: Net) -> tuple[str, str]:
    x = net.input(None, 4, 8, 8)
    return net.conv(x, 4, 4, 1, 1, name="a"), net.conv(x, 4, 4, 1, 1, name="b")


def clamps(net: Net) -> Net:
    """A Relu, a Clip and a Clip of one side, of tensors that others read without them, and of one that nobody does."""
    a, b = front(net)
    low, high = (net.constant(np.float32(v)) for v in (-0.4, 0.7))
    clipped = net.node("Clip", a, low, high)
    bounded = net.node("Relu", net.node("Where", net.constant(np.arange(64).reshape(8, 8) % 3 == 0), a, b))
    return ends(net, a, b, clipped, net.node("Relu", b), net.node("Clip", b, "", high), bounded)


def pads(net: Net) -> Net:
    a, _ = front(net)
    sides = net.constant(np.int64([0, 0, 1, 1, 0, 0, 1, 1]))
    padded = net.node("Pad", a, sides, net.constant(np.float32(0.5)))
    return ends(net, a, net.node("Pad", a, sides), padded, net.node("Pad", a, sides, mode="reflect"))


def choices(net: Net) -> Net:
    a, b = front(net)
    where = net.node("Where", net.constant(np.arange(256).reshape(1, 4, 8, 8) % 3 == 0), a, b)
    greatest = net.node("Add", a, net.node("ReduceMax", b, net.constant(np.int64([2, 3])), keepdims=1))
    return ends(net, where, net.node("Max", a, b), net.node("Min", a, b), net.top(a, 8, axis=3), greatest)


def copies(net: Net) -> Net:
    """Copies of values that are bounded to fewer bits than their type has, which nobody bounds again."""
    a, b = front(net)
    pooled = net.node("MaxPool", a, kernel_shape=[2, 2], strides=[1, 1], pads=[0, 0, 1, 1])
    sides = net.constant(np.int64([0, 0, 1, 1, 0, 0, 1, 1]))
    joined = net.node("Concat", b, net.node("Transpose", b, perm=[0, 1, 3, 2]), axis=2)
    return ends(net, a, pooled, net.node("Pad", pooled, sides), joined, net.node("Relu", joined))


NETS = {"clamps": clamps, "pads": pads, "choices": choices}


def outputs(path: Path) -> list[Any]:
    options = ort.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    found: list[Any] = ort.InferenceSession(str(path), options).run(None, {"x": PIXELS[20:]})
    return found


@pytest.mark.program
@pytest.mark.parametrize("form", ["qdq", "qoperator"])
@pytest.mark.parametrize("name", NETS)
def test_a_file_of_ours_comes_back_with_the_same_outputs(name: str, form: str, tmp_path: Path) -> None:
    onnx.save(NETS[name](Net(seed=3, opset=18)).proto(), tmp_path / "m.onnx")
    first = run(SAMPLES, tmp_path / "first", model=tmp_path / "m.onnx", realize=form)
    again = run(SAMPLES, tmp_path / "again", model=first.model_path, realize=form)
    assert again.report["agreement"]["differing"] == 0
    for one, other in zip(outputs(first.model_path), outputs(again.model_path), strict=True):
        np.testing.assert_array_equal(other, one)


@pytest.mark.program
@pytest.mark.parametrize("hardware", ["fbgemm", "openvino_x86"])
def test_copies_of_tensors_with_fewer_bits_have_no_more(hardware: str, tmp_path: Path) -> None:
    """fbgemm holds activations in 7 bits of a byte, and weights with a zero point for each channel."""
    onnx.save(copies(Net(seed=3, opset=18)).proto(), tmp_path / "m.onnx")
    first = run(SAMPLES, tmp_path / "first", hardware, model=tmp_path / "m.onnx", realize="qdq")
    again = run(SAMPLES, tmp_path / "again", hardware, model=first.model_path, realize="qdq")
    part = again.report["imported"]
    assert (part["changed"], part["weight_differing"], part["compared"]["differing"]) == ([], 0, 0)
    assert part["weight_integers"] > 0 and part["compared"]["elements"] > 0
    for one, other in zip(outputs(first.model_path), outputs(again.model_path), strict=True):
        np.testing.assert_array_equal(other, one)


def residual(net: Net) -> Net:
    x = net.input(None, 4, 8, 8)
    a = net.node("Relu", net.conv(x, 4, 4, 3, 3, pads=[1] * 4, name="a"))
    y = net.node("Relu", net.node("Add", a, net.conv(a, 4, 4, 1, 1, name="b"), name="sum"))
    z = net.node("Add", y, net.conv(y, 4, 4, 3, 3, pads=[1] * 4, name="c"), name="again")
    net.output(net.conv(z, 4, 3, 1, 1), net.node("GlobalAveragePool", z))
    return net


@pytest.mark.program
@pytest.mark.parametrize("seed", [0, 1])
def test_what_raises_halves_in_front_of_a_quant_is_no_addition(seed: int, tmp_path: Path) -> None:
    """A device that rounds halves up is written so in QONNX, whose Quant rounds them to even."""
    onnx.save(residual(Net(seed=seed, opset=18)).proto(), tmp_path / "m.onnx")
    first = run(SAMPLES, tmp_path / "first", "vta", model=tmp_path / "m.onnx", realize="qonnx")
    written = first.model_path.with_name("model.qonnx.onnx")
    raised = [n.name for n in onnx.load(written).graph.node if n.op_type == "Add" and "halves_up" in n.name]
    again = run(SAMPLES, tmp_path / "again", "vta", model=written)
    part = again.report["imported"]
    assert raised and part["changed"] == [] and part["compared"]["differing"] == 0
    assert not [name for name in again.plan.kernels if "halves_up" in name]


@pytest.mark.program
@pytest.mark.parametrize(
    ("op", "form"), [("ConvTranspose", "qdq"), ("ConvTranspose", "qoperator"), ("Elu", "qoperator")]
)
def test_whole_numbers_without_scales_come_back_by_qonnx(op: str, form: str, tmp_path: Path) -> None:
    """The message of a file that cannot be read back names the form that can, and that one has the same integers."""
    net = Net(seed=2, opset=18)
    a = net.conv(net.input(None, 4, 8, 8), 4, 4, 1, 1, name="a")
    b = net.node(op, a) if op == "Elu" else net.node(op, a, net.floats(4, 4, 2, 2, scale=0.3), kernel_shape=[2, 2])
    net.output(net.conv(b, 4, 3, 1, 1, name="last"))
    onnx.save(net.proto(), tmp_path / "m.onnx")
    first = run(SAMPLES, tmp_path / "first", model=tmp_path / "m.onnx", realize=[form, "qonnx"], verify="warn")
    with pytest.raises(ModelError, match=r"Give the float model, or the QONNX form.*realize=\[qdq,qonnx\]"):
        run(SAMPLES, tmp_path / "again", model=first.model_path)
    again = run(SAMPLES, tmp_path / "by", model=first.model_path.with_name("model.qonnx.onnx"))
    part = again.report["imported"]
    assert (part["changed"], part["lost"], part["compared"]["differing"]) == ([], [], 0)
    assert part["compared"]["elements"] > 0


@pytest.mark.parametrize(("share", "stays"), [(1 / 8, False), (1 / 64, False), (1 / 4, True), (1 / 12, True)])
def test_other_constants_in_front_of_a_quant_stay(share: float, stays: bool) -> None:
    scale = np.float32(0.3)
    constants = {
        "scale": scale,
        "zero": np.float32(0),
        "bits": np.float32(8),
        "c": np.float32(scale * np.float32(share)),
    }
    nodes = [
        onnx.helper.make_node("Add", ["x", "c"], ["y"], name="add"),
        onnx.helper.make_node("Relu", ["y"], ["z"], name="relu"),
        onnx.helper.make_node(
            "Quant",
            ["z", "scale", "zero", "bits"],
            ["q"],
            name="q",
            domain="qonnx.custom_op.general",
            signed=1,
            narrow=0,
        ),
    ]
    ports = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1, 4]) for n in ("x", "q")]
    held = [onnx.numpy_helper.from_array(v, n) for n, v in constants.items()]
    graph = onnx.helper.make_graph(nodes, "g", ports[:1], ports[1:], held)
    sets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("qonnx.custom_op.general", 1)]
    found = restore(ir.from_proto(onnx.helper.make_model(graph, opset_imports=sets)))
    assert ("Add" in [node.op_type for node in found.model.graph]) is stays


def test_a_reader_of_integers_that_nobody_knows_is_named_behind_any_op_with_scales(tmp_path: Path) -> None:
    net = Net(seed=3, opset=18)
    onnx.save(ends(net, *front(net)).proto(), tmp_path / "m.onnx")
    first = run(SAMPLES, tmp_path / "first", model=tmp_path / "m.onnx", realize="qoperator")
    model = onnx.load(first.model_path)
    (conv,) = [n for n in model.graph.node if n.name == "a"]
    assert conv.op_type == "QLinearConv"
    odd = onnx.helper.make_node("Mod", [conv.output[0], conv.output[0]], ["odd"], name="odd")
    model.graph.node.append(odd)
    model.graph.output.append(onnx.helper.make_tensor_value_info("odd", onnx.TensorProto.UINT8, None))
    onnx.save(model, tmp_path / "odd.onnx")
    with pytest.raises(ModelError, match=r"QLinearConv 'a'.*Mod 'odd' reads its integers as numbers"):
        run(SAMPLES, tmp_path / "again", model=tmp_path / "odd.onnx")


def test_a_cast_that_changes_integers_is_no_move(tmp_path: Path) -> None:
    """Bytes read as signed ones are other numbers; wider ones, and these back in bytes, are the same."""
    net = Net(seed=3, opset=18)
    onnx.save(ends(net, *front(net)).proto(), tmp_path / "m.onnx")
    first = run(SAMPLES, tmp_path / "first", model=tmp_path / "m.onnx", realize="qoperator")
    for back, legal in ((onnx.TensorProto.UINT8, True), (onnx.TensorProto.INT8, False)):
        model = onnx.load(first.model_path)
        (at,) = [i for i, n in enumerate(model.graph.node) if n.name == "a"]
        conv = model.graph.node[at]
        name, conv.output[0] = conv.output[0], "before"
        wide = onnx.helper.make_node("Cast", ["before"], ["wide"], name="wide", to=onnx.TensorProto.INT32)
        cast = [onnx.helper.make_node("Cast", ["wide"], ["narrow"], name="narrow", to=back)]
        if not legal:
            cast.append(onnx.helper.make_node("Cast", ["narrow"], [name], name="again", to=onnx.TensorProto.UINT8))
        else:
            cast[0].output[0] = name
        for node in reversed([wide, *cast]):
            model.graph.node.insert(at + 1, node)
        onnx.save(model, tmp_path / "cast.onnx")
        if legal:
            again = run(SAMPLES, tmp_path / "again", model=tmp_path / "cast.onnx", realize="qoperator")
            for one, other in zip(outputs(first.model_path), outputs(again.model_path), strict=True):
                np.testing.assert_array_equal(other, one)
            continue
        with pytest.raises(ModelError, match=r"Cast '(narrow|wide)' reads its integers as numbers"):
            run(SAMPLES, tmp_path / "refused", model=tmp_path / "cast.onnx")
