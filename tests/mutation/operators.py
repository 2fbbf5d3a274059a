"""Small faults of source code: a comparison turned, a sum changed, a condition without its `not`, a statement gone.

A fault is an edit of a file's text: what stands at a span of it, and what is to stand there.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}

SUMS: dict[type[ast.operator], type[ast.operator]] = {ast.Add: ast.Sub, ast.Sub: ast.Add}

SWAPPED = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum"}

STATEMENTS = (ast.Raise, ast.AugAssign)
"""Those whose absence leaves a module that can still be imported."""


@dataclass(frozen=True)
class Fault:
    """An edit of a source file.

    Attributes:
        kind: Comparison, sum, min/max, not, constant or statement.
        path: The file, relative to the repository.
        line: Where the edit begins, from 1.
        start: The first character of the span.
        end: The character behind it.
        before: What stands there.
        after: What is to stand there.
    """

    kind: str
    path: str
    line: int
    start: int
    end: int
    before: str
    after: str

    def applied(self, text: str) -> str:
        """The text of the file with the fault."""
        if text[self.start : self.end] != self.before:
            raise ValueError(f"{self.path}:{self.line} does not hold {self.before!r}")
        return text[: self.start] + self.after + text[self.end :]

    def __str__(self) -> str:
        before, after = (" ".join(part.split()) for part in (self.before, self.after))
        return f"{self.path}:{self.line}: {before} -> {after}"


def faults(path: str, text: str) -> Iterator[Fault]:
    """Every fault that a file can be given, in the order of the syntax tree."""
    begins = _line_starts(text)
    lines = text.splitlines(keepends=True)

    def position(line: int, column: int) -> int:
        return begins[line - 1] + len(lines[line - 1].encode()[:column].decode())

    for node in _code(ast.parse(text)):
        for kind, changed in _changes(node):
            start = position(node.lineno, node.col_offset)
            end = position(node.end_lineno or node.lineno, node.end_col_offset or 0)
            after = ast.unparse(changed)
            if isinstance(changed, ast.expr) and not isinstance(changed, ast.Constant | ast.Call):
                after = f"({after})"
            yield Fault(kind, path, node.lineno, start, end, text[start:end], after)


def _line_starts(text: str) -> list[int]:
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts


def _code(node: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """What is executed: without annotations and decorators, and without the inside of f-strings, most of which are
    messages."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list") or isinstance(node, ast.JoinedStr):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.expr | ast.stmt):
                yield child
            if isinstance(child, ast.AST):
                yield from _code(child)


def _changes(node: ast.expr | ast.stmt) -> Iterator[tuple[str, ast.AST]]:
    match node:
        case ast.Compare(ops=[operator, *_]):
            turned = copy.deepcopy(node)
            turned.ops[0] = COMPARISONS[type(operator)]()
            yield "comparison", turned
        case ast.BinOp(op=ast.Add() | ast.Sub()) if not _is_text(node.left) and not _is_text(node.right):
            changed = copy.deepcopy(node)
            changed.op = SUMS[type(node.op)]()
            yield "sum", changed
        case ast.Name(id=name, ctx=ast.Load()) if name in SWAPPED:
            yield "min/max", ast.Name(SWAPPED[name])
        case ast.Attribute(attr=name) if name in SWAPPED:
            swapped = copy.deepcopy(node)
            swapped.attr = SWAPPED[name]
            yield "min/max", swapped
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "not", operand
        case ast.Constant(value=value) if isinstance(value, bool | int | float):
            yield "constant", ast.Constant(_other(value))
        case ast.Expr(value=ast.Call()):
            yield "statement", ast.Pass()
        case _ if isinstance(node, STATEMENTS):
            yield "statement", ast.Pass()


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _other(value: bool | int | float) -> bool | int | float:
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else value * 2 or 1.0
