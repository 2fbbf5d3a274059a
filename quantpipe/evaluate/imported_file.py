"""Run a quantized file itself: an ONNX file by onnxruntime, a .tflite file by LiteRT."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from quantpipe.graph.execute import Session
from quantpipe.graph.normalize import expose
from quantpipe.graph.session_options import INT8_KERNELS, carried
from quantpipe.intake.tflite import litert
from quantpipe.intake.tflite.read_file import FilePlaces, places_of
from quantpipe.realize.tflite.run import LiteRTKernels, TfliteModel, TfliteRunner
from quantpipe.types import Imported

Feeds = Mapping[str, NDArray[Any]]
WHERE = "imported model"


class ImportedFile(Protocol):
    """Runs a file on a batch; inputs and outputs are of the types that the file has."""

    def integers(self, feeds: Feeds) -> Feeds:
        """Return the watched integers by their names in the file."""

    def outputs(self, feeds: Feeds) -> Feeds:
        """Return the outputs."""


class OnnxFile:
    """Run a file by onnxruntime: integers with exact kernels, outputs as a session of default options."""

    def __init__(self, model: Any, watched: Iterable[str]) -> None:
        self._watched = list(watched)
        asked = {**INT8_KERNELS, **carried(model)}
        self._inner = Session(expose(model, self._watched), options=asked, where=WHERE)
        self._plain = Session(model, where=WHERE)

    def integers(self, feeds: Feeds) -> Feeds:
        """Return the watched integers by their names in the file."""
        return self._inner.run(feeds)

    def outputs(self, feeds: Feeds) -> Feeds:
        """Return the outputs."""
        return self._plain.run(feeds)


class TfliteFileRun:
    """Run a .tflite file by LiteRT, its tensors in the order of axes in which it was read."""

    def __init__(self, path: Path, given: Imported, places: FilePlaces, kernels: LiteRTKernels) -> None:
        ends = {"inputs": places.inputs, "outputs": places.outputs}
        metadata: dict[str, dict[str, Any]] = {
            side: {name: {"index": number, "axes": []} for name, number in ports.items()}
            for side, ports in ends.items()
        }
        metadata["tensors"] = {
            name: {"index": number, "axes": [int(a) for a in np.argsort(order)]}
            for name, (number, order) in places.tensors.items()
        }
        for name, port in metadata["inputs"].items():
            if (found := given.tensor.get(name)) is not None and found.grid.single:
                port["scale"] = float(found.grid.scale)
        self._runner = TfliteRunner(TfliteModel(path.read_bytes(), str(path), metadata), kernels)

    def integers(self, feeds: Feeds) -> Feeds:
        """Return the stored integers by their names in the file."""
        return self._runner.run(feeds)

    def outputs(self, feeds: Feeds) -> Feeds:
        """Return the outputs."""
        return self._runner.outputs(feeds)


def imported_file(given: Imported, source: str, watched: Iterable[str], kernels: LiteRTKernels) -> ImportedFile:
    """Return what runs a quantized file, `source`; `kernels` of LiteRT run a .tflite file."""
    places = places_of(given.runnable.metadata_props)
    if places is None or litert.missing() is not None:
        return OnnxFile(given.runnable, watched)
    return TfliteFileRun(Path(source), given, places, kernels)
