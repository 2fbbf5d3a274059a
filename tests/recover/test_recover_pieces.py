"""Segments, the spool between them, and the file of what was recovered."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantpipe.data.sources.digits import digits_arrays
from quantpipe.errors import ArtifactError
from quantpipe.intake.load import load_graph
from quantpipe.plan import Overrides
from quantpipe.recover import overrides_arrays, overrides_from_arrays
from quantpipe.recover.reconstruct.activation_store import ActivationStore
from quantpipe.recover.reconstruct.segments import segments
from quantpipe.types import DType, Form, Topology, WeightTensor
from tests.ops.line import ArraySamples, Line, Net, hardware, line, schema_for


def residual() -> Net:
    """conv + conv -> relu -> conv, and a branch whose accumulator is read by two additions."""
    net = Net()
    x = net.input(None, 4, 6, 6)
    a, b = net.conv(x, 4, 4, name="a"), net.conv(x, 4, 4, name="b")
    first = net.node("Relu", net.node("Add", a, b, name="first"), name="r1")
    c = net.conv(first, 4, 4, 3, 3, pads=[1, 1, 1, 1], name="c")
    second = net.node("Add", c, first, name="second")
    third = net.node("Add", c, x, name="third")
    net.output(net.node("Concat", second, third, axis=1, name="joined"))
    return net


def digits(name: str) -> Line:
    images, _ = digits_arrays()
    x = (images[:32] / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    path = Path(__file__).resolve().parents[2] / "quantpipe" / "assets" / "digits.onnx"
    graph = load_graph(path, lambda raw: {raw.inputs[0].name: x[:4]})
    spec = hardware(name)
    return Line(graph, spec, schema_for(spec), ArraySamples({graph.inputs[0].name: x}))


CASES = {f"{name} on {hw}": (name, hw) for name in ("digits", "residual") for hw in ("vta", "ort_cpu", "hago_sample")}


@pytest.fixture(params=CASES.values(), ids=CASES.keys())
def case(request: Any) -> Line:
    name, hw = request.param
    return digits(hw) if name == "digits" else line(residual(), hw)


def test_every_kernel_is_in_a_segment_and_every_weight_solved_in_order(case: Line) -> None:
    parts = segments(case.graph, case.topology)
    place = {n.name: i for i, n in enumerate(case.graph.nodes)}
    assert {k.node for p in parts for k in p.kernels} == {k.node for k in case.topology.kernels}
    first = list(dict.fromkeys(k.node for p in parts for k in p.kernels if k.weight is not None))
    assert len(first) == sum(k.weight is not None for k in case.topology.kernels)
    every = [k for p in parts for k in p.kernels]
    for kernel in every:  # only what makes an accumulator is computed again, for each of its consumers
        assert every.count(kernel) == 1 or kernel.form is Form.RAW, kernel.node
    for part in parts:
        assert list(part.nodes) == sorted(part.nodes, key=place.__getitem__)


def test_accumulators_stay_inside_a_segment(case: Line) -> None:
    for part in segments(case.graph, case.topology):
        made = {k.output for k in part.kernels}
        for kernel in part.kernels:
            assert {o.tensor for o in kernel.operands if o.form is Form.RAW} <= made, part
        assert not made & set(part.inputs)


def test_segments_find_their_inputs_made(case: Line) -> None:
    known = {i.name for i in case.graph.inputs}
    for part in segments(case.graph, case.topology):
        assert set(part.inputs) <= known, part
        known |= set(part.outputs)
    assert set(case.graph.output_names) <= known


def test_devices_hand_accumulators_to_additions() -> None:
    """Otherwise the tests above would look at nothing."""
    for found in (digits("vta"), digits("hago_sample"), line(residual(), "hago_sample")):
        assert any(len(p.kernels) > 1 for p in segments(found.graph, found.topology))


# ---------------------------------------------------------------- the spool

ARRAYS = {
    "floats": np.linspace(-1, 1, 60, dtype=np.float32).reshape(3, 4, 5),
    "bytes": np.arange(100, dtype=np.uint8),
    "transposed": np.arange(24.0).reshape(4, 6).T,
    "scalar": np.asarray(2.5, np.float32),
    "empty": np.zeros((0, 3), np.float32),
    "flags": np.asarray([True, False]),
}


@pytest.mark.parametrize("limit", [0, 300, 10**6])
def test_the_spool_gives_back_what_was_put(limit: int) -> None:
    with ActivationStore(limit) as spool:
        for batch in (0, 1):
            for name, array in ARRAYS.items():
                spool.put(name, batch, array + batch if array.dtype != bool else array)
                assert sum(a.nbytes for a in spool._memory.values()) == spool._used <= limit
        for name, array in ARRAYS.items():
            for batch in (0, 1):
                found, expected = spool.get(name, batch), array + batch if array.dtype != bool else array
                assert found.dtype == expected.dtype and found.shape == expected.shape
                np.testing.assert_array_equal(found, expected)


def test_dropping_makes_room_and_places_are_used_again() -> None:
    rng = np.random.default_rng(0)
    with ActivationStore(1000) as spool:
        arrays = {name: rng.integers(0, 256, 1000, dtype=np.uint8) for name in "abcde"}
        for name in "abc":
            spool.put(name, 0, arrays[name])
        assert (spool._used, spool._file._end) == (1000, 2000)
        spool.drop(["a", "b", "never seen"])
        assert spool._used == 0
        spool.put("d", 0, arrays["d"])
        spool.put("e", 0, arrays["e"])
        assert (spool._used, spool._file._end) == (1000, 2000), "in the place of b"
        for name in "cde":
            np.testing.assert_array_equal(spool.get(name, 0), arrays[name])
        with pytest.raises(KeyError):
            spool.get("a", 0)


@pytest.mark.parametrize("limit", [0, 10**6])
def test_an_array_takes_the_place_of_another_one(limit: int) -> None:
    with ActivationStore(limit) as spool:
        for size in (10, 1000, 10):
            spool.put("a", 0, np.full(size, size))
            np.testing.assert_array_equal(spool.get("a", 0), np.full(size, size))
        assert spool._used == (80 if limit else 0)
        assert spool._file._end == (0 if limit else 80 + 8000)


def test_the_file_has_no_name_and_a_short_one_is_said() -> None:
    before = set(Path(tempfile.gettempdir()).glob("quantpipe-*"))
    with ActivationStore(0) as spool:
        spool.put("a", 0, np.zeros(1000))
        assert set(Path(tempfile.gettempdir()).glob("quantpipe-*")) <= before
        os.ftruncate(spool._file._file.fileno(), 4000)
        with pytest.raises(OSError, match="ends at byte 4000"):
            spool.get("a", 0)


# ---------------------------------------------------------------- the file


def some_overrides(topology: Topology) -> Overrides:
    rng = np.random.default_rng(0)
    found = Overrides({}, {})
    for kernel in topology.kernels:
        if kernel.weight is not None:
            site = topology.weight_of[kernel.weight]
            values = rng.integers(-7, 8, (4, 3)).astype(np.int8)
            scale = np.asarray(0.5 if site.axis is None else rng.uniform(0.1, 1, 4), np.float32)
            found.weights[kernel.weight] = WeightTensor(kernel.weight, values, scale, site.axis, site.dtype, 4)
            found.biases[kernel.node] = rng.standard_normal(4)
    return found


@pytest.mark.parametrize("hw", ["vta", "ort_cpu"])
def test_overrides_come_back_from_their_arrays(hw: str, tmp_path: Path) -> None:
    topology = line(residual(), hw).topology
    before = some_overrides(topology)
    np.savez(tmp_path / "w.npz", **overrides_arrays(before))
    with np.load(tmp_path / "w.npz") as arrays:
        after = overrides_from_arrays(dict(arrays), topology, "w.npz")
    assert list(after.weights) == list(before.weights) and list(after.biases) == list(before.biases)
    for tensor, weight in before.weights.items():
        found = after.weights[tensor]
        assert (found.tensor, found.axis, found.dtype, found.bits) == (tensor, weight.axis, weight.dtype, 4)
        assert found.values.dtype == np.int8 and isinstance(found.dtype, DType)
        np.testing.assert_array_equal(found.values, weight.values)
        np.testing.assert_array_equal(found.scale, weight.scale)
        assert found.scale.shape == weight.scale.shape
        np.testing.assert_array_equal(
            after.biases[topology_node(topology, tensor)], before.biases[topology_node(topology, tensor)]
        )


def topology_node(topology: Topology, tensor: str) -> str:
    return next(k.node for k in topology.kernels if k.weight == tensor)


def test_overrides_of_another_topology_are_refused() -> None:
    topology = line(residual(), "vta").topology
    arrays = overrides_arrays(some_overrides(topology))
    net = Net()
    net.output(net.conv(net.input(None, 4, 6, 6), 4, 4, name="other"))
    with pytest.raises(ArtifactError, match=r"w\.npz.*does not fit|does not fit.*w\.npz"):
        overrides_from_arrays(arrays, line(net, "vta").topology, "w.npz")
    biases = {k: v for k, v in arrays.items() if k.startswith("bias/")}
    with pytest.raises(ArtifactError, match="does not fit"):
        overrides_from_arrays(biases, line(net, "vta").topology, "w.npz")
    incomplete = {k: v for k, v in arrays.items() if not k.startswith("scale/")}
    with pytest.raises(ArtifactError, match="does not fit"):
        overrides_from_arrays(incomplete, topology, "w.npz")
