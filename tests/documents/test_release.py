"""What a release states in several places agrees, and every alias is on the page about upgrading."""

from __future__ import annotations

from pathlib import Path

import yaml

from quantpipe.app import renamed
from quantpipe.version import __version__

ROOT = Path(__file__).resolve().parents[2]


def test_the_citation_names_the_version() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == __version__


def test_the_changelog_begins_with_the_version() -> None:
    first = next(line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## "))
    assert first.startswith(f"## [{__version__}]")


def test_every_alias_is_on_the_page_about_upgrading() -> None:
    page = (ROOT / "docs" / "upgrading.md").read_text()
    names = [*renamed.KEYS.items(), *renamed.STEPS.items(), *renamed.PARAMETERS.items()]
    names += [pair for words in renamed.VALUES.values() for pair in words.items()]
    lacking = [name for pair in names for name in pair if name not in page]
    assert names and not lacking
