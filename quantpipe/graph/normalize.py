"""Cleaning a model before anything is decided about it, and checking on samples that it still computes the same.

Takes a model file and a few samples; gives a `Graph` whose nodes carry the user's names, with BatchNormalization
folded, shape arithmetic gone, MatMul + bias written as Gemm, and global average pools recognized. A clean-up that
changes the outputs is not used: the original graph goes on, and a note says so.
"""

from __future__ import annotations

import contextlib
import io
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnx_ir.passes.common as common_passes
import onnxslim
from numpy.typing import NDArray

from quantpipe.errors import ModelError
from quantpipe.graph.apart import Limits, Tell, apart
from quantpipe.graph.compare import difference, shaken
from quantpipe.graph.execute import Kernels, Session, start_runtime
from quantpipe.graph.external_weights import copied, is_outside, weight_bytes, with_weights, without_weights
from quantpipe.graph.fixed import fix_inputs, fixed_hash
from quantpipe.graph.fold import fold_batch_norms
from quantpipe.graph.half import to_single
from quantpipe.graph.half_check import half_notes
from quantpipe.graph.io import RESIDENT_MB, STAGE, check_external, file_hash, load_external, read_model, readable
from quantpipe.graph.opsets import lower_opset, raise_to
from quantpipe.graph.rewrites import BRANCHES, FUNCTIONS, FUNCTIONS_OPSET, REWRITES
from quantpipe.graph.rewrites.dense import rows_flattened
from quantpipe.graph.rewrites.forms import matmul_bias_to_gemm, pool_to_global
from quantpipe.graph.travel import Packed, pack, unpack
from quantpipe.graph.vet import refuse_chance
from quantpipe.graph.view import Graph, view

log = logging.getLogger(__name__)

LEAST_OPSET = 17  # the first with LayerNormalization; everything the back ends write exists here
SENSITIVE, MOST_TOLERANCE = 10.0, 0.1
"""A model that answers a change of its input's last bits with more than TOLERANCE / SENSITIVE answers sums in another
order in the same way: a sigmoid far out, say, whose results are a few float32 steps. Its tolerance grows along."""
MOST_BRANCHES = 8  # branches within branches
TOLERANCE = 1e-3  # of the output's largest value: float32 re-association, not a change of function
STEP_SECONDS, SECONDS_PER_BYTE = 45.0, 0.2 / 2**20
LEAST_BYTES = 7 << 29
"""What each step of a first load may take; more for large weights."""
Feeds = Mapping[str, NDArray[Any]]
_STDOUT = threading.Lock()
"""Standard output belongs to the whole process: two threads that put it aside at once would lose it for good."""


def load_graph(
    path: Path,
    example: Callable[[Graph], Feeds],
    resident_mb: int = RESIDENT_MB,
    fixed: Mapping[str, Any] | None = None,
    *,
    least_opset: int = LEAST_OPSET,
    isolate: bool = True,
) -> Graph:
    """Read, clean and measure a model.

    Args:
        path: the ONNX file.
        example: gets the view of the raw model (its inputs) and returns feeds of a few real samples `[N, ...]`.
        resident_mb: external data beyond so many MiB stay in their files.
        fixed: inputs that are made constants first, by name.
        least_opset: a model of an older opset is brought to this one.
        isolate: native code meets the model in a process of its own first, under limits (`graph/apart.py`).
    """
    raw, model_hash = _read(path, resident_mb, fixed or {})
    refuse_chance(raw, path)
    with readable(path):
        single, halves = to_single(raw, str(path))
    original = view(single, model_hash, str(path), given=halves.given)
    feeds = example(original)

    def work(tell: Tell) -> _Loaded:
        tell("comparing its half precision with float32")
        said = half_notes(raw, single, halves, feeds, where=str(path))
        model, notes = _cleaned(single, original, feeds, least_opset, tell=tell)
        tell("measuring its tensors")
        return _Loaded(pack(model, single), _measure(view(model, model_hash, str(path)), feeds), (*said, *notes))

    found = apart(work, start_runtime, _limits(raw, feeds), str(path)) if isolate else work(lambda step: None)
    for note in found.notes:
        log.warning("%s", note)
    graph = view(unpack(found.model, single), model_hash, str(path), found.notes, given=halves.given)
    return replace(graph, shapes=found.measured[0], dtypes=found.measured[1])


@dataclass(frozen=True, eq=False)
class _Loaded:
    """What comes of loading a model: the clean one, the shapes and dtypes of its tensors, what there is to say."""

    model: Packed
    measured: tuple[dict[str, tuple[int, ...]], dict[str, str]]
    notes: tuple[str, ...]


def _limits(raw: ir.Model, feeds: Feeds) -> Limits:
    """What a first load may take: a run on a few samples, some of them with every tensor kept."""
    weights = weight_bytes(raw)
    samples = sum(np.asarray(array).nbytes for array in feeds.values())
    return Limits(STEP_SECONDS + weights * SECONDS_PER_BYTE, LEAST_BYTES + 8 * weights + 256 * samples)


