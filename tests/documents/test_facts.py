"""Numbers in sentences of documents are those of code, configuration, committed results and runs (facts.yaml)."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.program import NO_TRACKING, Program, Result, Zygote

ROOT = Path(__file__).resolve().parents[2]
FACTS: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "facts.yaml").read_text(encoding="utf-8"))
WORDS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
NUMBER = r"([\w,.-]*\w)"
VOLATILE = ("latency", "quartiles", "candidates", "in other sessions", "optimization off", "kernels of default")
"""Parts of lines of the first run's output that another machine or processor changes; so do paths and seconds."""
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


def value_of(result: Result, source: dict[str, Any]) -> str:
    """What a run has to say: a number of a row of its table, the SQNR of a layer, or what a pattern finds."""
    if "layer" in source:
        (layer,) = [layer for layer in result.report["layers"] if layer["tensor"] == source["layer"]]
        return f"{layer['sqnr_db']:.1f}"
    if "output" in source:
        return re.findall(source["output"], result.out)[0]
    (row,) = [line for line in result.out.splitlines() if line.startswith(f"│ {source['row']} ")]
    return re.findall(NUMBER, row.replace(source["row"], "").replace("%", ""))[source["number"]]


def faults(fact: dict[str, Any], page: str, known: Callable[[dict[str, Any]], str] = value) -> list[str]:
    """What of a fact does not hold in a page's text."""
    pattern = re.escape(fact["says"]).replace(r"\{\}", NUMBER)
    found = re.search(pattern, page)
    if found is None:
        return [f"{fact['page']} has no sentence {fact['says']!r}"]
    pairs = list(zip(found.groups(), [known(source) for source in fact["from"]], strict=True))
    within = fact.get("within", 0.0)
    return [f"{fact['says']!r}: {a}, and it is {b}" for a, b in pairs if not alike(a, b, within)]


def alike(shown: str, real: str, within: float) -> bool:
    """Whether two words are equal, or numbers that differ by less than a share; fewer digits may be shown."""
    if shown == real or not within:
        return shown == real
    try:
        one, other = float(shown.replace(",", "")), float(real.replace(",", ""))
    except ValueError:
        return False
    _, point, digits = shown.partition(".")
    return abs(one - other) <= within * abs(other) + (0.5 * 10 ** -len(digits) if point else 0.0)


@pytest.mark.parametrize("fact", [f for f in FACTS if "run" not in f], ids=lambda fact: fact["page"])
def test_a_number_in_a_sentence_is_that_of_its_source(fact: dict[str, Any]) -> None:
    assert faults(fact, (ROOT / fact["page"]).read_text(encoding="utf-8")) == []


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, zygote: Zygote) -> Callable[[tuple[str, ...]], Result]:
    """A run of the digits with these arguments; each runs once."""
    results: dict[tuple[str, ...], Result] = {}

    def run(arguments: tuple[str, ...]) -> Result:
        if arguments not in results:
            folder = tmp_path_factory.mktemp("facts")
            given = [*arguments, NO_TRACKING, "evaluate.latency_runs=5", f"hydra.run.dir={folder / 'run'}"]
            results[arguments] = Program(folder, zygote, {}).bare(*given, folder=folder / "run")
            assert results[arguments].code == 0, results[arguments].err
        return results[arguments]

    return run


@pytest.mark.program
@pytest.mark.parametrize("fact", [f for f in FACTS if "run" in f], ids=lambda fact: fact["says"][:40])
def test_a_number_in_a_sentence_is_what_a_run_prints(
    fact: dict[str, Any], ran: Callable[[tuple[str, ...]], Result]
) -> None:
    page = (ROOT / fact["page"]).read_text(encoding="utf-8")
    assert faults(fact, page, lambda source: value_of(ran(tuple(fact["run"])), source)) == []


@pytest.mark.program
def test_the_first_run_prints_what_the_readme_shows(ran: Callable[[tuple[str, ...]], Result]) -> None:
    """Line by line; processors may differ by 3 % in a number."""
    found = re.search(r"(?ms)^    run folder .*?(?=\n\n)", (ROOT / "README.md").read_text(encoding="utf-8"))
    result = ran(())
    assert found is not None and lost_lines(found[0], result.err + result.out) == []
    for right, wrong in (("19.4 dB", "29.4 dB"), ("23 of 23", "22 of 23"), ("0 of 963,200", "1 of 963,200")):
        assert right in found[0] and lost_lines(found[0].replace(right, wrong), result.err + result.out)


def lost_lines(block: str, printed: str) -> list[str]:
    """Lines of a block that a run did not print."""
    lines = [line.split() for line in printed.splitlines()]
    steady = [line for line in block.splitlines() if line.strip() and not any(word in line for word in VOLATILE)]
    return [line for line in steady if not any(_same_line(line.split(), other) for other in lines)]


def _same_line(shown: list[str], printed: list[str]) -> bool:
    if "…" in "".join(shown) or "http" in "".join(shown):
        return True  # paths and addresses of the reader's machine
    if len(shown) > 1 and shown[1] == "s":
        shown, printed = shown[1:], printed[1:]  # a time
    return len(shown) == len(printed) and all(alike(a, b, 0.03) for a, b in zip(shown, printed, strict=True))


def test_a_wrong_number_and_a_lost_sentence_are_found() -> None:
    assert alike("0.010", "0.01027", 0.01) and not alike("0.012", "0.01027", 0.01) and not alike("22", "23", 0.03)
    fact = {"page": "p", "says": "takes {} files", "from": [{"count": "conf/search/*.yaml", "word": True}]}
    assert faults(fact, "it takes ninety files") and faults(fact, "nothing")
    assert faults(fact, f"it takes {value(fact['from'][0])} files") == []
