"""What a written model may contain: its parts, domains, names, and the ops and attributes of its kernels.

Everything else is rejected by name, whatever it might compute. Attributes in `ATTRIBUTES` are either followed by other
checks (`FOLLOWED`), or have the values that are legal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import onnx
from google.protobuf.message import Message  # type: ignore[import-untyped]
from google.protobuf.unknown_fields import UnknownFieldSet  # type: ignore[import-untyped]

from quantpipe.verify.files import Wrong, expect
from quantpipe.verify.real_part import function_digest

FOLLOWED = None
MICROSOFT = "com.microsoft"
ONNX = frozenset({"", "ai.onnx"})
OWN = frozenset({*ONNX, MICROSOFT})
"""Domains whose ops are kernels of runtimes; a function under such a name would take their place."""
METADATA = frozenset(f"quantpipe.{name}" for name in (
    "session_options", "caches", "version", "form", "model", "strategy", "hardware", "hardware_digest", "preprocessing",
    "class_names", "inputs", "outputs", "lengths"))  # fmt: skip
DATA = ("raw_data", "float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")
"""Fields in which a tensor may hold its numbers."""
Legal = Mapping[str, Collection[Any] | None]
WINDOW: Legal = dict.fromkeys(("auto_pad", "dilations", "kernel_shape", "pads", "strides"), FOLLOWED)
PLAIN = ("Abs", "Add", "Clip", "Div", "Floor", "GlobalAveragePool", "GreaterOrEqual",
         "Identity", "MatMul", "MatMulInteger", "Max", "Min", "Mul", "Neg", "QLinearMatMul", "Round", "Sign",
         "Slice", "Sqrt", "Squeeze", "Sub", "Unsqueeze")  # fmt: skip
"""ONNX's ops that kernels are written in and that need no attribute."""
ATTRIBUTES: Mapping[tuple[str, str], Legal] = {
    **{("", op): {} for op in PLAIN},
    **{("", op): {**WINDOW, "group": FOLLOWED} for op in ("Conv", "ConvInteger", "QLinearConv")},
    ("", "ConvTranspose"): {**WINDOW, "group": FOLLOWED, "output_padding": FOLLOWED, "output_shape": FOLLOWED},
    ("", "Cast"): {"to": FOLLOWED, "saturate": (1,)},
    ("", "BitShift"): {"direction": FOLLOWED},
    ("", "Mod"): {"fmod": (0,)},
    ("", "Einsum"): {"equation": FOLLOWED},
    ("", "Gather"): {"axis": FOLLOWED},
    ("", "Reshape"): {"allowzero": (0,)},
    ("", "QuantizeLinear"): {"axis": (1,), "saturate": (1,), "block_size": (0,), "output_dtype": (0,)},
    ("", "DequantizeLinear"): {"axis": FOLLOWED, "block_size": (0,)},
    ("", "ReduceSum"): {"keepdims": (0, 1), "noop_with_empty_axes": (0,)},
    ("", "ReduceMax"): {"keepdims": (1,), "axes": FOLLOWED, "noop_with_empty_axes": (0,)},
    ("", "Gemm"): {"transB": FOLLOWED, "transA": (0,), "alpha": (1.0,), "beta": (1.0,)},
    (MICROSOFT, "QGemm"): {"transB": FOLLOWED, "transA": (0,), "alpha": (1.0,)},
    (MICROSOFT, "QLinearAdd"): {},
    (MICROSOFT, "QLinearMul"): {},
    (MICROSOFT, "MatMulIntegerToFloat"): {},
    (MICROSOFT, "QLinearGlobalAveragePool"): {"channels_last": (0,)},
}
"""(domain, op) -> attributes of the nodes of kernels: the legal values, or FOLLOWED."""
COPIED = ("move", "lookup")
"""Kinds of kernels that a form may write as the float op itself: their attributes are in the certificate."""


def check_file(model: onnx.ModelProto, certificate: Mapping[str, Any]) -> None:
    """Check all of a model file that is no node: its parts, opsets, functions, metadata, and that names are unique."""
    graph, where = model.graph, "model.onnx"
    for part, found in (("training_info", model.training_info), ("sparse_initializer", graph.sparse_initializer),
                        ("quantization_annotation", graph.quantization_annotation)):  # fmt: skip
        expect(not found, where, f"it has {part}, which no form writes")
    _expect_no_other_fields(model)
    for entry in model.metadata_props:
        expect(entry.key in METADATA, where, f"its metadata have the key {entry.key!r}, which no form writes")
    _expect_once((e.key for e in model.metadata_props), "metadata have the key")
    _expect_once((o.domain or "ai.onnx" for o in model.opset_import), "opsets have the domain")
    _expect_functions(model, certificate)
    _expect_domains(model, certificate)
    made = [o for n in graph.node for o in n.output if o]
    ports = [i.name for i in graph.input]
    _expect_once([*made, *ports, *(t.name for t in graph.initializer)], "graph makes or holds the value")
    _expect_once((o.name for o in graph.output), "graph has the output")
    _expect_once((n.name or n.output[0] for n in graph.node), "graph has the node")
    for node in graph.node:
        _expect_attributes_once(node)
    _expect_types(model)
    for tensor in graph.initializer:
        held = [field for field in DATA if len(getattr(tensor, field))]
        expect(len(held) < 2, tensor.name, f"it holds its numbers as {', '.join(held)}; legal is once")


