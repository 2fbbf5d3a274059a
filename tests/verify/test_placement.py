"""Numbers per channel that lie along another axis, which is as long: no number changes, and every result does."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from quantpipe.verify import verify_folder
from tests.ops.line import Net, line
from tests.verify.folders import refreshed, write

CHANNELS = 5


def net(kind: str) -> Net:
    """A layer with as many channels as its result has rows, or columns."""
    made = Net(3)
    if kind == "dense":
        x = made.input(None, CHANNELS, 4)
        made.output(made.node("MatMul", x, made.floats(4, CHANNELS, scale=0.5), name="layer"))
    else:
        made.output(made.conv(made.input(None, 4, CHANNELS, CHANNELS), 4, CHANNELS, name="layer"))
    return made


def turned(path: Path, count: int) -> int:
    """Lay the constants of one of the ops that change integers along another axis; returns how many there are."""
    model = onnx.load(path)
    made = {o for n in model.graph.node for o in n.output}
    readers = {i for n in model.graph.node if n.op_type in ("Add", "Mul", "Clip", "BitShift") for i in n.input} - made
    longer = [t for t in model.graph.initializer if t.name in readers and sorted(t.dims)[-1:] == [CHANNELS]]
    for tensor in longer[count : count + 1]:
        size = max(tensor.dims)
        last = tensor.dims[-1] == size
        del tensor.dims[:]
        tensor.dims.extend([1, size, 1] if last else [1, 1, 1, size])
    path.write_bytes(model.SerializeToString())
    return len(longer)


@pytest.mark.sliced(5)
@pytest.mark.parametrize("kind", ["conv", "dense"])
@pytest.mark.parametrize("spec", ["ort_cpu", "vta", "tflite_int8", "npu_w8a16", "esp32p4"])
def test_numbers_of_channels_lie_along_channels(spec: str, kind: str, tmp_path: Path) -> None:
    made = line(net(kind), spec)
    root = write(made, made.plan(), "integer", tmp_path / "run")
    path = root / "realize" / "model.onnx"
    original = path.read_bytes()
    assert verify_folder(root).wrong is None
    for number in range(turned(path, 0)):
        path.write_bytes(original)
        turned(path, number)
        refreshed(root)
        wrong = verify_folder(root).wrong
        assert wrong is not None and "along another axis" in wrong, number


@pytest.mark.parametrize("kind", ["conv", "dense"])
@pytest.mark.parametrize("spec", ["ort_cpu", "tflite_int8"])
def test_a_constant_adds_no_axis(spec: str, kind: str, tmp_path: Path) -> None:
    """One more axis of length 1 in front changes no number; the result has it, too."""
    made = line(net(kind), spec)
    root = write(made, made.plan(), "integer", tmp_path / "run")
    path = root / "realize" / "model.onnx"
    original, changed = path.read_bytes(), 0
    for number, tensor in enumerate(onnx.load(path).graph.initializer):
        model = onnx.load_from_string(original)
        readers = [n.op_type for n in model.graph.node if tensor.name in n.input]
        if not readers or not {*readers} <= {"Add", "Mul", "Sub", "BitShift", "MatMulInteger"}:
            continue
        dims = model.graph.initializer[number].dims
        dims[:] = [*[1] * (5 - len(dims)), *dims]
        path.write_bytes(model.SerializeToString())
        refreshed(root)
        assert verify_folder(root).wrong is not None, tensor.name
        changed += 1
    assert changed


def test_numbers_of_windows_lie_along_their_axes(tmp_path: Path) -> None:
    """Windows that leave a map at two sides alone: their numbers of elements, turned, are another function."""
    made = Net(3)
    x = made.conv(made.input(None, 2, CHANNELS, CHANNELS), 2, 3, name="layer")
    made.output(made.node("AveragePool", x, kernel_shape=[3, 3], pads=[0, 1, 2, 1], strides=[1, 1], name="pool"))
    device = line(made, "cmsis_nn")
    root = write(device, device.plan(), "integer", tmp_path / "run")
    path = root / "realize" / "model.onnx"
    model, original = onnx.load(path), path.read_bytes()
    assert verify_folder(root).wrong is None
    arrays = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    maps = [
        n
        for n, a in arrays.items()
        if a.ndim >= 2 and a.shape[-2] == a.shape[-1] == CHANNELS and (a != a.swapaxes(-1, -2)).any()
    ]
    assert maps
    for name in maps:
        planted = onnx.ModelProto.FromString(original)
        tensor = next(t for t in planted.graph.initializer if t.name == name)
        tensor.CopyFrom(onnx.numpy_helper.from_array(arrays[name].swapaxes(-1, -2).copy(), name))
        path.write_bytes(planted.SerializeToString())
        refreshed(root)
        assert verify_folder(root).wrong is not None, name
