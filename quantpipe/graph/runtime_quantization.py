"""onnxruntime's own quantization of a float model, as its users run it: static (min-max, Q/DQ) and dynamic.

It is what a result for onnxruntime is compared with. Weights are int8 per channel; where the runtime has no kernel for
that (ConvInteger), the dynamic form has uint8 ones. Files are written to a temporary folder.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantpipe.arrays import Feeds
from quantpipe.graph.execute import Kernels, Session
from quantpipe.graph.io import model_bytes
from quantpipe.types import Samples


def static(model: ir.Model, samples: Samples, batch: int) -> Session:
    """Return a session of the statically quantized model: uint8 activations by their extremes, int8 weights.

    Raises any error of the tool, or of the runtime on its result.
    """
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    def run(source: Path, target: Path) -> None:
        quantize_static(
            str(source),
            str(target),
            _Reader(dict(b.inputs) for b in samples.batches(batch)),
            quant_format=QuantFormat.QDQ,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            per_channel=True,
        )

    return _quantized(model, run)


def dynamic(model: ir.Model, example: Feeds) -> Session:
    """Return a session of the dynamically quantized model: the first way to store weights that runs `example`.

    Raises any error of the tool, or of the runtime on its result.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    ways = [(kind, per_channel) for kind in (QuantType.QInt8, QuantType.QUInt8) for per_channel in (True, False)]
    for number, (kind, per_channel) in enumerate(ways):

        def run(source: Path, target: Path, kind: Any = kind, per_channel: bool = per_channel) -> None:
            quantize_dynamic(str(source), str(target), weight_type=kind, per_channel=per_channel)

        try:
            session = _quantized(model, run, Kernels.NATIVE)
            session.run(example)
            return session
        except Exception:
            if number + 1 == len(ways):
                raise
    raise AssertionError("there is always a last way")


class _Reader:
    """Feeds one after the other, as onnxruntime's calibration asks for them."""

    def __init__(self, feeds: Iterator[dict[str, NDArray[Any]]]) -> None:
        self._feeds = feeds

    def get_next(self) -> dict[str, NDArray[Any]] | None:
        return next(self._feeds, None)

    def __iter__(self) -> Iterator[dict[str, NDArray[Any]]]:
        return self._feeds

    def __next__(self) -> dict[str, NDArray[Any]]:
        return next(self._feeds)


def _quantized(model: ir.Model, run: Callable[[Path, Path], None], kernels: Kernels = Kernels.EXACT) -> Session:
    with tempfile.TemporaryDirectory(prefix="quantpipe-") as folder, _silent():
        source, target = Path(folder) / "float.onnx", Path(folder) / "quantized.onnx"
        source.write_bytes(model_bytes(model))
        run(source, target)
        return Session(ir.load(target), kernels=kernels, where="onnxruntime's own quantization")


@contextmanager
def _silent() -> Iterator[None]:
    """Hold back the tool's advice on its own use, which it gives to the root logger."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def weight_bytes(model: ir.Model) -> int:
    """Return the bytes of a model's constants."""
    values: Sequence[ir.Value] = list(model.graph.initializers.values())
    return sum(int(np.prod(v.shape.numpy())) * 4 for v in values if v.shape is not None and v.const_value is not None)
