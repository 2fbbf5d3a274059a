"""The steps of the clean-up, in order, and the check on samples that each leaves the model's outputs as they are.

Takes a model and a few samples; gives the clean model and sentences about steps that were skipped or undone. All steps
are done first and compared once, because a comparison loads the whole model, and most models pass. Only if the
comparison fails are the steps repeated one by one, each with its own comparison, to find the faulty step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass

import onnx_ir as ir
import onnx_ir.passes.common as common_passes

from quantpipe.arrays import Feeds
from quantpipe.graph.execute import Session
from quantpipe.graph.external_weights import copied, is_outside, weight_bytes
from quantpipe.graph.normalize import expose
from quantpipe.graph.symbolic_axes import axes_of, axes_of_inputs
from quantpipe.graph.view import Graph
from quantpipe.intake.control_flow import bodies_written_out
from quantpipe.intake.fold import fold_batch_norms
from quantpipe.intake.functions import functions_written_out
from quantpipe.intake.isolated_process import Tell
from quantpipe.intake.names import name_nodes, restore_names
from quantpipe.intake.opsets import lower_opset, raise_to
from quantpipe.intake.output_difference import difference, shaken
from quantpipe.intake.rewrites import (
    BRANCHES,
    FUNCTIONS,
    FUNCTIONS_OPSET,
    NORMS,
    NORMS_OPSET,
    NUMBERS,
    REWRITES,
    Rewrite,
)
from quantpipe.intake.rewrites.axes import axes_joined
from quantpipe.intake.rewrites.dense import rows_flattened
from quantpipe.intake.rewrites.explicit import write_out
from quantpipe.intake.rewrites.fused import fused_written_out
from quantpipe.intake.rewrites.known_sizes import sizes_known
from quantpipe.intake.rewrites.layer_constants import constants_into_layers
from quantpipe.intake.rewrites.pool_and_gemm import matmul_bias_to_gemm, pool_to_global
from quantpipe.intake.rewrites.recurrent import looped, unrolled
from quantpipe.intake.runnable import runnable
from quantpipe.intake.slimmed import slimmed
from quantpipe.types import NO_BODIES, BodyForms, LoopForms

log = logging.getLogger(__name__)

LEAST_OPSET = 17  # the first with LayerNormalization; everything the back ends write exists here
SENSITIVE, MOST_TOLERANCE = 10.0, 0.1
"""A model that answers a change of its input's last bits with more than TOLERANCE / SENSITIVE answers sums in another
order in the same way: a sigmoid far out, say, whose results are a few float32 steps. Its tolerance grows along."""
MOST_BRANCHES = 8  # branches within branches
TOLERANCE = 1e-3  # of the output's largest value: float32 re-association, not a change of function
Step = Callable[[ir.Model], ir.Model]


@dataclass(frozen=True)
class More:
    """Hold the steps that depend on the device: joining patterns of plug-in packages, and recurrent layers.

    `stored`: tensors that no step may fuse into another op, since a quantized file defines how they are stored.
    `bodies`: the loops and branches that are written out. `windows`: results of pools
    that stay pools, also over whole maps. `fold`: constants become part of weights, which no quantized file defines.
    """

    joined: Step
    in_steps: Step
    stored: tuple[str, ...] = ()
    bodies: BodyForms = NO_BODIES
    windows: Collection[str] = ()
    fold: bool = True


def cleaned_model(
    raw: ir.Model, original: Graph, feeds: Feeds, least_opset: int, *, more: More, tell: Tell
) -> tuple[ir.Model, list[str]]:
    """Return the model after all steps that keep its outputs, and sentences about the other steps.

    `raw` stays as it is; clean nodes get the names of `original`. An older opset is raised to `least_opset`. `more` are
    steps that depend on the device; `tell` is called with each step that begins.
    """
    where = original.source
    tell("loading it with onnxruntime and running it on a few samples")
    raw, session, said = runnable(raw, feeds, where)
    tell("running it on a few samples again")
    reference = session.run(feeds)
    unrest = difference(reference, session.run(shaken(feeds)))
    allowed = min(max(TOLERANCE, SENSITIVE * unrest), MOST_TOLERANCE)
    del session

    def change(model: ir.Model) -> float:
        return difference(reference, Session(model, where=where).run(feeds))

    work = _Work(_steps(least_opset, more), change, allowed, tell)
    held = _held(raw, more.stored) if more.stored else raw
    found, notes = work.all_at_once(held), list[str]()
    if found is None:
        found, notes = work.one_by_one(held)
    if more.stored:
        found = _released(found, list(reference))
    notes = [*_outside_notes(raw), *said, *notes]
    restore_names(found, original)
    name_nodes(found)
    write_out(found)
    return found, notes


def _held(model: ir.Model, tensors: Collection[str]) -> ir.Model:
    """Return the model with some computed float tensors as extra outputs, which protects them from every step."""
    made = {value.name for node in model.graph for value in node.outputs}
    copy = expose(model, [name for name in tensors if name in made])
    for value in copy.graph.outputs:
        value.type = value.type or ir.TensorType(ir.DataType.FLOAT)  # onnxslim does not infer it
    return copy


def _released(model: ir.Model, outputs: Collection[str]) -> ir.Model:
    """Return the model with these outputs alone."""
    copy = copied(model)
    for value in [v for v in copy.graph.outputs if v.name not in outputs]:
        copy.graph.outputs.remove(value)
    common_passes.RemoveUnusedNodesPass()(copy)
    return copy


def _steps(least_opset: int, more: More) -> tuple[tuple[Step, ...], ...]:
    """Return the steps in order, each with the ways to do it, the best first.

    Patterns are joined before and after rows are made flat: a Reshape may then stand within one. Fused ops are written
    out again after branches: an exporter may put a whole decoder into each branch.
    """

    def to_newer_opset(model: ir.Model) -> ir.Model:
        return raise_to(model, least_opset)

    return (
        (fused_written_out,),
        (functions_written_out,),
        (_raise_opset,),
        (lower_opset,),
        (_know_sizes,),
        (slimmed, _slim_unshaped),
        (_take_branches,),
        (bodies_written_out(more.bodies, slimmed),),
        (fused_written_out,),
        (functions_written_out,),
        (_see_numbers,),
        (_join_functions,),
        (_join_norms,),
        (to_newer_opset,),
        (more.in_steps,),
        (_small_rewrites(more.windows),),
        *([(_fold_constants, _fold_products)] if more.fold else []),
        (more.joined,),
        (_join_axes,),
        (rows_flattened,),
        (more.joined,),
    )


@dataclass(frozen=True)
class _Work:
    """Hold the steps, the difference of a model's outputs from the reference, its limit, and the progress callback."""

    steps: tuple[tuple[Step, ...], ...]
    change: Callable[[ir.Model], float]
    allowed: float
    tell: Tell

    def all_at_once(self, model: ir.Model) -> ir.Model | None:
        """Return the model after all steps; None if one fails, or if together they change the outputs too much."""
        try:
            for ways in self.steps:
                self.tell(f"the clean-up step {_name_of(ways[0])}")
                model = ways[0](model)
            self.tell("running the clean model")
            return model if self.change(model) <= self.allowed else None
        except Exception as error:  # a clean-up is optional; which step it was is found one by one
            log.debug("clean-up: %s", error)
            return None

    def one_by_one(self, model: ir.Model) -> tuple[ir.Model, list[str]]:
        """Return (the model after all steps that keep its outputs, notes about the other steps)."""
        notes: list[str] = []
        for ways in self.steps:
            self.tell(f"the clean-up step {_name_of(ways[0])}")
            candidate, failed = self._first_that_fits(ways, model)
            model = candidate or model
            notes += [failed] if candidate is None else []
        return model, notes

    def _first_that_fits(self, ways: tuple[Step, ...], model: ir.Model) -> tuple[ir.Model | None, str]:
        """Return the model after the first way of a step that fits; else None and what was wrong with the first."""
        failed: list[str] = []
        name = _name_of(ways[0])
        for step in ways:
            try:
                candidate = step(model)
                if candidate is model:
                    return model, ""
                worst = self.change(candidate)
            except Exception as error:  # whatever goes wrong in it, the model itself still runs
                failed.append(f"clean-up step {name} was skipped: {_first_line(error)}")
                continue
            if worst <= self.allowed:
                return candidate, ""
            failed.append(f"clean-up step {name} was undone: it changed the outputs by {worst:.2g}")
        return None, failed[0]


