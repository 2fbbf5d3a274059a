"""What documents list of options is what there is: conf/ and the pages cannot drift apart."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "conf"
GROUPS = sorted(p.name for p in CONF.iterdir() if p.is_dir())


def options(group: str) -> set[str]:
    return {path.stem for path in (CONF / group).glob("*.yaml")}


def section(page: str, title: str) -> str:
    """The text of a page from a heading to the next one of its kind."""
    text = (ROOT / page).read_text()
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.S | re.M)
    assert found, (page, title)
    return found[1]


@pytest.mark.parametrize("group", GROUPS)
def test_configuration_has_a_section_for_every_group(group: str) -> None:
    assert section("docs/configuration.md", f"Group `{group}`").strip()


def test_the_readme_lists_every_option_of_every_group() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", section("README.md", "Choosing hardware, search and objective"), re.M)
    assert {group for group, _ in rows} == set(GROUPS) - {"model"}  # whose options are the shipped models
    for group, text in rows:
        named = set(re.findall(r"(?<![\w=])`(\w+)`", text))
        assert named == options(group), group


def test_the_readme_counts_and_claims_what_there_is() -> None:
    text = section("README.md", "What works now")
    words = "eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty"
    more = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    numbers = dict(enumerate([*words.split(), *(f"twenty-{n}" for n in more)], start=8))
    assert f"{numbers[len(options('hardware'))]} shipped files" in text
    assert f"{numbers[len(options('search'))]} algorithms" in text
    assert f"{numbers[len(options('threshold'))]} threshold options" in text
    later = " ".join(re.findall(r"\| ([^|]*) \|$", text, re.M))
    for done in ("weights with a zero point", "as choices of the search", "first output"):
        assert done not in later


def test_exit_codes_stand_with_the_keys_and_are_those_of_check_and_lint() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    assert "### Exit codes" in text and re.search(r"^\| `check` \|", text, re.M)
    assert "configuration.md#exit-codes" in (ROOT / "README.md").read_text()


def test_files_that_the_architecture_names_are_there() -> None:
    named = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)*\.py)`", (ROOT / "docs" / "architecture.md").read_text()))
    assert len(named) > 30
    known = [str(path.relative_to(ROOT)) for path in (ROOT / "quantpipe").rglob("*.py")]
    assert [name for name in sorted(named) if not any(f"/{path}".endswith(f"/{name}") for path in known)] == []
