"""Numbers in sentences of documents are those of the code, the configuration, and committed results (facts.yaml)."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FACTS: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "facts.yaml").read_text(encoding="utf-8"))
WORDS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
TENS = {20: "twenty", 30: "thirty", 40: "forty"}


def word(number: int) -> str:
    """A number in English, up to 49."""
    if number < len(WORDS):
        return WORDS[number]
    ten, one = number // 10 * 10, number % 10
    return TENS[ten] if not one else f"{TENS[ten]}-{WORDS[one]}"


def value(source: dict[str, Any]) -> str:
    """What a document has to say, from its source."""
    if "count" in source:
        number: Any = len(list(ROOT.glob(source["count"])))
    elif "conf" in source:
        number = yaml.safe_load((ROOT / "conf" / "config.yaml").read_text(encoding="utf-8"))
        for key in source["conf"].split("."):
            number = number[key]
    elif "code" in source:
        module, _, name = source["code"].partition(":")
        number = getattr(importlib.import_module(module), name) * source.get("times", 1)
    else:
        found = re.search(source["pattern"], (ROOT / source["text"]).read_text(encoding="utf-8"))
        assert found is not None, f"{source['text']} has nothing like {source['pattern']}"
        return found[1]
    return word(number) if source.get("word") else f"{number:g}"


def faults(fact: dict[str, Any], page: str) -> list[str]:
    """What of a fact does not hold in a page's text."""
    pattern = re.escape(fact["says"]).replace(r"\{\}", r"([\w-]+(?:\.\d+)?)")
    found = re.search(pattern, page)
    if found is None:
        return [f"{fact['page']} has no sentence {fact['says']!r}"]
    wanted = [value(source) for source in fact["from"]]
    return [f"{fact['says']!r}: {a}, and it is {b}" for a, b in zip(found.groups(), wanted, strict=True) if a != b]


@pytest.mark.parametrize("fact", FACTS, ids=[f"{fact['page']}-{n}" for n, fact in enumerate(FACTS)])
def test_a_number_in_a_sentence_is_that_of_its_source(fact: dict[str, Any]) -> None:
    assert faults(fact, (ROOT / fact["page"]).read_text(encoding="utf-8")) == []


def test_a_wrong_number_and_a_lost_sentence_are_found() -> None:
    fact = {"page": "p", "says": "takes {} files", "from": [{"count": "conf/search/*.yaml", "word": True}]}
    assert faults(fact, "it takes ninety files") and faults(fact, "nothing")
    assert faults(fact, f"it takes {value(fact['from'][0])} files") == []
