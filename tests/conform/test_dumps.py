"""Dumps with planted faults are found and explained; dumps that are none are refused by what is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantpipe import intmath
from quantpipe.conform.compare_dump import compare_dump, histogram
from quantpipe.conform.dump import read_dump
from quantpipe.conform.vectors import contents, hexed
from quantpipe.errors import ArtifactError
from quantpipe.types import DType, DumpedSet
from tests.conform.devices import described_on, line_on, replanned, run

FIRST = "relu1_out"
"""What the first convolution stores: it takes the Relu in."""


def compared(spec: str, tensors: dict[str, Any], folder: Path) -> DumpedSet:
    one, vectors = described_on(spec)
    np.savez(folder / "dump.npz", **tensors)
    return compare_dump(vectors, one, read_dump(folder / "dump.npz", vectors))


def explained(found: DumpedSet, tensor: str) -> list[str]:
    row = next(row for row in found["rows"] if row["tensor"] == tensor)
    return [f"{e['field']}: {e['value']}" for e in row["explanations"] if not e["left"]]


@pytest.mark.parametrize("spec", ["ort_cpu", "tflite_int8", "vta"])
def test_a_perfect_dump_differs_nowhere(spec: str, tmp_path: Path) -> None:
    _, vectors = described_on(spec)
    found = compared(spec, dict(vectors.golden), tmp_path)
    assert (found["differing"], found["first"], found["missing"]) == (0, None, [])
    assert found["elements"] == sum(v.size for v in vectors.golden.values())


@pytest.mark.sliced(2)
@pytest.mark.parametrize(
    ("spec", "change", "reason"),
    [
        ("tflite_int8", {"requantize": {"kind": "fixed_point", "rounding": "single"}}, "fixed_point, rounding single"),
        ("vta", {"requantize": {"kind": "shift", "rounding": "floor"}}, "shift, rounding floor"),
        (
            "ort_cpu",
            {"requantize": {"kind": "float_multiplier", "rounding": "floor"}},
            "float_multiplier, rounding floor",
        ),
    ],
)
def test_another_rounding_is_told_at_the_first_tensor_and_by_each_kernel_itself(
    spec: str, change: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    one, vectors = described_on(spec)
    found = compared(spec, run(one, replanned(one, change), vectors.inputs), tmp_path)
    assert found["first"] == FIRST and found["differing"] > 0
    assert f"requantize: {reason}" in explained(found, FIRST)
    behind = [r for r in found["rows"] if r["differing_own"] and r["tensor"] != FIRST]
    assert behind and all(any(reason in e["value"] and not e["left"] for e in r["explanations"]) for r in behind)


def test_a_pad_off_by_one_is_told(tmp_path: Path) -> None:
    one, vectors = described_on("tflite_int8")
    other = line_on("tflite_int8", (2, 1, 0, 1))
    graph = other.graph
    moved = type(one)(graph, one.topology, one.schema, one.strategy, one.hardware)
    found = compared("tflite_int8", run(moved, one.network.plan, vectors.inputs), tmp_path)
    assert found["first"] == FIRST
    assert explained(found, FIRST) == ["pads: windows moved by [-1, 0]: a pad off by one"]


def test_channels_in_another_order_are_told(tmp_path: Path) -> None:
    _, vectors = described_on("tflite_int8")
    tensors = dict(vectors.golden)
    tensors[FIRST] = tensors[FIRST][:, [0, 2, 1, *range(3, 8)]]
    found = compared("tflite_int8", tensors, tmp_path)
    assert found["first"] == FIRST
    assert explained(found, FIRST) == ["channels: in another order: 1 holds 2, 2 holds 1"]
    # What is behind was made of the right integers: it is wrong by itself, given what the dump says that it reads.
    behind = next(r for r in found["rows"] if r["node"] == "second")
    assert behind["differing"] == 0 and (behind["differing_own"] or 0) > 0


def test_pads_of_zero_and_stored_integers_that_wrap_are_told(tmp_path: Path) -> None:
    one, vectors = described_on("tflite_int8")
    plan = one.network.plan
    zero = plan.quantizers["x"].zero_point
    x = vectors.golden["x"].astype(np.int64) - zero
    node, numbers = one.graph.by_name["first"], plan.kernels["first"]
    weight = plan.weights[numbers.weight].values.astype(np.int64)  # type: ignore[union-attr]
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-zero)
    views = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    acc = np.einsum("nchwij,ocij->nohw", views, weight) + numbers.bias.reshape(-1, 1, 1)  # type: ignore[union-attr]
    how, out = numbers.output, plan.quantizers[FIRST]  # type: ignore[union-attr]
    fixed = (how.fixed.multiplier, how.fixed.shift)
    q = intmath.requantize_fixed_point(acc, fixed, how.zero_point, qmin=how.low, qmax=how.high, axis=1)
    found = compared("tflite_int8", {"x": vectors.golden["x"], FIRST: q.astype(np.int8)}, tmp_path)
    assert zero != 0 and node.op == "Conv" and explained(found, FIRST) == ["pad.value: zero"]
    assert found["missing"] and found["tensors"] == 2
    last = plan.kernels["last"]
    assert out.dtype is DType.INT8 and last is not None


@pytest.mark.parametrize("spec", ["tflite_int8", "vta", "ort_cpu"])
def test_integers_that_agree_by_chance_are_explained_by_nothing(spec: str, tmp_path: Path) -> None:
    _, vectors = described_on(spec)
    golden = vectors.golden[FIRST]
    drawn = np.random.default_rng(0).permutation(golden.reshape(-1)).reshape(golden.shape)
    found = compared(spec, {"x": vectors.golden["x"], FIRST: drawn}, tmp_path)
    row = next(row for row in found["rows"] if row["tensor"] == FIRST)
    assert row["differing"] > row["elements"] / 4 and row["explanations"] == []


def test_what_is_no_archive_is_said_so(tmp_path: Path) -> None:
    _, vectors = described_on("tflite_int8")
    np.savez(tmp_path / "dump.npz", x=vectors.golden["x"])
    for content in (b"hello", (tmp_path / "dump.npz").read_bytes()[:-30]):
        (tmp_path / "dump.npz").write_bytes(content)
        with pytest.raises(ArtifactError, match="is no npz file"):
            read_dump(tmp_path / "dump.npz", vectors)


def test_steps_are_counted_by_units_of_the_last_place() -> None:
    assert histogram(np.asarray([0, 0, 1, -1, 1, 9, 100, -300])) == {"<-8": 1, "-1": 1, "+1": 2, ">8": 2}


def test_every_format_is_read_as_it_is_written(tmp_path: Path) -> None:
    _, vectors = described_on("vta")
    for name, data in contents(vectors, hex_samples=4):
        path = tmp_path / "kit" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    whole = read_dump(tmp_path / "kit", vectors)
    for suffix in ("npy", "hex", "bin"):
        folder = tmp_path / suffix
        folder.mkdir()
        for tensor, stem in vectors.files.items():
            values = vectors.golden[tensor]
            if suffix == "npy":
                np.save(folder / f"{stem}.npy", values)
            else:
                (folder / f"{stem}.{suffix}").write_bytes(values.tobytes() if suffix == "bin" else hexed(values))
        found = read_dump(folder, vectors)
        assert found.tensors.keys() == whole.tensors.keys() and not found.missing
        assert all(np.array_equal(found.tensors[t], whole.tensors[t]) for t in whole.tensors)
    words = (tmp_path / "kit" / "hex" / f"{vectors.files['x']}.hex").read_text().split()
    assert [int(w, 16) for w in words] == [int(v) & 0xFF for v in vectors.golden["x"].reshape(-1)]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda g: {"y": g["x"]}, "'y' is no tensor of this set"),
        (lambda g: {"x": g["x"].astype(np.float32)}, "the type float32; legal are the stored integers, int8"),
        (lambda g: {"x": g["x"][:, :3]}, "'x' has the shape [4, 3, 8, 8]; legal is [1 … 4, 4, 8, 8]"),
        (lambda g: {FIRST: g[FIRST].transpose(0, 2, 3, 1).copy()[:, :, :4]}, "has the shape [4, 8, 4, 8]"),
        (lambda g: {"x": g["x"].astype(np.int16) + 128}, "its type is int8, -128 to 127"),
        (lambda g: {}, "holds no tensor of the set 'net'"),
        (lambda g: {"a": g["x"], "b": g["x"], "x": g["x"][0]}, "'b' is no tensor"),
    ],
)
def test_what_is_no_dump_says_which_tensor_and_why(change: Any, told: str, tmp_path: Path) -> None:
    _, vectors = described_on("tflite_int8")
    np.savez(tmp_path / "dump.npz", **change(vectors.golden))
    with pytest.raises(ArtifactError) as error:
        read_dump(tmp_path / "dump.npz", vectors)
    assert told in str(error.value)


def test_turned_axes_are_guessed_and_missing_files_named(tmp_path: Path) -> None:
    _, vectors = described_on("tflite_int8")
    np.savez(tmp_path / "dump.npz", x=vectors.golden["x"].transpose(0, 2, 3, 1))
    with pytest.raises(ArtifactError, match=r"its axes look turned: \[0, 2, 3, 1\]"):
        read_dump(tmp_path / "dump.npz", vectors)
    with pytest.raises(ArtifactError, match="is not there"):
        read_dump(tmp_path / "away", vectors)
    whole = (tmp_path / "dump.npz").read_bytes()
    (tmp_path / "broken.npz").write_bytes(whole[:40] + bytes(40) + whole[80:])
    with pytest.raises(ArtifactError, match="cannot be read as npz"):
        read_dump(tmp_path / "broken.npz", vectors)
    (tmp_path / "text.txt").write_text("1")
    with pytest.raises(ArtifactError, match=r"legal are \.npz"):
        read_dump(tmp_path / "text.txt", vectors)
