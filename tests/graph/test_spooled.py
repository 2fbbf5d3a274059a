"""Many weights of a model are in a file without a name, whose pages the system can take back."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from quantpipe.graph import spooled
from quantpipe.graph.execute import Session
from quantpipe.graph.external_weights import is_outside
from quantpipe.intake import read_model as intake


def file_of(weights: dict[str, np.ndarray], folder: Path) -> Path:
    """A sum of the input and every weight."""
    nodes, x = [], "x"
    for name in weights:
        nodes.append(helper.make_node("Add", [x, name], [f"{name}_sum"]))
        x = f"{name}_sum"
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 300]) for name in ("x", x)]
    constants = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], constants)
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return path


@pytest.fixture
def weights(monkeypatch: pytest.MonkeyPatch) -> dict[str, np.ndarray]:
    monkeypatch.setattr(spooled, "LEAST_SPOOLED", 1)
    monkeypatch.setattr(intake, "LEAST_APART", 1)
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal((1, 300)).astype(np.float32) for name in "abc"} | {
        name: rng.standard_normal((301, 300)).astype(np.float32)[:1].repeat(300, 0) for name in "de"
    }


def resident_kb(base: int) -> int:
    """The resident pages of the mapping that an address lies in."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if (span := line.split()[0].partition("-"))[1] and not line.split()[0].endswith(":"):
            inside = int(span[0], 16) <= base < int(span[2], 16)
        elif inside and line.startswith("Rss:"):
            return int(line.split()[1])
    raise AssertionError("no such mapping")


def test_values_are_those_of_the_file_before_and_after_pages_are_left(
    weights: dict[str, np.ndarray], tmp_path: Path
) -> None:
    model = intake.read_model(file_of(weights, tmp_path))
    held = {n: v.const_value.numpy() for n, v in model.graph.initializers.items() if v.const_value is not None}
    large = held["d"]
    assert not large.flags.writeable and not is_outside(model)
    for name, array in weights.items():
        np.testing.assert_array_equal(held[name], array)
    base = large.__array_interface__["data"][0]
    assert resident_kb(base) > 0
    spooled.leave_pages()
    assert resident_kb(base) == 0
    x = np.zeros((300, 300), np.float32)
    expected = x
    for array in weights.values():
        expected = expected + array
    np.testing.assert_array_equal(Session(model).run({"x": x})["e_sum"], expected)
    assert not list(tmp_path.glob("quantpipe-*"))


def test_without_room_on_the_disk_they_stay_in_memory(
    weights: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    model = intake.read_model(file_of(weights, tmp_path))
    tensor = model.graph.initializers["d"].const_value
    assert isinstance(tensor, ir.Tensor)
    np.testing.assert_array_equal(tensor.numpy(), weights["d"])
