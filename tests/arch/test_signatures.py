"""Signatures that can be read where they are called: at most seven parameters, by keyword beyond four.

Values that travel together are one frozen dataclass with a name. `self` and `cls` are not counted; `*args` and
`**kwargs` are one parameter each.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "quantpipe"
MOST, MOST_POSITIONAL = 7, 4


def signatures(
    tree: ast.AST, inside: tuple[str, ...] = (), *, of_class: bool = False
) -> Iterator[tuple[str, int, int]]:
    """(name, parameters, those that may be given by position) of every function, methods and nested ones included."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from signatures(node, (*inside, node.name), of_class=True)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            name = (*inside, getattr(node, "name", "lambda"))
            static = any(getattr(d, "id", None) == "staticmethod" for d in getattr(node, "decorator_list", ()))
            given = node.args
            positional = len(given.posonlyargs) + len(given.args)
            positional -= of_class and not static and not isinstance(node, ast.Lambda)
            others = len(given.kwonlyargs) + (given.vararg is not None) + (given.kwarg is not None)
            yield ".".join(name), positional + others, positional
            yield from signatures(node, name)
        else:
            yield from signatures(node, inside, of_class=of_class)


def faults(source: str) -> list[str]:
    return [
        f"{name}: {total} parameters, {positional} of them by position"
        for name, total, positional in signatures(ast.parse(source))
        if total > MOST or positional > MOST_POSITIONAL
    ]


def test_no_signature_of_the_package_is_too_long() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 200, "the package is where this test looks"
    found = {str(path.relative_to(PACKAGE)): bad for path in files if (bad := faults(path.read_text()))}
    assert not found


@pytest.mark.parametrize(
    "planted",
    [
        "def f(a, b, c, d, *, e, f, g, h): ...",
        "def f(a, b, c, d, e): ...",
        "async def f(a, b, c, d, /, e): ...",
        "def f(a, b, c, d, *args, e, f, **kwargs): ...",
        "class A:\n    def __init__(self, a, b, c, d, *, e, f, g, h): ...",
        "class A:\n    if True:\n        def f(self, a, b, c, d, e): ...",
        "class A:\n    @staticmethod\n    def f(a, b, c, d, e): ...",
        "def outer():\n    def inner(a, b, c, d, e): ...",
        "x = [lambda a, b, c, d, e: 0]",
    ],
)
def test_a_planted_long_signature_is_found(planted: str) -> None:
    assert len(faults(planted)) == 1


def test_what_is_legal_passes() -> None:
    assert not faults("def f(a, b, c, d, *, e, f, g): ...")
    assert not faults("class A:\n    def __init__(self, a, b, c, d, *, e, f, g): ...")
    assert not faults("class A:\n    @classmethod\n    def of(cls, a, b, c, d, *, e): ...")
