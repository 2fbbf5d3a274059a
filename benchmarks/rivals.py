"""onnxruntime's own quantization of a model on given samples: static (Q/DQ, min-max, uint8 activations, int8 weights
per channel) and dynamic. The static form is its fastest on x86; the weights of the dynamic one are int8, or uint8 where
the runtime has no kernel for that (ConvInteger), per channel where that runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import version_converter
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

Arrays = Mapping[str, np.ndarray[Any, Any]]


def session(path: Path, threads: int = 1) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def batches(arrays: Arrays, size: int) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
    count = len(next(iter(arrays.values())))
    for start in range(0, count, size):
        yield {name: array[start : start + size] for name, array in arrays.items()}


class _Reader(CalibrationDataReader):
    def __init__(self, arrays: Arrays, size: int) -> None:
        self._batches = batches(arrays, size)

    def get_next(self) -> Any:
        return next(self._batches, None)


def prepared(model: Path, folder: Path) -> Path:
    """What onnxruntime advises before quantization; where its symbolic shape inference fails, without that."""
    target = folder / "prepared.onnx"
    for skip in (False, True):
        try:
            quant_pre_process(str(model), str(target), skip_symbolic_shape=skip)
            return target
        except Exception:
            if skip:
                return model
    return model


def static(model: Path, folder: Path, calibrate: Arrays, size: int) -> tuple[Path, str]:
    """(file, what it is): the first form that runs. Scales per channel need opset 13, which onnx's own converter gives
    older models."""
    target, failed = folder / "static.onnx", None
    for source, per_channel in ((model, True), (None, True), (model, False)):
        try:
            quantize_static(
                str(prepared(source or _converted(model, folder), folder)),
                str(target),
                _Reader(calibrate, size),
                quant_format=QuantFormat.QDQ,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                per_channel=per_channel,
            )
            session(target).run(None, next(batches(calibrate, size)))
            return target, f"U8S8 per {'channel' if per_channel else 'tensor'}"
        except Exception as error:
            failed = error
    raise RuntimeError(f"no form of static quantization runs: {failed}")


def _converted(model: Path, folder: Path) -> Path:
    target = folder / "converted.onnx"
    onnx.save(version_converter.convert_version(onnx.load(model), 17), target)
    return target


def dynamic(model: Path, folder: Path, evaluate: Arrays, size: int) -> tuple[Path, str]:
    """(file, what it is): the first form that runs."""
    target, failed = folder / "dynamic.onnx", None
    source = prepared(model, folder)
    for kind in (QuantType.QInt8, QuantType.QUInt8):
        for per_channel in (True, False):
            try:
                quantize_dynamic(str(source), str(target), weight_type=kind, per_channel=per_channel)
                session(target).run(None, next(batches(evaluate, size)))
                return target, f"{kind} {'per channel' if per_channel else 'per tensor'}"
            except Exception as error:
                failed = error
    raise RuntimeError(f"no form of dynamic quantization runs: {failed}")
