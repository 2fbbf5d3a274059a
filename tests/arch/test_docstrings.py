"""Functions of the inside have short docstrings: sections of arguments are for what users and plug-ins call."""

from __future__ import annotations

import ast
import re
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "quantpipe"
PUBLIC = ("api/", "extend/", "testing.py", "intmath.py")


def sections(text: str) -> list[str]:
    """Functions whose docstring has sections of arguments or results; methods of protocols may."""
    found = []

    def visit(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef) and any("Protocol" in ast.dump(base) for base in child.bases):
                continue
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                doc = ast.get_docstring(child) or ""
                if re.search(r"^(Args|Returns|Yields|Raises):$", doc, re.MULTILINE):
                    found.append(child.name)
            visit(child)

    visit(ast.parse(text))
    return found


def test_only_public_functions_have_sections_of_arguments() -> None:
    long = {
        f"{path.relative_to(PACKAGE)}: {name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if not str(path.relative_to(PACKAGE)).startswith(PUBLIC)
        for name in sections(path.read_text())
    }
    assert not long, f"A short paragraph with what the signature does not show is enough: {sorted(long)}"


def test_planted_sections_are_found() -> None:
    doc = '"""Do it.\n\n        Args:\n            a: one.\n        """'
    assert sections(f"def f(a):\n        {doc}\n") == ["f"]
    assert sections(f"class A:\n    def f(self, a):\n        {doc}\n") == ["f"]
    assert sections(f"class A(Protocol):\n    def f(self, a):\n        {doc}\n") == []