def _name_of(step: Step) -> str:
    return step.__name__.strip("_")


def _raise_opset(model: ir.Model) -> ir.Model:
    return raise_to(model, LEAST_OPSET)


def _know_sizes(model: ir.Model) -> ir.Model:
    return sizes_known(model, axes_of_inputs)


def _slim_unshaped(model: ir.Model) -> ir.Model:
    """Return the model after the same clean-up, without the shapes that the file declares, which may be wrong."""
    copy = copied(model)
    inputs = {id(v) for v in copy.graph.inputs}
    for value in [v for n in copy.graph for v in n.outputs]:
        if id(value) not in inputs:
            value.shape = None
    return slimmed(copy)


def _take_branches(model: ir.Model) -> ir.Model:
    """Return the model with known branches inlined and cleaned again, as long as that reveals further ones."""
    if not any(node.op_type == "If" for node in model.graph):
        return model
    copy = copied(model)
    for _ in range(MOST_BRANCHES):
        before = len(copy.graph)
        for rewrite in BRANCHES:
            for node in list(copy.graph):
                rewrite(copy.graph, node)
        if len(copy.graph) == before:
            break
        name_nodes(copy)
        copy = slimmed(copy)
    return copy


def _see_numbers(model: ir.Model) -> ir.Model:
    """Replace computed constants by initializers; the model itself is returned if there are no such nodes."""
    copy = copied(model)
    return copy if _rewritten(copy, NUMBERS) else model


