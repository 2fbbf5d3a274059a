"""Find in a model the sub-graphs that compute what a function says, and write each as one node of that function.

The function of a plug-in op is both its float reference and its pattern, so the two cannot disagree. A match is exact:
it has the same ops, attributes and constants, and no inner value with another reader. Attributes that the function
passes through are taken from the node. In a model as it is loaded, ops of plug-in packages keep their own definitions,
and their patterns are joined (`joining`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes import common as common_passes

from quantpipe import extend
from quantpipe.errors import ConfigError
from quantpipe.extend import DeviceOp
from quantpipe.graph.external_weights import copied
from quantpipe.graph.op_tables import COMMUTES
from quantpipe.intake.opsets import raise_to
from quantpipe.intake.rewrites import DECLARED, Rewrite
from quantpipe.intake.rewrites.finite_masks import adds_masks_in_16_bits, low_mask
from quantpipe.intake.rewrites.pattern_forms import PatternForm, forms_of, turn
from quantpipe.types import FunctionKind

_Makers = dict[str, onnx.NodeProto]

TOLERANCE = 1e-6
"""How far a constant may be from the function's own, relative: exporters round."""


@dataclass
class _Match:
    """Map a function's values and attributes to the model's."""

    values: dict[str, ir.Value | None] = field(default_factory=dict)
    attributes: dict[str, ir.Attr] = field(default_factory=dict)
    nodes: list[ir.Node] = field(default_factory=list)

    def copy(self) -> _Match:
        return _Match(dict(self.values), dict(self.attributes), list(self.nodes))


def join_patterns(model: ir.Model, ops: Iterable[DeviceOp]) -> ir.Model:
    """Return a copy of the model with each match as one node; the model itself where nothing matches.

    The larger patterns are tried first; nodes that one has taken are gone for the next.
    """
    patterns = sorted(ops, key=lambda op: -len(op.reference.node))
    if not patterns:
        return model
    copy, found = copied(model), 0
    for op in patterns:
        forms = list(forms_of(op.reference))
        for node in reversed(list(copy.graph)):
            for form in forms if node.graph is copy.graph else ():
                if (match := _matched(form, node)) is not None:
                    _replace(copy.graph, op, match, form)
                    found += 1
                    break
    if not found:
        return model
    for op in patterns:
        copy.graph.opset_imports.setdefault(op.domain, 1)
    return copy


def _matched(form: PatternForm, node: ir.Node) -> _Match | None:
    """Match a function that ends in a node."""
    function = form.function
    makers = {name: n for n in function.node for name in n.output}
    last = makers[function.output[0]]
    if (last.op_type, last.domain) != (node.op_type, node.domain):
        return None
    match = _value(function, makers, function.output[0], node.outputs[0], match=_Match())
    if match is None or not _is_apart(match, node):
        return None
    turned = [match.values[name] for name in form.transposed]
    return match if all(v is not None and ir.convenience.get_const_tensor(v) is not None for v in turned) else None


def _value(
    function: onnx.FunctionProto, makers: _Makers, name: str, value: ir.Value | None, *, match: _Match
) -> _Match | None:
    if name in match.values:
        return match if match.values[name] is value else None
    maker = makers.get(name)
    if maker is None or value is None:
        if maker is not None or (value is None and name not in ("", *function.input)):
            return None
        bound = match.copy()
        bound.values[name] = value
        return bound
    if maker.op_type == "Constant":
        return match if _same_constant(maker, value) else None
    node = value.producer()
    if node is None or (node.op_type, node.domain) != (maker.op_type, maker.domain) or len(maker.output) != 1:
        return None
    found = _attributes(maker, node, match)
    if found is None:
        return None
    found.values[name] = value
    found.nodes.append(node)
    given = [*node.inputs, *[None] * (len(maker.input) - len(node.inputs))]
    if len(given) > len(maker.input):
        return None
    orders = [given, given[::-1]] if maker.op_type in COMMUTES and len(given) == 2 else [given]
    return next(
        (m for order in orders if (m := _inputs(function, makers, maker, order, match=found)) is not None), None
    )


