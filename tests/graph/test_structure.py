"""Digests of structure: blind to nothing that changes what is computed."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnx_ir as ir
import pytest

from quantpipe.graph.structure import structure_digest

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[2, 3] x, bool c) => (float[2, 3] y)
<float[3] w = {1, 2, 3}>
{
    a = Add(x, w)
    b = Transpose <perm = [0, 1]> (a)
    y = If (c) <
        then_branch = t () => (float[2, 3] p) { p = Mul(b, w) },
        else_branch = e () => (float[2, 3] q) { k = Constant <value = float[1] {5}> ()  q = Add(b, k) }
    >
}
"""

CHANGES = {
    "an op": ("Add(x, w)", "Sub(x, w)"),
    "the order of inputs": ("Add(x, w)", "Add(w, x)"),
    "an attribute": ("perm = [0, 1]", "perm = [1, 0]"),
    "a constant": ("{1, 2, 3}", "{1, 2, 4}"),
    "a constant's shape": ("float[3] w", "float[3, 1] w"),
    "an op inside": ("Mul(b, w)", "Add(b, w)"),
    "a tensor inside": ("{5}", "{6}"),
    "an opset": (": 17", ": 18"),
    "an input's shape": ("g (float[2, 3] x", "g (float[1, 3] x"),
    "an output's name": ("y", "z"),
}


def model(text: str) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(text))


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_shows(change: str) -> None:
    old, new = CHANGES[change]
    assert old in TEXT
    changed = model(TEXT.replace(old, new))
    assert structure_digest(changed) != structure_digest(model(TEXT))


def _documented(found: ir.Model) -> None:
    found.doc_string = found.graph.doc_string = "notes"


def _named(found: ir.Model) -> None:
    for number, node in enumerate(found.graph):
        node.name = f"node{number}"


@pytest.mark.parametrize("touch", [_documented, _named, lambda found: None])
def test_notes_do_not_count(touch: Callable[[ir.Model], None]) -> None:
    found = model(TEXT)
    touch(found)
    assert structure_digest(found) == structure_digest(model(TEXT))
