"""Ops of plug-in packages in a model as it is loaded: their own definitions stand, and their patterns are joined.

Files of this feature, all `plugin_op.py`: `intake` (joins patterns), `oprules` (rows of ops), `evaluate` (compares
kernels).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

import onnx
import onnx_ir as ir
from onnx_ir.passes import common as common_passes

from quantpipe import extend
from quantpipe.errors import ConfigError
from quantpipe.graph.external_weights import copied
from quantpipe.intake.opsets import raise_to
from quantpipe.intake.patterns import join_patterns
from quantpipe.intake.rewrites import DECLARED, Rewrite
from quantpipe.intake.rewrites.finite_masks import adds_masks_in_16_bits, low_mask
from quantpipe.types import FunctionKind


def joining(declared: Collection[str]) -> Callable[[ir.Model], ir.Model]:
    """Return the clean-up step that joins what the hardware file declares: patterns of packages, and functions."""
    own, low = [DECLARED[op] for op in DECLARED if op in declared], adds_masks_in_16_bits(declared)
    patterns = [op for name, op in extend.ops().items() if op.pattern and name in declared]

    def patterns_of_plug_ins(model: ir.Model) -> ir.Model:
        return join_patterns(_with_low_masks(_joined(model, own)) if low else _joined(model, own), patterns)

    return patterns_of_plug_ins


def divides_windows(declared: Collection[str]) -> bool:
    """Return whether a signature of a device divides integers, as averages of windows do."""
    rows = declared.values() if isinstance(declared, Mapping) else ()
    return any(signature.function is FunctionKind.DIVISION for row in rows for signature in row)


def _with_low_masks(model: ir.Model) -> ir.Model:
    """Limit the model's masks to values that leave steps for the scores; the model itself if it has no masks."""
    copy = copied(model)
    common_passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(copy)
    changed = [low_mask(copy.graph, node) for node in list(copy.graph)]
    return copy if any(changed) else model


def _joined(model: ir.Model, rewrites: Iterable[tuple[Rewrite, int]]) -> ir.Model:
    """Join functions of one value to one node each, in an opset that has them; the model itself if nothing matches."""
    for rewrite, opset in rewrites:
        copy = copied(model)
        common_passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(copy)
        before = len(copy.graph)
        for node in list(copy.graph):
            if node.graph is copy.graph:
                rewrite(copy.graph, node)
        if len(copy.graph) < before:
            model = copied(raise_to(model, opset))
            common_passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
            for node in list(model.graph):
                if node.graph is model.graph:
                    rewrite(model.graph, node)
    return model


def leave_to_plug_ins(raw: ir.Model, path: Path) -> None:
    """Take out, in place, the model's own definitions of ops that a plug-in package defines.

    Raises ConfigError that names the package, where the two definitions differ.
    """
    for key in [k for k in raw.functions if extend.op_of(extend.qualified(k[0], k[1])) is not None]:
        name = extend.qualified(key[0], key[1])
        op, own = extend.op_of(name), ir.to_proto(raw.functions[key])
        if op is not None and _written(own) != _written(op.reference):
            raise ConfigError(
                f"the plug-in package {extend.package_of(name)}: its reference of {name} is not the definition that "
                f"the model has ({path}); legal are two with the same nodes, or a model without a definition",
                where="plugins",
            )
        del raw.functions[key]


def _written(function: onnx.FunctionProto) -> list[tuple[object, ...]]:
    """Return a function's nodes, whatever it calls its values."""
    numbers: dict[str, int] = {"": -1}
    for name in function.input:
        numbers.setdefault(name, len(numbers))
    found: list[tuple[object, ...]] = []
    for node in function.node:
        ends = [numbers.setdefault(name, len(numbers)) for name in (*node.input, *node.output)]
        attributes = sorted(a.SerializeToString(deterministic=True) for a in node.attribute)
        found.append((node.domain, node.op_type, ends, attributes))
    return [*found, tuple(numbers.get(name) for name in function.output)]
