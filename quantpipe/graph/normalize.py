"""Cleaning a model before anything is decided about it, and checking on samples that it still computes the same.

Takes a model as it was read and a few samples; gives a model whose nodes carry the user's names, with
BatchNormalization folded, shape arithmetic gone, MatMul + bias written as Gemm, and global average pools recognized. A
clean-up that changes the outputs is not used: the original model goes on, and a note says so.
"""

from __future__ import annotations

import contextlib
import io
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnx_ir.passes.common as common_passes
import onnxslim
from numpy.typing import NDArray

from quantpipe.graph.apart import Tell
from quantpipe.graph.compare import difference, shaken
from quantpipe.graph.execute import Kernels, Session
from quantpipe.graph.external_weights import copied, is_outside, weight_bytes, with_weights, without_weights
from quantpipe.graph.fold import fold_batch_norms
from quantpipe.graph.opsets import lower_opset, raise_to
from quantpipe.graph.rewrites import BRANCHES, FUNCTIONS, FUNCTIONS_OPSET, REWRITES
from quantpipe.graph.rewrites.dense import rows_flattened
from quantpipe.graph.rewrites.forms import matmul_bias_to_gemm, pool_to_global
from quantpipe.graph.view import Graph

log = logging.getLogger(__name__)

LEAST_OPSET = 17  # the first with LayerNormalization; everything the back ends write exists here
SENSITIVE, MOST_TOLERANCE = 10.0, 0.1
"""A model that answers a change of its input's last bits with more than TOLERANCE / SENSITIVE answers sums in another
order in the same way: a sigmoid far out, say, whose results are a few float32 steps. Its tolerance grows along."""
MOST_BRANCHES = 8  # branches within branches
TOLERANCE = 1e-3  # of the output's largest value: float32 re-association, not a change of function
Feeds = Mapping[str, NDArray[Any]]
_STDOUT = threading.Lock()
"""Standard output belongs to the whole process: two threads that put it aside at once would lose it for good."""


def cleaned_model(
    raw: ir.Model, original: Graph, feeds: Feeds, least_opset: int, *, tell: Tell
) -> tuple[ir.Model, list[str]]:
    """Return the model after all steps that leave its outputs as they are, and what there is to say of the others.

    Args:
        raw: the model as it was read.
        original: the view of it.
        feeds: a few samples `[N, ...]` by input, on which each step is checked.
        least_opset: a model of an older opset is brought to this one.
        tell: is told each step before it begins.

    Returns:
        The clean model, whose nodes carry names, and the notes.
    """
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
    name_nodes(cleaned)
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
        name_nodes(copy)
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


def name_nodes(model: ir.Model) -> None:
    """Give every node a unique, non-empty name."""
    seen: set[str] = set()
    for number, node in enumerate(model.graph):
        name = node.name or f"{node.op_type}_{number}"
        while name in seen:
            name = f"{name}_{number}"
        node.name = name
        seen.add(name)


def measure(graph: Graph, feeds: Feeds) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """Return the shape and dtype of every tensor, from a run with one sample (or the model's own, fixed batch)."""
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
