"""What a reader of the documents has lying on the desk: models, samples and modules under the names that pages use."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper
from PIL import Image

from tests.api.nets import CLASSES, images, small_net
from tests.e2e.data_models import normal, write
from tests.ops.line import Net

MODULE = """
import numpy as np


def samples(split, seed):
    rng = np.random.default_rng([len(split), seed])
    for number in range(24):
        yield rng.standard_normal((3, 8, 8)).astype(np.float32), number % 5


def tokens(text):
    return {"input_ids": np.frombuffer(text.encode(), np.uint8).astype(np.int64)}
"""


def lay(folder: Path) -> None:
    """Put everything into a folder."""
    for name in ("model.onnx", "resnet20.onnx", "m.onnx"):
        onnx.save(small_net(), folder / name)
    onnx.save(_net_of_pictures(), folder / "efficientnet.onnx")
    for name in ("int8.onnx", "quantized.onnx", "theirs.onnx"):
        (folder / name).write_bytes(_integers())
    (folder / "net.tflite").write_bytes(_tflite())
    for number, name in enumerate(("samples.npz", "calib.npz", "val.npz")):
        pixels = _pixels(64, number)
        np.savez(folder / name, images=pixels, labels=_answers(pixels))
    np.save(folder / "images.npy", images())
    np.save(folder / "labels.npy", np.arange(48) % CLASSES)
    for number, name in enumerate(("calib", "val")):
        _pictures(folder / name, number + 7)
    rows = "".join(f"kind{number},{number}\n" for number in range(CLASSES))
    (folder / "labels.csv").write_text("wnid,index\n" + rows)
    (folder / "mydata.py").write_text(MODULE)
    _recordings(folder / "recordings")
    _streaming(folder / "vad.onnx")


@cache
def _integers() -> bytes:
    """An integer model."""
    import quantpipe

    result = quantpipe.quantize(small_net(), images(), evaluate={"latency_runs": 1})
    return Path(result.model_path).read_bytes()


@cache
def _tflite() -> bytes:
    """An integer model as a file of TensorFlow Lite."""
    import quantpipe

    result = quantpipe.quantize(
        small_net(), images(), "tflite_int8", realize="tflite", evaluate={"latency_runs": 1, "explain": "none"}
    )
    return (result.folder / "realize" / "model.tflite").read_bytes()


def _net_of_pictures() -> onnx.ModelProto:
    net = Net()
    x = net.conv(net.input(None, 3, 224, 224), 3, 8, 3, 3, strides=[4, 4])
    x = net.node("Flatten", net.node("GlobalAveragePool", net.node("Relu", x)))
    net.output(net.dense(x, 8, CLASSES))
    return net.proto()


def _answers(pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The classes that the small net gives pictures, so that it is no worse than guessing by these labels."""
    session = ort.InferenceSession(small_net().SerializeToString(), providers=["CPUExecutionProvider"])
    feed = np.ascontiguousarray(np.moveaxis(pixels, -1, 1)).astype(np.float32)
    return np.asarray(np.argmax(session.run(None, {session.get_inputs()[0].name: feed})[0], axis=1))


def _pixels(count: int, seed: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, (count, 8, 8, 3), np.uint8)


def _pictures(folder: Path, seed: int) -> None:
    for number, pixels in enumerate(_pixels(30, seed)):
        kind = folder / f"kind{number % CLASSES}"
        kind.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).resize((32, 32)).save(kind / f"{number:03}.png")


def _recordings(folder: Path) -> None:
    import soundfile

    folder.mkdir()
    rng = np.random.default_rng(5)
    for number in range(12):
        sound = np.clip(0.3 * rng.standard_normal(512 * 6), -1, 1)
        soundfile.write(folder / f"{number:03}.wav", sound, 16000)


def _streaming(path: Path) -> None:
    """wave [N, 512], state_in [N, 8] -> y [N, 2], state_out [N, 8]."""
    nodes = [
        helper.make_node("Concat", ["wave", "state_in"], ["both"], axis=1),
        helper.make_node("Gemm", ["both", "w", "b"], ["sum"]),
        helper.make_node("Tanh", ["sum"], ["state_out"]),
        helper.make_node("Gemm", ["state_out", "v", "c"], ["y"]),
    ]
    constants = {"w": normal(0, 520, 8, scale=0.1), "b": normal(1, 8), "v": normal(2, 8, 2), "c": normal(3, 2)}
    write(
        path,
        nodes,
        [("wave", ["N", 512], "float32"), ("state_in", ["N", 8], "float32")],
        [("y", ["N", 2], "float32"), ("state_out", ["N", 8], "float32")],
        constants,
    )