def _inputs(
    function: onnx.FunctionProto, makers: _Makers, maker: onnx.NodeProto, given: list[ir.Value | None], *, match: _Match
) -> _Match | None:
    found: _Match | None = match.copy()
    for name, value in zip(maker.input, given, strict=True):
        if found is None:
            return None
        found = _value(function, makers, name, value, match=found)
    return found


def _attributes(maker: onnx.NodeProto, node: ir.Node, match: _Match) -> _Match | None:
    """Take from the node what the function hands through; all else must be as the function says."""
    found, said = match.copy(), {a.name: a for a in maker.attribute}
    for name, attribute in node.attributes.items():
        if name not in said:
            if not _is_default(node, name, attribute):
                return None
            continue
        outer = said[name].ref_attr_name
        if outer:
            if outer in found.attributes and found.attributes[outer].value != attribute.value:
                return None
            found.attributes[outer] = ir.Attr(outer, attribute.type, attribute.value)
        elif not _alike(onnx.helper.get_attribute_value(said[name]), attribute.value):
            return None
    for name, own in said.items():
        if name not in node.attributes and not own.ref_attr_name and not _is_default_value(maker, own):
            return None
    return found


def _is_default(node: ir.Node, name: str, attribute: ir.Attr) -> bool:
    if node.domain not in ("", "ai.onnx"):
        return False
    declared = onnx.defs.get_schema(node.op_type).attributes.get(name)
    default = declared.default_value if declared is not None else None
    if default is None or not default.name:
        return False
    return _alike(onnx.helper.get_attribute_value(default), attribute.value)


def _is_default_value(maker: onnx.NodeProto, own: onnx.AttributeProto) -> bool:
    if maker.domain not in ("", "ai.onnx"):
        return False
    declared = onnx.defs.get_schema(maker.op_type).attributes.get(own.name)
    default = declared.default_value if declared is not None else None
    if default is None or not default.name:
        return False
    return _alike(onnx.helper.get_attribute_value(default), onnx.helper.get_attribute_value(own))


def _alike(a: object, b: object) -> bool:
    first, second = (v.decode() if isinstance(v, bytes) else v for v in (a, b))
    if isinstance(first, float) and isinstance(second, float):
        return bool(np.isclose(first, second, rtol=TOLERANCE, atol=0))
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return list(first) == list(second)
    return bool(first == second)


def _same_constant(maker: onnx.NodeProto, value: ir.Value) -> bool:
    tensor = ir.convenience.get_const_tensor(value)
    if tensor is None:
        return False
    (attribute,) = maker.attribute
    own = onnx.helper.get_attribute_value(attribute)
    own = onnx.numpy_helper.to_array(own) if isinstance(own, onnx.TensorProto) else np.asarray(own)
    found = np.asarray(tensor.numpy())
    same = found.size == own.size if own.size == 1 else found.shape == own.shape
    return same and bool(np.allclose(found.reshape(-1), own.reshape(-1), rtol=TOLERANCE, atol=0))


def _is_apart(match: _Match, last: ir.Node) -> bool:
    """Return whether nothing else reads what lies within."""
    inner = set(match.nodes)
    for node in match.nodes:
        for value in node.outputs if node is not last else ():
            if value.is_graph_output() or any(use.node not in inner for use in value.uses()):
                return False
    return True


def _replace(graph: ir.Graph, op: DeviceOp, match: _Match, form: PatternForm) -> None:
    for name in form.transposed:
        if (value := match.values[name]) is not None:
            match.values[name] = turn(graph, value)
    last = match.nodes[0]
    weighs = next((n for n in match.nodes if any(v is not None and v.is_initializer() for v in n.inputs)), last)
    inputs = [match.values.get(name) for name in op.inputs]
    while inputs and inputs[-1] is None:
        inputs.pop()
    output = ir.Value(name=last.outputs[0].name, type=last.outputs[0].type, shape=last.outputs[0].shape)
    made = ir.Node(
        op.domain,
        op.name,
        inputs=inputs,
        attributes=list(match.attributes.values()),
        outputs=[output],
        name=weighs.name,
    )
    graph.insert_after(last, made)
    old = last.outputs[0]
    for number, value in enumerate(graph.outputs):
        if value is old:
            graph.outputs[number] = output
    old.replace_all_uses_with(output)
    old.name = f"{old.name}/joined"
    graph.remove(match.nodes, safe=False)


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
