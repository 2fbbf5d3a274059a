"""What mkdocs calls: pages that are made or that stand outside docs/, and links for their place in the site."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from website import artifact_tables, configuration, hardware, interfaces, ops, pages  # noqa: E402
from website.lists import indented_by_four  # noqa: E402

GENERATED = {
    pages.CONFIGURATION: configuration.page,
    pages.HARDWARE: hardware.page,
    pages.OPS: ops.page,
    pages.API: interfaces.api,
    pages.COMMAND_LINE: interfaces.command_line,
}

WIDE = ("results/", pages.HARDWARE, pages.OPS)
"""Pages of wide tables and few headings: they have no table of contents beside them."""
_LOADED = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed)\b[^>]*?\bsrc=["']?(?:https?:)?//"""
    r"""|<link\b(?![^>]*\brel=["']?canonical)[^>]*?\bhref=["']?(?:https?:)?//"""
    r"""|@import\s+(?:url\()?["']?(?:https?:)?//|url\(["']?(?:https?:)?//"""
)
"""What makes a browser load something from elsewhere."""


def on_config(config: Any) -> Any:
    """Name every page of results in the navigation, behind the one that says how they are made."""
    for entry in config.nav:
        if "Measurements" in entry:
            places = [place for place in pages.included().values() if place.startswith("results/")]
            entry["Measurements"] += [{_title(place): place} for place in places if place not in entry["Measurements"]]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the files of the repository that are pages, and the pages that are made."""
    for file, place in pages.included().items():
        text = (ROOT / file).read_text(encoding="utf-8")
        if file == "LICENSE":
            text = f"# License\n\n```text\n{text}\n```\n"
        if text.startswith("---\n"):
            text = text.split("---\n", 2)[2]  # a description for other programs, which mkdocs would read as its own
        files.append(File.generated(config, place, content=text))
    for place, make in GENERATED.items():
        files.append(File.generated(config, place, content=make()))
    return files


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    """Write the links of a page for its place in the site, and its lists as mkdocs reads them."""
    place = page.file.src_uri
    if place.startswith(WIDE):
        page.meta.setdefault("hide", ["toc"])
    if place in GENERATED:
        return markdown
    known = pages.included()
    file = {there: here for here, there in known.items()}.get(place, f"docs/{place}")
    if file == "docs/artifacts.md":
        markdown = artifact_tables.filled(markdown)
    return indented_by_four(pages.rewritten(markdown, file, place, known))


def on_post_build(config: Any) -> None:
    """Refuse a page or style that loads anything from elsewhere."""
    site = Path(config.site_dir)
    for path in sorted((*site.rglob("*.html"), *site.rglob("*.css"))):
        found = _LOADED.search(path.read_text(encoding="utf-8"))
        if found is not None:
            raise PluginError(f"{path.relative_to(site)} loads something from elsewhere: {found[0]}…")


def _title(place: str) -> str:
    """The name of a page of results in the navigation: their headings are alike where settings differ."""
    return Path(place).stem.replace("_", " ").capitalize().replace("avx2", "(AVX2)")
