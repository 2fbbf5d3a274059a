"""The hook of loading: a quantized model's float model with what the file gives, and a float model as it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common_passes

from quantpipe.arrays import Feeds
from quantpipe.graph.edit import take_place
from quantpipe.graph.external_weights import copied, is_outside
from quantpipe.graph.view import Graph
from quantpipe.intake.quantized.locate import located
from quantpipe.intake.quantized.restore import is_quantized, restore, runnable
from quantpipe.types import Imported, Keep


@dataclass(frozen=True, eq=False)
class Behind:
    """Hold the float model of a file, and the file's own model as `whole`.

    For a file without integers, the two are the same, and `given` is None.
    """

    model: ir.Model
    whole: ir.Model
    given: Imported | None = None
    clamps: tuple[str, ...] = ()

    @property
    def stored(self) -> tuple[str, ...]:
        """Return the tensors that the file stores in integers, where its scales are kept: none may vanish."""
        return tuple(t.tensor for t in self.given.tensors) if self.given is not None and self.given.keep.tensors else ()

    @property
    def regular(self) -> frozenset[str]:
        """Return the kept tensors with the grid of the first tensor that their node reads."""
        held = {} if self.given is None else self.given.kept_tensors
        pairs = (
            (n.inputs[0].name or "", n.outputs[0].name or "") for n in self.model.graph if n.inputs and n.inputs[0]
        )
        return frozenset(o for i, o in pairs if i in held and o in held and held[i].grid.same(held[o].grid))

    def settled(self, run: Callable[[ir.Model, list[str]], Feeds]) -> ir.Model:
        """Return the model without clamps that change nothing: no tool left them out.

        `run` runs a model on samples and returns the values of the named tensors.
        """
        if not self.clamps:
            return self.model
        makers = {n.outputs[0].name: n for n in self.model.graph}
        inputs = {clamp: makers[clamp].inputs[0].name or "" for clamp in self.clamps}  # type: ignore[union-attr]
        values = run(self.model, list(inputs.values()))
        idle = {clamp for clamp, name in inputs.items() if np.all(np.asarray(values[name]) >= 0)}
        copy = copied(self.model)
        for node in list(copy.graph):
            source = node.inputs[0] if node.inputs else None
            if node.outputs[0].name in idle and source is not None:
                take_place(node.outputs[0], source)
                copy.graph.remove(node, safe=True)
        common_passes.RemoveUnusedNodesPass()(copy)
        return copy

    def found(self, original: Graph, graph: Graph) -> Graph:
        """Return the cleaned graph with what the file gives of it."""
        if self.given is None:
            return graph
        return replace(graph, imported=located(self.given, original, graph))


def behind(model: ir.Model, keep: Keep) -> Behind:
    """Return the float model of a quantized file, and the grids that the file gives.

    Raises ModelError for a quantized file that contradicts itself.
    """
    if not is_quantized(model):
        return Behind(model, model)
    made = restore(model)
    written = None if is_outside(model) else runnable(model)
    given = Imported(made.forms, made.tensors, made.weights, made.dynamic, keep, runnable=written)
    return Behind(made.model, model, given, made.clamps)
