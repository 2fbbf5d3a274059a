"""The language of the project, counted: phrases that a stranger stumbles over, and sentences that are too long.

    python -m tests.documents.prose [PART ...]      # what it finds in files or packages whose names contain a part
    python -m tests.documents.prose --write         # lower the limits to what is there; none is ever raised

`limits.json` holds what each file may have at most. `MARKERS` is the list of phrases, with what to write instead.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMITS = Path(__file__).with_name("limits.json")

LONGEST = 30
"""Words of a sentence."""

SPEAKERS = "file report run page model device table warning message test plan column certificate comment it which that"
"""Things that do not speak."""

MARKERS: Mapping[str, str] = {
    rf"\b({'|'.join(SPEAKERS.split())}|what) (says?|said|tells?|told)\b": "states, reports, shows, lists, names",
    r"\b(is|are|was|were|be) (told|said)\b": "reported, shown, documented, specified",
    r"\b(says|tells) (of|how|what|where|why|which|whether|so|no|nothing)\b": "states, shows, describes",
    r"\b(is|are|has|have|there is|there are) (?-i:none)\b": "does not exist, has no …",
    r"\b(?-i:none) is\b": "no … is",
    r"\b(stands?|stood) (behind|beside|in|at|there|for|on|before|above|below)\b": "is, follows, represents",
    r"\b(in front of|behind|beside)\b": "before, after, next to, compared with",
    r"\bwhole numbers?\b": "integer",
    r"\breal numbers?\b": "float, floating-point value",
    r"\bhalves\b": "ties",
    r"(?<!\bat )\bleast\b(?! squares)|\bgreatest\b": "minimum, maximum, smallest, largest",
    r"\b(mends?|mended|mending)\b": "fix",
    r"\banew\b": "again",
    r"\b(that|those) of\b": "repeat the noun",
    r"\bhand(s|ed)? on\b": "pass",
    r"\b(lies?|lay) (in|at|on|beside|beyond|there|between|outside)\b": "is, is stored in",
    r"\bwhat is (said|told|left|there|[a-z]+ of)\b": "name the thing",
    r"\b(refused?|refuses|refusal)\b": "reject",
    r"\b(believes?|knows nothing|makes? of it|take away|is called for)\b": "name the action",
}
"""Phrase -> what to write instead."""

_COMPILED = [(re.compile(pattern, re.IGNORECASE), instead) for pattern, instead in MARKERS.items()]


@dataclass
class Count:
    """What is found in one file, or in one kind of text of a package."""

    words: int = 0
    markers: int = 0
    long: int = 0
    found: list[str] = field(default_factory=list)

    def add(self, text: str, where: str) -> None:
        """Count one unit of text: a paragraph, a cell of a table, a comment, a docstring."""
        plain = re.sub(r"`[^`]*`", "CODE", text)
        for pattern, instead in _COMPILED:
            for match in pattern.finditer(plain):
                self.markers += 1
                self.found.append(f"{where}: “{match[0]}”; write {instead}")
        for sentence in re.split(r"(?<=[.!?:])\s+(?=[A-Z“\"(CODE])", plain):
            count = len(re.findall(r"[A-Za-z0-9][\w'/-]*", sentence))
            self.words += count
            if count > LONGEST:
                self.long += 1
                self.found.append(f"{where}: a sentence of {count} words: “{' '.join(sentence.split())[:90]}…”")


def texts() -> Iterator[tuple[str, str, str]]:
    """Yield (file or area, place, unit of text) of all that is counted."""
    pages = [*(ROOT / n for n in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SKILL.md"))]
    pages += sorted((ROOT / "docs").rglob("*.md")) + sorted((ROOT / "experiments").glob("*.md"))
    for page in pages:
        name = str(page.relative_to(ROOT))
        yield from ((name, f"{name}:{line}", text) for line, text in _of_markdown(page.read_text()))
    for path in sorted([*(ROOT / "conf").rglob("*.yaml"), *(ROOT / "experiments").glob("*.yaml")]):
        name = str(path.relative_to(ROOT))
        yield from ((name, f"{name}:{line}", text) for line, text in _of_comments(path.read_text()))
    for path in sorted((ROOT / "quantpipe").rglob("*.py")):
        place = path.relative_to(ROOT)
        package = "/".join(place.parts[:2]).removesuffix(".py")
        for kind, line, text in _of_python(path.read_text()):
            yield f"{package} ({kind})", f"{place}:{line}", text


def _of_markdown(text: str) -> Iterator[tuple[int, str]]:
    """Paragraphs, items of lists and cells of tables, without code; a link counts as its text."""
    text = re.sub(r"^(```|~~~).*?^\1", lambda m: "\n" * m[0].count("\n"), text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    unit: list[str] = []
    start = 1
    for number, line in enumerate([*text.splitlines(), ""], 1):
        new = not line.strip() or re.match(r"\s*([-*] |\d+\. |#|\||>)", line) or line.startswith("    ")
        if new and unit:
            yield start, " ".join(unit)
            unit = []
        if not line.strip() or (line.startswith("    ") and not re.match(r"\s*([-*] |\d+\. )", line)):
            continue
        if line.lstrip().startswith("|"):
            yield from ((number, cell) for cell in line.strip().strip("|").split("|") if cell.strip(" -:"))
            continue
        if not unit:
            start = number
        unit.append(re.sub(r"^\s*([-*] |\d+\. |#+ |> )", "", line).strip())


def _of_comments(text: str) -> Iterator[tuple[int, str]]:
    """Comments; those of lines that follow each other are one text."""
    unit: list[str] = []
    start = 1
    for number, line in enumerate([*text.splitlines(), ""], 1):
        match = re.match(r"(.*?)(?:^|\s)#\s?(.*)$", line)
        whole = match is not None and not match[1].strip()
        if unit and not (whole and match is not None and match[2].strip()):
            yield start, " ".join(unit)
            unit = []
        if match is None or not match[2].strip():
            continue
        if not whole:
            yield number, match[2]
            continue
        if not unit:
            start = number
        unit.append(match[2].strip())


def _of_python(text: str) -> Iterator[tuple[str, int, str]]:
    """Docstrings, paragraph by paragraph, and the texts of errors."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            doc = ast.get_docstring(node)
            for part in re.split(r"\n\s*\n|\n(?=\s*\w+: )", doc or ""):
                if part.strip():
                    yield "docstrings", getattr(node, "lineno", 1), " ".join(part.split())
        if isinstance(node, ast.Call) and _name(node.func).endswith(("Error", "error", "refuse", "warn")):
            for argument in node.args:
                if said := _literal(argument):
                    yield "messages", node.lineno, said


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _literal(node: ast.expr) -> str:
    """A text, with a word in place of each value that is formatted into it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(v.value) if isinstance(v, ast.Constant) else "VALUE" for v in node.values)
    if isinstance(node, ast.BinOp):
        return _literal(node.left) + _literal(node.right)
    return ""


def counts() -> dict[str, Count]:
    """Area -> what is found in it."""
    found: dict[str, Count] = {}
    for area, where, text in texts():
        found.setdefault(area, Count()).add(text, where)
    return found


def limits() -> dict[str, dict[str, int]]:
    """Area -> {markers, long}: what it may have at most. An area without a line may have four per 1,000 words, and no
    sentence that is too long."""
    return dict(json.loads(LIMITS.read_text()))


def allowed(area: str, count: Count, known: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """What an area may have at most."""
    return dict(known.get(area, {"markers": 4 * count.words // 1000, "long": 0}))


def main() -> None:
    """Print what is found, or lower the limits."""
    found = counts()
    if "--write" in sys.argv:
        known = limits() if LIMITS.exists() else {}
        kept = {}
        for area, count in sorted(found.items()):
            now = {"markers": count.markers, "long": count.long}
            before = known.get(area, now)
            kept[area] = {key: min(now[key], before[key]) for key in now}
        lines = (f"  {json.dumps(area)}: {json.dumps(kept[area])}" for area in sorted(kept))
        LIMITS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        return
    for area, count in sorted(found.items()):
        if any(part in area for part in sys.argv[1:]):
            print("\n".join(count.found))
        share = 1000 * count.markers / max(count.words, 1)
        print(f"{area}: {count.words} words, {count.markers} phrases ({share:.1f} per 1,000), {count.long} long")
    words, markers, long = (sum(getattr(c, k) for c in found.values()) for k in ("words", "markers", "long"))
    print(f"all: {words} words, {markers} phrases ({1000 * markers / words:.1f} per 1,000), {long} long sentences")


if __name__ == "__main__":
    main()
