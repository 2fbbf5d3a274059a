"""Names are found once: a public class name in one file, a file's base name in at most two packages.

The files of a feature that crosses layers have one name, and the first paragraphs of each list the packages of all.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "quantpipe"
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


def features(sources: dict[str, str]) -> set[str]:
    """File base names of features that cross layers: the first paragraphs of each file name the folders of all."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for path, text in sources.items():
        head = " ".join((ast.get_docstring(ast.parse(text)) or "").split())
        found[Path(path).name][str(Path(path).parent)] = head.partition("Files of this feature, all ")[2]
    return {
        name
        for name, heads in found.items()
        if all(head.startswith(f"`{name}`") and all(f"`{other}`" in head for other in heads) for head in heads.values())
    }


def sources() -> dict[str, str]:
    """Path within the package -> text."""
    return {str(p.relative_to(PACKAGE)): p.read_text() for p in sorted(PACKAGE.rglob("*.py"))}


def test_a_public_class_name_stands_in_one_file() -> None:
    assert repeated_classes(sources()) == {}


def test_a_file_base_name_stands_in_two_packages_at_most() -> None:
    found = sources()
    assert set(repeated_files(list(found))) <= features(found)


def test_planted_names_are_found() -> None:
    texts = {
        "a/one.py": "class Grid:\n    pass\n",
        "b/two.py": "class Grid: pass\nclass _Own: pass",
        "c/x.py": "class _Own: pass",
    }
    assert repeated_classes(texts) == {"Grid": 2}
    assert repeated_files(["a/t.py", "b/t.py", "c/t.py", "a/u.py", "b/u.py", "__init__.py"]) == {"t.py": 3}


def test_a_feature_that_does_not_list_its_files_is_found() -> None:
    head = '"""Loops.\n\nFiles of this feature, all `loop.py`: `types`, `annotate`,\n`plan` (numbers).\n"""\n'
    whole = {f"{package}/loop.py": head for package in ("types", "annotate", "plan")}
    assert features(whole) == {"loop.py"}
    assert features({**whole, "search/loop.py": head}) == set()
    assert features({**whole, "plan/loop.py": '"""Loops."""\n'}) == set()