def _cleaned(
    raw: ir.Model, original: Graph, feeds: Feeds, least_opset: int, *, tell: Tell
) -> tuple[ir.Model, list[str]]:
    """(the model after all steps that leave its outputs as they are, what there is to say of the others)."""
    where = original.source
    tell("loading it with onnxruntime")
    session = Session(raw, where=where)

    def run(model: ir.Model) -> Feeds:
        return Session(model, where=where).run(feeds)

    tell("running it on a few samples")
    reference = session.run(feeds)
    unrest = difference(reference, session.run(shaken(feeds)))
    allowed = min(max(TOLERANCE, SENSITIVE * unrest), MOST_TOLERANCE)
    del session
    notes = _outside_notes(raw)
    cleaned = raw

    def to_newer_opset(model: ir.Model) -> ir.Model:
        return raise_to(model, least_opset)

    steps: tuple[tuple[Callable[[ir.Model], ir.Model], ...], ...] = (
        (_raise_opset,),
        (lower_opset,),
        (_slim, _slim_unshaped),
        (_take_branches,),
        (_join_functions,),
        (to_newer_opset,),
        (_rewrite,),
        (rows_flattened,),
    )
    for ways in steps:
        tell(f"the clean-up step {_name_of(ways[0])}")
        candidate, failed = _first_that_fits(ways, cleaned, lambda m: difference(reference, run(m)), allowed)
        cleaned = candidate or cleaned
        notes += [failed] if candidate is None else []
    _restore_names(cleaned, original)
    _name_nodes(cleaned)
    return cleaned, notes


def _first_that_fits(
    ways: tuple[Callable[[ir.Model], ir.Model], ...],
    model: ir.Model,
    change: Callable[[ir.Model], float],
    allowed: float,
) -> tuple[ir.Model | None, str]:
    """Return the model after the first way of a step that changes its outputs by no more than `allowed`.

    Where no way does, the result is None and what was wrong with the first way.
    """
    failed: list[str] = []
    name = _name_of(ways[0])
    for step in ways:
        try:
            candidate = step(model)
            if candidate is model:
                return model, ""
            worst = change(candidate)
        except Exception as error:  # a clean-up is optional: whatever goes wrong in it, the model itself still runs
            failed.append(f"clean-up step {name} was skipped: {_first_line(error)}")
            continue
        if worst <= allowed:
            return candidate, ""
        failed.append(f"clean-up step {name} was undone: it changed the outputs by {worst:.2g}")
    return None, failed[0]


def _name_of(step: Callable[[ir.Model], ir.Model]) -> str:
    return step.__name__.strip("_")


def load_as_written(
    path: Path,
    example: Callable[[Graph], Feeds],
    resident_mb: int = RESIDENT_MB,
    fixed: Mapping[str, Any] | None = None,
    *,
    isolate: bool = True,
) -> Graph:
    """Read and measure a model with every node as it is written, except for inputs that are fixed.

    Functions are written out, constants have one form, and nodes without a name get one. Parameters are those of
    `load_graph`.

    Returns:
        The graph with the shapes and dtypes of one real run.
    """
    raw, model_hash = _read(path, resident_mb, fixed or {})
    with readable(path):
        common_passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(raw)
        graph = view(raw, model_hash, str(path))
    feeds = example(graph)

    def work(tell: Tell) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
        tell("running it on a sample")
        return _measure(graph, feeds)

    limits = _limits(raw, feeds)
    shapes, dtypes = apart(work, start_runtime, limits, str(path)) if isolate else work(lambda step: None)
    return replace(graph, shapes=shapes, dtypes=dtypes)


def _read(path: Path, resident_mb: int, fixed: Mapping[str, Any]) -> tuple[ir.Model, str]:
    """(the model with every node named, its hash)."""
    raw = read_model(path)
    with readable(path):
        check_external(raw, path)
        model_hash = fixed_hash(file_hash(path, raw), fixed)
        load_external(raw, path, resident_mb << 20)
        fix_inputs(raw, fixed)
        if raw.functions:
            common_passes.InlinePass()(raw)
        _name_nodes(raw)
        if not view(raw, model_hash, str(path)).inputs:
            raise ModelError("it has no input that samples could be given to", stage=STAGE, where=str(path))
    return raw, model_hash


def _raise_opset(model: ir.Model) -> ir.Model:
    return raise_to(model, LEAST_OPSET)


def _slim(model: ir.Model) -> ir.Model:
    """Return the model after onnxslim's clean-up.

    Weights that lie in files are inputs to it, so it folds nothing into them.
    """
    proto, held = without_weights(model)
    with _STDOUT, contextlib.redirect_stdout(io.StringIO()):
        slimmed: onnx.ModelProto = onnxslim.slim(proto)
    return with_weights(slimmed, held)


def _slim_unshaped(model: ir.Model) -> ir.Model:
    """Return the model after the same clean-up, without the shapes that the file declares, which may be wrong."""
    copy = copied(model)
    inputs = {id(v) for v in copy.graph.inputs}
    for value in [v for n in copy.graph for v in n.outputs]:
        if id(value) not in inputs:
            value.shape = None
    return _slim(copy)