def _join_functions(model: ir.Model) -> ir.Model:
    """Replace functions of one value that are written out in several nodes by the ops that newer opsets have for them.

    The model itself is returned if there are no such ops.
    """
    return _joined(model, FUNCTIONS, FUNCTIONS_OPSET)


def _join_norms(model: ir.Model) -> ir.Model:
    """Replace normalizations that are written out in several nodes likewise."""
    return _joined(model, NORMS, NORMS_OPSET)


def _joined(model: ir.Model, rewrites: Collection[Rewrite], opset: int) -> ir.Model:
    """Return the model with what some rewrites find, in an opset that has their ops; itself where they find nothing."""
    if not _rewritten(copied(model), rewrites):
        return model
    copy = copied(raise_to(model, opset))
    _rewritten(copy, rewrites)
    return copy


def _rewritten(model: ir.Model, rewrites: Collection[Rewrite]) -> bool:
    """Rewrite a model in place, and tell whether something was found."""
    common_passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    before = set(model.graph)
    for rewrite in rewrites:
        for node in list(model.graph):
            rewrite(model.graph, node)
    found = set(model.graph) != before
    common_passes.RemoveUnusedNodesPass()(model)
    return found


def in_steps(cells: LoopForms) -> Step:
    """Return the step that writes recurrent layers of some ops as their steps, or as a loop."""

    def recurrent_layers(model: ir.Model) -> ir.Model:
        if not any(node.op_type in (*cells.steps, *cells.loops) for node in model.graph):
            return model
        copy = copied(model)
        common_passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(copy)
        for node in list(copy.graph):
            if node.op_type in cells.steps:
                unrolled(copy.graph, node)
            if node.op_type in cells.loops and node.graph is copy.graph:  # it has not been written as its steps
                looped(copy.graph, node, cells=cells.cells)
        common_passes.RemoveUnusedNodesPass()(copy)
        return copy

    return recurrent_layers


def _join_axes(model: ir.Model) -> ir.Model:
    return axes_joined(model, axes_of)


def _small_rewrites(windows: Collection[str]) -> Step:
    """Return the step of our own small rewrites; `windows`: results of pools that stay pools."""

    def rewrite(model: ir.Model) -> ir.Model:
        copy = copied(model)
        common_passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(copy)
        common_passes.TopologicalSortPass()(copy)
        fold_batch_norms(copy.graph)
        for change in REWRITES:
            for node in list(copy.graph):
                change(copy.graph, node)
        for node in list(copy.graph):
            if node.outputs[0].name not in windows:
                pool_to_global(node)
            matmul_bias_to_gemm(copy.graph, node)
        common_passes.RemoveUnusedNodesPass()(copy)
        return copy

    return rewrite


def _fold_constants(model: ir.Model) -> ir.Model:
    return _folded(model, sums=True)


def _fold_products(model: ir.Model) -> ir.Model:
    return _folded(model, sums=False)


def _folded(model: ir.Model, *, sums: bool) -> ir.Model:
    copy = copied(model)
    for node in list(copy.graph):
        constants_into_layers(copy.graph, node, sums=sums)
    common_passes.RemoveUnusedNodesPass()(copy)
    return copy


def _outside_notes(model: ir.Model) -> list[str]:
    """Return notes about the differences for a model whose weights stay in their files."""
    if not is_outside(model):
        return []
    return [
        f"{weight_bytes(model) / 2**30:.2f} GiB of weights stay in their files and are mapped at need. Sessions run "
        "without rearranged copies of them (slower), and latency is not measured; model.resident_mb sets the limit"
    ]


TOO_LARGE = ("Failed to serialize proto", "exceeds maximum protobuf size")
"""What protobuf writes of such a model."""


def _first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    if any(sign in text for sign in TOO_LARGE):
        return "its result is larger than the 2 GB of a model in one file"
    return text.splitlines()[0][:200]