def _expect_types(model: onnx.ModelProto) -> None:
    """Check that attributes of ONNX's ops have the types that ONNX defines."""
    versions = {o.domain: o.version for o in model.opset_import}
    for node in model.graph.node:
        if node.domain not in ("", "ai.onnx") or not onnx.defs.has(node.op_type, ""):
            continue
        known = onnx.defs.get_schema(node.op_type, versions.get("", versions.get("ai.onnx", 1)), "").attributes
        for held in node.attribute:
            fits = (
                held.name not in known
                or str(known[held.name].type) == f"AttrType.{onnx.AttributeProto.AttributeType.Name(held.type)}"
            )
            expect(fits, node.name, f"its attribute {held.name} has another type than {node.op_type} defines")


def _expect_once(names: Iterable[str], what: str) -> None:
    for name, count in Counter(names).items():
        once = count == 1 and bool(name)
        expect(once, "model.onnx", f"its {what} {name!r} {count} times; legal is once, with a name")


def _expect_no_other_fields(model: onnx.ModelProto) -> None:
    """No field that this version of the format does not know, which a runtime may read."""
    messages: Iterator[tuple[str, Message]] = iter([
        ("model.onnx", model), ("the graph", model.graph), *((n.name, n) for n in model.graph.node),
        *((t.name, t) for t in model.graph.initializer)])  # fmt: skip
    for name, message in messages:
        expect(not len(UnknownFieldSet(message)), name, "it has a field that the ONNX format does not define")
        for field in ("overload", "device_configurations", "configuration"):
            held = field in message.DESCRIPTOR.fields_by_name and bool(getattr(message, field))
            expect(not held, name, f"it has {field}, which no form writes")


def _expect_functions(model: onnx.ModelProto, certificate: Mapping[str, Any]) -> None:
    """The functions belong to packages that the certificate names; an earlier one names none."""
    found = [(f.domain, f.name) for f in model.functions]
    named = certificate.get("functions")
    for domain, name in found:
        expect(domain not in OWN, "model.onnx", f"it defines the function {name} in the domain {domain or 'ai.onnx'}")
        known = named is None or any((f["domain"], f["name"]) == (domain, name) for f in named)
        expect(known, "model.onnx", f"it defines the function {domain}.{name}, which the certificate does not name")
    expect(len(set(found)) == len(found), "model.onnx", "it defines a function twice")
    digests = {(f.domain, f.name): function_digest(f) for f in model.functions} if named else {}
    for entry in named or ():
        at = (entry["domain"], entry["name"])
        expect(digests.get(at) == entry["digest"], "model.onnx",
               f"its function {'.'.join(at)} is not the one that the certificate names")  # fmt: skip


def _expect_domains(model: onnx.ModelProto, certificate: Mapping[str, Any]) -> None:
    floats = [f.get("domain") for f in certificate["float_nodes"]]
    packages = {f.domain for f in model.functions}
    legal = {*OWN, *packages, *(d for d in floats if isinstance(d, str))}
    old = "opsets" not in certificate
    for entry in model.opset_import:
        known = entry.domain in legal or (old and bool(certificate["float_nodes"]))
        expect(known, "model.onnx", f"it reads ops of the domain {entry.domain!r}, which the certificate does not name")
    if not old:
        found = {o.domain or "ai.onnx": o.version for o in model.opset_import}
        expect(found == certificate["opsets"], "model.onnx",
               f"its opsets are {found}, the certificate names {certificate['opsets']}")  # fmt: skip


def check_kernel(node: str, kernel: Mapping[str, Any], written: Iterable[onnx.NodeProto]) -> None:
    """Check that the nodes of one kernel are ops which kernels are written in, with legal attributes."""
    op, kind = str(kernel["op"]), str(kernel["kind"])
    other = []
    for made in written:
        domain = "" if made.domain in ONNX else made.domain
        itself = kind in COPIED and made.op_type == op and domain == ("" if onnx.defs.has(op) else MICROSOFT)
        if itself or (kind == "device" and domain not in OWN):
            _expect_attributes_once(made)  # geometry compares all of its attributes
        else:
            other.append(made)
    check_nodes(other, f"the kernel {node}")


def check_nodes(written: Iterable[onnx.NodeProto], what: str) -> None:
    """Check that nodes are ops in which stored integers are written, with legal attributes."""
    for made in written:
        domain = "" if made.domain in ONNX else made.domain
        _expect_attributes_once(made)
        legal = ATTRIBUTES.get((domain, made.op_type))
        if legal is None:
            shown = f"{domain or 'ai.onnx'}.{made.op_type}"
            raise Wrong(made.name, f"{shown} is no op in which {what} is written")
        for held in made.attribute:
            _expect_legal(made, held, legal)


def _expect_attributes_once(node: onnx.NodeProto) -> None:
    names = [a.name for a in node.attribute]
    expect(len(set(names)) == len(names), node.name, "it has an attribute twice")
    for held in node.attribute:
        expect(not held.ref_attr_name, node.name, f"its attribute {held.name} refers to a function's")


def _expect_legal(node: onnx.NodeProto, held: onnx.AttributeProto, legal: Legal) -> None:
    expect(held.name in legal, node.name, f"no form writes its attribute {held.name} for {node.op_type}")
    values = legal[held.name]
    if values is not None:
        found = onnx.helper.get_attribute_value(held)
        expect(found in values, node.name,
               f"its attribute {held.name} is {found}, legal is {' or '.join(map(str, values))}")  # fmt: skip
    if node.op_type == "ReduceMax" and held.name == "axes":
        first = held.ints[0] if held.ints else -1
        expect(list(held.ints) == list(range(first, first + len(held.ints))), node.name, "its axes are no row of axes")