def _take_branches(model: ir.Model) -> ir.Model:
    """Known branches inlined, then cleaned once more, as long as that brings up further ones."""
    copy = copied(model)
    for _ in range(MOST_BRANCHES):
        before = len(copy.graph)
        for rewrite in BRANCHES:
            for node in list(copy.graph):
                rewrite(copy.graph, node)
        if len(copy.graph) == before:
            break
        _name_nodes(copy)
        copy = _slim(copy)
    return copy


def _join_functions(model: ir.Model) -> ir.Model:
    """Replace functions of one value that are written out in several nodes by the ops that newer opsets have for them.

    The model itself is returned where there are none.
    """
    copy = copied(model)
    common_passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(copy)
    before = len(copy.graph)
    for rewrite in FUNCTIONS:
        for node in list(copy.graph):
            rewrite(copy.graph, node)
    if len(copy.graph) == before:
        return model
    copy = copied(raise_to(model, FUNCTIONS_OPSET))
    common_passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(copy)
    for rewrite in FUNCTIONS:
        for node in list(copy.graph):
            rewrite(copy.graph, node)
    return copy


def _rewrite(model: ir.Model) -> ir.Model:
    """Our own small rewrites, on a copy."""
    copy = copied(model)
    common_passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(copy)
    common_passes.TopologicalSortPass()(copy)
    fold_batch_norms(copy.graph)
    for rewrite in REWRITES:
        for node in list(copy.graph):
            rewrite(copy.graph, node)
    for node in list(copy.graph):
        pool_to_global(node)
        matmul_bias_to_gemm(copy.graph, node)
    common_passes.RemoveUnusedNodesPass()(copy)
    return copy


def _restore_names(cleaned: ir.Model, original: Graph) -> None:
    """Give nodes that a clean-up renamed the name of the user's node that does the same work.

    A fused node keeps its output tensor; walking up from the original producer of that tensor, the nearest node with
    the same op is the one the user knows (a Conv that swallowed its BatchNormalization is still that Conv).
    """
    for node in cleaned.graph:
        if node.name in original.by_name:
            continue
        source = original.producers.get(node.outputs[0].name or "")
        first = source
        while source is not None and source.op != node.op_type:
            source = next((original.producers[t] for t in source.inputs if t in original.producers), None)
        found = source or first
        if found is not None:
            node.name = found.name


def _name_nodes(model: ir.Model) -> None:
    """Give every node a unique, non-empty name."""
    seen: set[str] = set()
    for number, node in enumerate(model.graph):
        name = node.name or f"{node.op_type}_{number}"
        while name in seen:
            name = f"{name}_{number}"
        node.name = name
        seen.add(name)


def _measure(graph: Graph, feeds: Feeds) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """The shape and dtype of every tensor, from a run with one sample (or the model's own, fixed batch)."""
    values = _tensors(graph, feeds)
    shapes = {name: tuple(int(d) for d in np.shape(value)) for name, value in values.items()}
    dtypes = {name: np.asarray(value).dtype.name for name, value in values.items()}
    for name in graph.constant_names():
        tensor = graph.constant_tensor(name)
        shapes[name] = tuple(tensor.shape.numpy())
        dtypes[name] = tensor.dtype.numpy().name
    return shapes, dtypes


def with_varying(graph: Graph, feeds: Feeds) -> Graph:
    """Return the graph that also knows which tensors are of another shape for another sample (`feeds` `[N, ...]`)."""
    values = _tensors(graph, feeds)
    varying = {name for name, value in values.items() if np.shape(value)[1:] != graph.shapes[name][1:]}
    return replace(graph, varying=graph.varying | varying)


def _tensors(graph: Graph, feeds: Feeds) -> dict[str, NDArray[Any]]:
    """Every tensor that is computed, and the inputs, for one sample (or the model's own, fixed batch)."""
    fixed = {i.name: i.shape[0] for i in graph.inputs if i.shape}
    one = {name: array[: fixed.get(name) or 1] if np.ndim(array) else array for name, array in feeds.items()}
    model = expose(graph.model, [t for n in graph.nodes for t in n.outputs if t])
    return {**one, **Session(model, where=graph.source, kernels=Kernels.AS_WRITTEN).run(one)}


def expose(model: ir.Model, tensors: list[str]) -> ir.Model:
    """Return a copy of the model, weights shared, with more tensors as graph outputs (those that already are stay)."""
    copy = copied(model)
    values = {v.name: v for v in (*copy.graph.inputs, *copy.graph.initializers.values())}
    values |= {v.name: v for node in copy.graph for v in node.outputs}
    known = {o.name for o in copy.graph.outputs}
    for tensor in tensors:
        if tensor not in known:
            copy.graph.outputs.append(values[tensor])
            known.add(tensor)
    return copy


def _outside_notes(model: ir.Model) -> list[str]:
    """What is different for a model whose weights stay in their files."""
    if not is_outside(model):
        return []
    return [
        f"{weight_bytes(model) / 2**30:.2f} GiB of weights stay in their files and are mapped at need: sessions run "
        "without rearranged copies of them (slower), and latency is not measured; model.resident_mb sets from which "
        "size on"
    ]


def _first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:200]
