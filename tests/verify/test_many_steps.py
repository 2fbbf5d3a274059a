"""Kernels with more steps than are looked at one by one: their ops are read, and any other op is run on all of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from quantpipe.verify import chain, verify_folder, written
from tests.ops.line import Net, line
from tests.verify.folders import refreshed, write

CHANNELS = 66


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The model of a convolution whose 66 channels have 65,534 steps each; the folder is kept beside it."""
    net = Net(3)
    net.output(net.conv(net.input(None, 4, 3, 3), 4, CHANNELS, name="c"))
    made = line(net, "npu_w8a16")
    root = write(made, made.plan(16), "integer", tmp_path_factory.mktemp("many") / "run")
    _ROOT["run"] = root
    return (root / "realize" / "model.onnx").read_bytes()


_ROOT: dict[str, Path] = {}


@pytest.fixture
def root(original: bytes) -> Path:
    place = _ROOT["run"]
    (place / "realize" / "model.onnx").write_bytes(original)
    refreshed(place)
    return place


def edited(root: Path, change: Callable[[onnx.GraphProto], None]) -> str | None:
    """What is found after a change of the graph."""
    path = root / "realize" / "model.onnx"
    model = onnx.load(path)
    change(model.graph)
    path.write_bytes(model.SerializeToString())
    refreshed(root)
    return verify_folder(root).wrong


def node(graph: onnx.GraphProto, op: str) -> onnx.NodeProto:
    """The last node of an op: those before it split the input's integers into bytes."""
    return [n for n in graph.node if n.op_type == op][-1]


def constant(graph: onnx.GraphProto, name: str) -> onnx.TensorProto:
    return next(t for t in graph.initializer if t.name == name)


def put(tensor: onnx.TensorProto, values: Any) -> None:
    tensor.CopyFrom(numpy_helper.from_array(np.asarray(values), tensor.name))


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether ops were found to be the specification's, kernel by kernel."""
    found: list[bool] = []

    def noted(*args: Any) -> bool:
        found.append(chain.is_specified(*args))
        return found[-1]

    monkeypatch.setattr(written, "is_specified", noted)
    return found


def test_the_ops_are_read(root: Path, answers: list[bool]) -> None:
    assert verify_folder(root).wrong is None
    assert answers == [True]


def other_multiplier(graph: onnx.GraphProto) -> None:
    tensor = constant(graph, node(graph, "Mul").input[1])
    values = numpy_helper.to_array(tensor).copy()
    values.reshape(-1)[40] = np.nextafter(values.reshape(-1)[40], np.float32(1))
    put(tensor, values)


def lower_bound(graph: onnx.GraphProto) -> None:
    tensor = constant(graph, node(graph, "Clip").input[1])
    put(tensor, numpy_helper.to_array(tensor) + np.float32(1))


def floor(graph: onnx.GraphProto) -> None:
    node(graph, "Round").op_type = "Floor"


def between(graph: onnx.GraphProto, op: str, value: float) -> None:
    """One more op in front of rounding."""
    rounding = node(graph, "Round")
    graph.initializer.append(numpy_helper.from_array(np.float32(value), "planted_c"))
    at = list(graph.node).index(rounding)
    graph.node.insert(at, helper.make_node(op, [rounding.input[0], "planted_c"], ["planted_out"], name="planted"))
    rounding.input[0] = "planted_out"


def quarter(graph: onnx.GraphProto) -> None:
    between(graph, "Add", 0.25)


def narrow(graph: onnx.GraphProto) -> None:
    """Sums leave the range of the type that they are cast to before they are scaled."""
    cast = next(n for n in graph.node if n.output[0] == node(graph, "Mul").input[0])
    single = helper.make_node("Cast", [cast.input[0]], ["planted_half"], name="planted", to=onnx.TensorProto.FLOAT16)
    graph.node.insert(list(graph.node).index(cast), single)
    cast.input[0] = "planted_half"


@pytest.mark.parametrize("change", [other_multiplier, lower_bound, floor, quarter, narrow], ids=lambda c: c.__name__)
def test_other_ops_are_found(change: Callable[[onnx.GraphProto], None], root: Path) -> None:
    assert edited(root, change)


def test_an_op_that_changes_nothing_is_run_on_every_step(root: Path, answers: list[bool]) -> None:
    """A bound that no product reaches: not the specification's ops, and equal all the same."""
    assert edited(root, lambda graph: between(graph, "Max", -1e6)) is None
    assert answers == [False]
