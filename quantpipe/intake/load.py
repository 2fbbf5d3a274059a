"""Reading a model, and making of it the graph that every stage starts from.

Takes a model file and a few samples; gives a `Graph` that is clean (`cleanup`), with the shapes and dtypes that one
real run had. What native code does with an unknown file is done in a process of its own first, under limits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common_passes

from quantpipe.arrays import Feeds
from quantpipe.errors import ModelError
from quantpipe.graph.execute import Session, start_runtime
from quantpipe.graph.external_weights import weight_bytes
from quantpipe.graph.io import RESIDENT_MB, STAGE, check_external, file_bytes, file_hash, load_external, readable
from quantpipe.graph.normalize import MeasuredTensors, expose, measure
from quantpipe.graph.view import Graph, view
from quantpipe.intake.cleanup import LEAST_OPSET, More, cleaned_model, in_steps
from quantpipe.intake.control_flow import selected_notes
from quantpipe.intake.fixed import fix_inputs, fixed_hash, free_first_axes
from quantpipe.intake.half import Halves, to_single
from quantpipe.intake.half_check import half_notes
from quantpipe.intake.isolated_process import Limits, Tell, apart
from quantpipe.intake.model_transfer import Packed, pack, unpack
from quantpipe.intake.names import name_nodes
from quantpipe.intake.patterns import divides_windows, joining, leave_to_plug_ins
from quantpipe.intake.quantized import Behind, behind
from quantpipe.intake.read_model import read_model
from quantpipe.intake.rewrites.bodies import wanted
from quantpipe.intake.rewrites.chance import NoiseInputs, without_chance
from quantpipe.intake.rewrites.fused import refuse_undefined, settle_pasts
from quantpipe.intake.vet import refuse_chance
from quantpipe.types import NO_CELLS, Keep, LoopForms, RandomOps

log = logging.getLogger(__name__)

STEP_SECONDS, SECONDS_PER_BYTE = 45.0, 0.2 / 2**20
LEAST_BYTES = 7 << 29
"""What each step of a first load may take; more for large weights."""


def load_graph(
    path: Path,
    example: Callable[[Graph], Feeds],
    resident_mb: int = RESIDENT_MB,
    fixed: Mapping[str, Any] | None = None,
    *,
    least_opset: int = LEAST_OPSET,
    isolate: bool = True,
    declared: Collection[str] = (),
) -> Graph:
    """Read, clean and measure a model whose samples follow from its inputs.

    `example` gets the view of the raw model and returns feeds of a few samples `[N, ...]`. `resident_mb` and `fixed`
    are as in `read_graph`, the others as in `clean_graph`.
    """
    raw = read_graph(path, resident_mb, fixed)
    return clean_graph(raw, example(raw.graph), least_opset=least_opset, isolate=isolate, declared=declared)


@dataclass(frozen=True, eq=False)
class RawModel:
    """Hold a model as read: every node named, half precision as float32, integers as their real values.

    Nothing else of it is changed.
    """

    graph: Graph
    """The view of it, whose inputs say what samples it takes."""
    given: ir.Model
    """The model before its half precision became float32."""
    halves: Halves
    real: Behind
    """The float model behind it, where it is quantized already."""
    noise: NoiseInputs = NoiseInputs()  # noqa: RUF009  (frozen)
    """The inputs that carry random numbers."""
    freed: int = 0
    """The fixed batch that the file declares, where it is ignored."""


def read_graph(
    path: Path,
    resident_mb: int = RESIDENT_MB,
    fixed: Mapping[str, Any] | None = None,
    keep: Keep = Keep.ALL,
    *,
    random: RandomOps | None = None,
    free_batch: bool = False,
) -> RawModel:
    """Read a model without running any of it; from a quantized one, the float model that it represents.

    External data beyond `resident_mb` MiB stay in their files. `fixed` inputs are made constants first. `keep` selects
    what a quantized model passes on. `random` replaces ops that draw random numbers. `free_batch` declares the first
    axis of inputs free, whatever the file declares. Raises ModelError for a model that cannot be quantized.
    """
    given, model_hash, size = _read(path, resident_mb, fixed or {})
    with readable(path):
        freed = free_first_axes(given) if free_batch else 0
        noise = without_chance(given, random, path)
    model_hash = fixed_hash(model_hash, {"batch": freed} if freed else {})
    model_hash = fixed_hash(model_hash, {"model.random": random} if random is not None and noise.replaced else {})
    refuse_chance(given, path)
    refuse_undefined(given, path)
    with readable(path):
        whole, halves = to_single(given, str(path))
        real = behind(whole, keep)
    graph = replace(view(real.model, model_hash, str(path), given=halves.given), file_bytes=size)
    return RawModel(graph, given, halves, real, noise, freed)


def clean_graph(
    raw: RawModel,
    feeds: Feeds,
    *,
    least_opset: int = LEAST_OPSET,
    isolate: bool = True,
    declared: Collection[str] = (),
    cells: LoopForms = NO_CELLS,
) -> Graph:
    """Clean and measure a model on a few real samples `[N, ...]`; the result has their shapes and dtypes.

    An older opset is raised to `least_opset`. With `isolate`, a separate process runs native code on the model first,
    under limits (`intake/isolated_process.py`). `declared` are the ops of the hardware file; patterns of plug-in
    packages among them are joined. `cells` are recurrent layers to write as their steps, or as a loop,
    and the loops and branches that are written out.
    """
    original = raw.graph
    single, where = original.model, original.source
    own_hash = fixed_hash(original.model_hash, _written_anew(original, cells))  # another model than the file's
    windows = raw.real.regular if divides_windows(declared) else ()
    more = More(joining(declared), in_steps(cells), raw.real.stored, cells.bodies, windows, raw.real.given is None)

    def work(tell: Tell) -> _Loaded:
        tell("comparing its half precision with float32")
        said = half_notes(raw.given, raw.real.whole, raw.halves, feeds, where=where)
        tell("restoring the float model from its integers")
        settled = raw.real.settled(lambda m, names: Session(expose(m, names), where=where).run(feeds, names))
        model, notes = cleaned_model(settled, original, feeds, least_opset, more=more, tell=tell)
        tell("measuring its tensors")
        every = (*said, *notes, *selected_notes(original, model))
        return _Loaded(pack(model, single), measure(view(model, own_hash, where), feeds), every)

    found = apart(work, start_runtime, _limits(raw.given, feeds), where) if isolate else work(lambda step: None)
    for note in found.notes:
        log.warning("%s", note)
    graph = view(unpack(found.model, single), own_hash, where, found.notes, given=raw.halves.given)
    as_given = single if own_hash != original.model_hash else None
    graph = replace(
        _with(graph, found.measured), as_given=as_given, halves=raw.halves.tensors, file_bytes=original.file_bytes
    )
    return raw.real.found(original, graph)


def _written_anew(graph: Graph, cells: LoopForms) -> dict[str, list[str]]:
    """Return what is written otherwise: recurrent layers as steps and loops by op, bodies by node."""
    held = {node.op for node in graph.nodes}
    found = {"in steps": sorted(held.intersection(cells.steps)), "in loops": sorted(held.intersection(cells.loops))}
    found["with cell states"] = found["in loops"] if cells.cells else []
    found["without bodies"] = [node.name or "" for node in graph.model.graph if wanted(node, cells.bodies)]
    return {how: ops for how, ops in found.items() if ops}


@dataclass(frozen=True, eq=False)
class _Loaded:
    """Hold the results of loading a model: the clean one, the facts about its tensors, and notes."""

    model: Packed
    measured: MeasuredTensors
    notes: tuple[str, ...]


def _limits(raw: ir.Model, feeds: Feeds) -> Limits:
    """Return the limits of a first load: a run on a few samples, some of them with every tensor kept."""
    weights = weight_bytes(raw)
    samples = sum(np.asarray(array).nbytes for array in feeds.values())
    return Limits(STEP_SECONDS + weights * SECONDS_PER_BYTE, LEAST_BYTES + 8 * weights + 256 * samples)


def load_as_written(
    path: Path,
    example: Callable[[Graph], Feeds],
    resident_mb: int = RESIDENT_MB,
    fixed: Mapping[str, Any] | None = None,
    *,
    isolate: bool = True,
) -> Graph:
    """Read and measure a model with every node as it is written, except for inputs that are fixed.

    Functions are written out, constants have one form, and nodes without a name get one. Parameters are as in
    `load_graph`. The result has the shapes and dtypes of one real run.
    """
    raw, model_hash, size = _read(path, resident_mb, fixed or {})
    with readable(path):
        common_passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(raw)
        graph = replace(view(raw, model_hash, str(path)), file_bytes=size)
    feeds = example(graph)

    def work(tell: Tell) -> MeasuredTensors:
        tell("running it on a sample")
        return measure(graph, feeds)

    limits = _limits(raw, feeds)
    return _with(graph, apart(work, start_runtime, limits, str(path)) if isolate else work(lambda step: None))


def _with(graph: Graph, found: MeasuredTensors) -> Graph:
    return replace(graph, shapes=found.shapes, dtypes=found.dtypes, largest=found.largest)


def _read(path: Path, resident_mb: int, fixed: Mapping[str, Any]) -> tuple[ir.Model, str, int]:
    """Return (the model with every node named, its hash, the bytes of its files)."""
    raw = read_model(path)
    with readable(path):
        check_external(raw, path)
        model_hash, size = fixed_hash(file_hash(path, raw), fixed), file_bytes(path, raw)
        load_external(raw, path, resident_mb << 20)
        fix_inputs(raw, fixed)
        leave_to_plug_ins(raw, path)
        if raw.functions:
            common_passes.InlinePass()(raw)
        name_nodes(raw)
        settle_pasts(raw)
        if not view(raw, model_hash, str(path)).inputs:
            raise ModelError("it has no input that samples could be given to", stage=STAGE, where=str(path))
    return raw, model_hash, size
