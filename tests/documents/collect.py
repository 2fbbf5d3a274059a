"""What the documents tell a reader to type: command lines, overrides, Python, in the order of each page."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PROGRAMS = ("python", "quantpipe", "mlflow", "pip", "pytest", "mkdocs", "ruff", "mypy", "lint-imports", "pre-commit",
            "git", "mkdir", ".ci/run", "fresh/bin/pip", "fresh/bin/quantpipe")  # fmt: skip
_ENVIRONMENT = re.compile(r"[A-Z][A-Z_]*=\S*")
_OVERRIDE = re.compile(r"\+?[a-z_]+(?:[./][a-z_0-9]+)*=\S.*", re.S)


@dataclass(frozen=True)
class Command:
    """One command line of a page, without prompt, comment and line breaks."""

    page: str
    line: int
    text: str

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text)

    @property
    def arguments(self) -> list[str] | None:
        """What stands behind `run.py` (or `quantpipe`), without redirections; None for other programs."""
        words = [word for word in self.words if not _ENVIRONMENT.fullmatch(word)]
        if ">" in words:
            words = words[: words.index(">")]
        if words[:2] == ["python", "run.py"]:
            return words[2:]
        return words[1:] if Path(words[0]).name == "quantpipe" else None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"


@dataclass(frozen=True)
class Code:
    """One block of a page in a language: Python, YAML."""

    page: str
    line: int
    language: str
    text: str


def pages() -> list[str]:
    """Every document, by its path in the repository."""
    documents = (ROOT / "docs").rglob("*.md")
    return [
        *("README.md", "CONTRIBUTING.md", "SKILL.md", "benchmarks/README.md", "benchmarks/recovery_measured.md"),
        *sorted(str(path.relative_to(ROOT)) for path in documents),
    ]


def items(page: str) -> list[Command | Code]:
    """The commands in code blocks, and the blocks of other languages, of a page from top to bottom."""
    return list(_items(page, (ROOT / page).read_text(encoding="utf-8")))


def _items(page: str, text: str) -> Iterator[Command | Code]:
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        line = lines[number]
        fence = re.fullmatch(r"( *)```(\w*).*", line)
        if fence:
            end = next(n for n in range(number + 1, len(lines)) if lines[n].strip() == "```")
            body = [row[len(fence[1]) :] for row in lines[number + 1 : end]]
            if fence[2] in ("", "text", "sh", "bash", "console"):
                yield from _commands(page, number + 2, ["    " + row for row in body])
            else:
                yield Code(page, number + 1, fence[2], "\n".join(body) + "\n")
            number = end + 1
            continue
        begin = number
        while lines[number].endswith("\\") and lines[number].startswith("    "):
            number += 1
        yield from _commands(page, begin + 1, lines[begin : number + 1])
        number += 1


def _commands(page: str, line: int, rows: list[str]) -> Iterator[Command]:
    whole: list[str] = []
    for number, row in enumerate(rows):
        if not row.startswith("    "):
            return
        whole.append(row.strip().removesuffix("\\").removeprefix("$ "))
        if row.endswith("\\"):
            continue
        text = _without_comment(" ".join(whole))
        for part in text.split(" && "):
            if _is_command(part):
                yield Command(page, line + number, part)
        whole = []


def _without_comment(text: str) -> str:
    return re.split(r"\s+#\s|\s{2,}#", text)[0].strip()


def _is_command(text: str) -> bool:
    words = text.split()
    while words and _ENVIRONMENT.fullmatch(words[0]):
        words = words[1:]
    return bool(words) and words[0] in PROGRAMS and "…" not in text and "─" not in text


def inline(page: str) -> tuple[list[Command], list[Command]]:
    """(command lines, overrides) that stand in the prose of a page, as code."""
    commands, overrides = [], []
    for number, line in enumerate((ROOT / page).read_text(encoding="utf-8").splitlines()):
        if line.startswith("    "):
            continue
        for text in re.findall(r"(?<!`)`([^`]+)`(?!`)", line):
            text = text.replace("\\|", "|")
            if "…" in text or ("'" in text and text.count("'") % 2):
                continue
            if text.startswith(("python run.py ", "quantpipe ")):
                commands.append(Command(page, number + 1, _without_comment(text)))
            elif all(_OVERRIDE.fullmatch(word) for word in _split(text)):
                overrides.append(Command(page, number + 1, text))
    return commands, overrides


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text) or [""]
    except ValueError:
        return [""]
