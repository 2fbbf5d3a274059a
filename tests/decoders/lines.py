"""Decoders on a device without the program: texts in pieces, ranges of masks given, caches from the float model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from quantpipe.annotate.conditions import AnnotateOptions
from quantpipe.annotate.topology import analyze
from quantpipe.data.recurrent_state import carry
from quantpipe.data.splits import Splits
from quantpipe.graph.execute import Session
from quantpipe.graph.normalize import with_varying
from quantpipe.graph.view import Graph
from quantpipe.intake.load import load_graph
from quantpipe.types import HardwareSpec
from tests.decoders import nets
from tests.decoders.stepping import texts
from tests.ops.line import Line, schema_for

Array = np.ndarray[Any, Any]
HIDDEN = 1e30
"""Magnitude of the numbers by which masks hide keys."""


def load_decoder(proto: onnx.ModelProto, folder: Path, example: Mapping[str, Array]) -> Graph:
    """Return the clean graph of a decoder, whose inputs the example has."""
    onnx.save(proto, folder / "m.onnx")
    return load_graph(folder / "m.onnx", lambda raw: {i.name: example[i.name] for i in raw.inputs}, isolate=False)


def decoder(proto: onnx.ModelProto, folder: Path) -> Graph:
    """Return the clean graph of a decoder of `nets`, which knows what depends on the length of its texts."""
    short, long = (nets.feeds(nets.text(1, new), past_of(before)) for before, new in ((4, 3), (6, 5)))
    graph = load_decoder(proto, folder, short)
    return with_varying(graph, {i.name: long[i.name] for i in graph.inputs})


def past_of(length: int) -> dict[str, Array]:
    """Return caches of some tokens."""
    return {name: np.ones((1, nets.KV, length, nets.SIZE), np.float32) for name in nets.empty_cache()}


def pieces(graph: Graph, folder: Path, piece: int) -> Splits:
    """Return texts in pieces, with the float model's cache of each."""
    return carry(texts(folder, piece=piece).splits(graph.inputs, None, 0), graph.inputs, Session(graph.model).run)


def line(graph: Graph, spec: HardwareSpec, folder: Path) -> Line:
    """Return a decoder on a device, calibrated on pieces of four tokens after caches of several lengths."""
    stored = analyze(graph, spec, schema_for(spec), AnnotateOptions()).group_of
    hidden = [name for name in stored if graph.largest.get(name, 0) > HIDDEN and not graph.is_constant(name)]
    known = {name: {"kind": "calibrated", "min": -60.0, "max": 30.0} for name in hidden}
    samples = pieces(graph, folder, 4).calibrate
    return Line(graph, spec, schema_for(spec), samples, AnnotateOptions(constraints=known))
