"""Names are found once: a public class name in one file, a file's base name in at most two packages.

`names.json` lists the exceptions that are there. It may only become shorter: `python -m tests.arch.test_names`.
"""

from __future__ import annotations

import ast
import json
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "quantpipe"
EXCEPTIONS = Path(__file__).with_name("names.json")
MOST_PACKAGES = 2


def repeated_classes(sources: dict[str, str]) -> dict[str, int]:
    """Public class name -> number of files that define it, where there are several."""
    files: dict[str, set[str]] = defaultdict(set)
    for path, text in sources.items():
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                files[node.name].add(path)
    return {name: len(found) for name, found in sorted(files.items()) if len(found) > 1}


def repeated_files(paths: list[str]) -> dict[str, int]:
    """File base name -> number of folders that have it, where there are more than two."""
    folders: dict[str, set[str]] = defaultdict(set)
    for path in paths:
        name = Path(path).name
        if not name.startswith("__"):
            folders[name].add(str(Path(path).parent))
    return {name: len(found) for name, found in sorted(folders.items()) if len(found) > MOST_PACKAGES}


def sources() -> dict[str, str]:
    """Path within the package -> text."""
    return {str(p.relative_to(PACKAGE)): p.read_text() for p in sorted(PACKAGE.rglob("*.py"))}


def excess(found: dict[str, int], known: dict[str, int]) -> dict[str, int]:
    """What occurs more often than the exceptions allow."""
    return {name: count for name, count in found.items() if count > known.get(name, 1)}


def test_a_public_class_name_stands_in_one_file() -> None:
    assert not excess(repeated_classes(sources()), json.loads(EXCEPTIONS.read_text())["classes"])


def test_a_file_base_name_stands_in_two_packages_at_most() -> None:
    assert not excess(repeated_files(list(sources())), json.loads(EXCEPTIONS.read_text())["files"])


def test_exceptions_that_are_gone_are_not_listed() -> None:
    known = json.loads(EXCEPTIONS.read_text())
    assert set(known["classes"]) <= set(repeated_classes(sources()))
    assert set(known["files"]) <= set(repeated_files(list(sources())))


def test_planted_names_are_found() -> None:
    texts = {
        "a/one.py": "class Grid:\n    pass\n",
        "b/two.py": "class Grid: pass\nclass _Own: pass",
        "c/x.py": "class _Own: pass",
    }
    assert repeated_classes(texts) == {"Grid": 2}
    assert excess({"Grid": 2}, {}) == {"Grid": 2} and not excess({"Grid": 2}, {"Grid": 2})
    assert repeated_files(["a/t.py", "b/t.py", "c/t.py", "a/u.py", "b/u.py", "__init__.py"]) == {"t.py": 3}


if __name__ == "__main__":
    before = json.loads(EXCEPTIONS.read_text()) if EXCEPTIONS.exists() else None
    now = {"classes": repeated_classes(sources()), "files": repeated_files(list(sources()))}
    for kind, found in now.items():
        if before is not None:
            now[kind] = {n: min(c, before[kind][n]) for n, c in found.items() if n in before[kind]}
    EXCEPTIONS.write_text(json.dumps(now, indent=1) + "\n")
