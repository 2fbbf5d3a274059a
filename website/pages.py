"""Which file of the repository stands where in the site, and how links between them are rewritten.

Documents link to one another by paths of the repository, so that they work wherever the repository is browsed. In the
site some of these files lie elsewhere (the README is the home page, results of benchmarks have a folder of their own),
and some are parts of a generated page. Each link is resolved against the place of its page in the repository, and
written anew for the place of its page in the site.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONFIGURATION = "reference/configuration.md"
HARDWARE = "reference/hardware_files.md"
OPS = "reference/ops.md"
API = "reference/api.md"
COMMAND_LINE = "reference/command_line.md"

ELSEWHERE = {
    "README.md": "index.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SKILL.md": "project/assistants.md",
    "LICENSE": "project/license.md",
    "benchmarks/README.md": "results/index.md",
}
"""Files outside docs/ that are pages, and their place in the site."""

_LINK = re.compile(r"(?<!\\)(\]\()([^)\s]+)((?:\s+\"[^\"]*\")?\))")
_OUTSIDE = re.compile(r"[a-z]+:|#|/")


def included(root: Path = ROOT) -> dict[str, str]:
    """File of the repository outside docs/ -> its page in the site."""
    found = [path for folder in ("benchmarks", "benchmarks/results") for path in sorted((root / folder).glob("*.md"))]
    results = {str(path.relative_to(root)): f"results/{path.name}" for path in found}
    return {**results, **ELSEWHERE}


def site_path(file: str, pages: Mapping[str, str]) -> str | None:
    """Where a file of the repository stands in the site, with an anchor if it is a part of a page; None: nowhere."""
    if file in pages:
        return pages[file]
    group = re.fullmatch(r"conf/(\w+)(?:/(\w+\.yaml)?)?", file)
    if file == "conf/config.yaml":
        return CONFIGURATION
    if file == "quantpipe/oprules":
        return OPS
    if file in ("quantpipe/extend/device_op.py", "quantpipe/types/layer_views.py"):
        return API
    if group is not None and group[1] == "hardware":
        return f"{HARDWARE}#{group[2].removesuffix('.yaml')}" if group[2] else HARDWARE
    if group is not None:
        return f"{CONFIGURATION}#group-{group[1]}"
    return file.removeprefix("docs/") if file.startswith("docs/") else None


def rewritten(text: str, file: str, place: str, pages: Mapping[str, str]) -> str:
    """The text of the page `file`, which stands at `place` in the site, with its links for that place.

    A link to a file that is no part of the site stays as it is, which a strict build refuses.
    """
    here, there = posixpath.dirname(file), posixpath.dirname(place)

    def link(match: re.Match[str]) -> str:
        target = match[2]
        if _OUTSIDE.match(target):
            return match[0]
        path, _, anchor = target.partition("#")
        full = posixpath.normpath(posixpath.join(here, path))
        found = site_path(full, pages)
        if found is None:
            return match[0]  # mkdocs names it: --strict makes it an error
        path, _, own = found.partition("#")
        end = anchor or own
        return f"{match[1]}{posixpath.relpath(path, there or '.')}{'#' + end if end else ''}{match[3]}"

    return _outside_code(text, lambda prose: _LINK.sub(link, prose))


def _outside_code(text: str, change: Callable[[str], str]) -> str:
    """With `change` made to all but fenced code."""
    parts = re.split(r"(^```.*?^```[^\n]*$)", text, flags=re.M | re.S)
    return "".join(part if part.startswith("```") else change(part) for part in parts)
