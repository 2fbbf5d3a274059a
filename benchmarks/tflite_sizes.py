"""Compare the bytes of .tflite files with those of LiteRT's own quantizer, on models that both convert.

    python benchmarks/tflite_sizes.py float FOLDER --zoo FOLDER      # the plan's files, and float ones
    python benchmarks/tflite_sizes.py theirs FOLDER                  # where ai-edge-quantizer is installed
    python benchmarks/tflite_sizes.py table FOLDER --out benchmarks/results/tflite_sizes.md

The quantizer takes float .tflite files. They are made of quantpipe's own integer ones: every operator as it is, weights
and biases as the real numbers that their integers mean, no Quantize and no Dequantize at the ends. It then makes static
int8 of them, with weights per channel.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

MODELS = ("digits", "cifar10_resnet20", "imagenet_efficientnet_lite0")


def main() -> None:
    """Take one of the steps."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("step", choices=("float", "theirs", "table"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--zoo", type=Path)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/tflite_sizes.md"))
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if given.step == "table":
        given.out.write_text(page(given.folder), encoding="utf-8")
        return
    for model in MODELS:
        if given.step == "float":
            own(model, given.folder, given.zoo)
        else:
            theirs(model, given.folder)


def own(model: str, folder: Path, zoo: Path | None) -> None:
    """Write the plan's file of a model, and a float file of the same network."""
    import quantpipe
    from benchmarks.formats import source

    path, data = source(model, zoo)
    sizes = {"agreement_samples": 2, "layer_samples": 1, "latency_runs": 1, "baseline": "none"}
    result = quantpipe.quantize(
        path, data[:32], "tflite_int8", realize="tflite_integer_io", recover="none", precision="none", evaluate=sizes
    )
    content = (result.folder / "realize" / "model_integer_io.tflite").read_bytes()
    (folder / f"{model}.quantpipe.tflite").write_bytes(content)
    (folder / f"{model}.float.tflite").write_bytes(in_float(content))


def in_float(content: bytes) -> bytes:
    """Return a file of integers as one of real numbers."""
    from quantpipe.intake.tflite import litert

    s = litert.schema()
    model = s.ModelT.InitFromObj(s.Model.GetRootAs(content))
    graph = model.subgraphs[0]
    kinds = {s.TensorType.INT8: np.int8, s.TensorType.INT32: np.int32}
    for tensor in graph.tensors:
        grid = tensor.quantization
        if grid is None or grid.scale is None or tensor.type not in kinds:
            continue
        data = model.buffers[tensor.buffer].data
        if data is not None and len(data):
            values = np.frombuffer(bytes(data), kinds[tensor.type]).reshape(tensor.shape).astype(np.float32)
            lanes = [1] * values.ndim
            lanes[grid.quantizedDimension] = -1
            scale, zero = (np.asarray(v, np.float32) for v in (grid.scale, grid.zeroPoint))
            real = (values - zero.reshape(lanes)) * scale.reshape(lanes) if scale.size > 1 else (values - zero) * scale
            buffer = s.BufferT()
            buffer.data = np.frombuffer(real.astype(np.float32).tobytes(), np.uint8)
            model.buffers.append(buffer)
            tensor.buffer = len(model.buffers) - 1
        tensor.type, tensor.quantization = s.TensorType.FLOAT32, None
    used = {t.buffer for t in graph.tensors}
    for number, buffer in enumerate(model.buffers):
        buffer.data = buffer.data if number in used else None
    model.metadata = None
    builder = litert.flatbuffers().Builder(len(content))
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


def theirs(model: str, folder: Path) -> None:
    """Quantize a float file by LiteRT's own quantizer."""
    from ai_edge_litert.interpreter import Interpreter
    from ai_edge_quantizer import quantizer, recipe

    path = folder / f"{model}.float.tflite"
    found: Any = quantizer.Quantizer(str(path))
    found.load_quantization_recipe(recipe.static_wi8_ai8())
    interpreter = Interpreter(str(path))
    (port,) = interpreter.get_input_details()
    name = next(iter(interpreter.get_signature_list()["serving_default"]["inputs"]))
    rng = np.random.default_rng(0)
    samples = [{name: rng.standard_normal(port["shape"]).astype(np.float32)} for _ in range(8)]
    result = found.quantize(found.calibrate({"serving_default": samples}))
    (folder / f"{model}.litert.tflite").write_bytes(bytes(result.quantized_model))


def page(folder: Path) -> str:
    """The table as Markdown."""
    lines = [
        "# Sizes of .tflite files",
        "",
        "Made by `python benchmarks/tflite_sizes.py`: bytes of quantpipe's file (`realize=tflite_integer_io`, its "
        "metadata included), of the float file of the same network, and of what LiteRT's own quantizer "
        "(ai-edge-quantizer 0.10.0, static int8, weights per channel) makes of that.",
        "",
        "| model | float | quantpipe | LiteRT's quantizer |",
        "|---|---|---|---|",
    ]
    for model in MODELS:
        paths = [folder / f"{model}.{kind}.tflite" for kind in ("float", "quantpipe", "litert")]
        if all(p.is_file() for p in paths):
            lines.append(f"| {model} | " + " | ".join(f"{p.stat().st_size:,}" for p in paths) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
