"""The page and the terminal table show what the report holds, tolerate what it lacks, and trust no name in it."""

from __future__ import annotations

import copy
import io
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from rich.console import Console

from quantpipe.report import render_html, summary_table, text

HOSTILE = "<script>alert('x')</script> [bold]b[/bold] \"onload=x --> {{ 7*7 }} </svg>"

REPORT: dict[str, Any] = {
    "run": {
        "model": "m.onnx",
        "hardware": "vta",
        "schema": "symmetric",
        "threshold": "kl",
        "search": "greedy",
        "seed": 7,
    },
    "metrics": {
        "float": {"top1": 0.9778, "kl": None, "sqnr_db": None},
        "simulated": {"top1": 0.9722, "kl": 0.00123, "sqnr_db": 31.42},
        "realized": {"top1": 0.9722, "kl": 0.00123, "sqnr_db": 31.42},
    },
    "outputs": [
        {"output": "boxes", "sqnr_db": 31.42, "mse": 1e-3, "cosine": 0.9993},
        {"output": "count", "sqnr_db": None, "mse": None, "cosine": None, "equal": 0.75},
    ],
    "agreement": {
        "tensors": 9,
        "elements": 51200,
        "differing": 0,
        "behind_float": 0,
        "max_lsb": 0,
        "first_tensor": None,
    },
    "calibrate": {"seconds": 3.2, "samples": 256, "float_pass_seconds": 1.1, "peak_rss_mb": 412.4},
    "search": {
        "algorithm": "greedy",
        "evaluations": 60,
        "seconds": 18.2,
        "float_pass_seconds": 0.4,
        "best_value": 0.97,
        "space_size": 4**90,
        "trace": [[i, 1 - 1 / (i + 1)] for i in range(60)],
    },
    "recover": [
        {
            "step": "rounding",
            "kl_before": 0.25,
            "kl_after": 0.125,
            "gain": 0.125,
            "kept": True,
            "seconds": 3.21,
            "on": "9 layers",
        },
        {"step": "propagation", "kl_before": 0.125, "kl_after": 0.5, "gain": -0.375, "kept": False, "seconds": 4.32},
    ],
    "model": {
        "float_bytes": 14_000_000,
        "realized_bytes": 3_500_000,
        "macs": 300_774_272,
        "bops": 19_249_553_408,
        "mean_weight_bits": 7.61,
        "mean_activation_bits": 8.0,
        "float_nodes": 1,
        "integer_nodes": 101,
    },
    "latency": {"float_ms": 9.0, "realized_ms": 3.0, "ratio": 0.333},
    "float_nodes": [{"node": "softmax_0", "op": "Softmax", "reason": "vta runs no Softmax"}],
    "conversions": {"ends": 2, "inside": 4, "rescales": 1},
    "without_kernel": [{"node": "conv_3", "op": "Conv", "reasons": ["requantized by shift"]}],
    "rescales": [{"edge": "a->b:0", "scale": 0.01, "reason": "shift beyond 31"}],
    "rectified": ["relu threshold 6 -> 4"],
    "layers": [
        {"tensor": "fine", "bits": 8, "sqnr_db": 40.0, "rounding": 0.1, "saturation": 0.0, "overflow": 0},
        {"tensor": "unknown", "bits": 8, "sqnr_db": None, "rounding": None, "saturation": None, "overflow": None},
        {"tensor": "worst", "bits": 4, "sqnr_db": 8.25, "rounding": 0.2, "saturation": 0.0, "overflow": 3},
    ],
    "choices": [{"key": "bits:w", "kind": "bits", "value": 4, "edges": ["w->conv:1"]}],
    "warnings": ["three values were not finite"],
}


class _Checker(HTMLParser):
    """Collects tags, visible text and addresses; notices tags that are not closed in order."""

    VOID = frozenset({"meta", "line", "path", "circle", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words.append(data)


def page(report: dict[str, Any]) -> tuple[str, _Checker]:
    html = render_html(report)
    checker = _Checker()
    checker.feed(html)
    checker.close()
    assert checker.open == []
    return re.sub(r"\s+", " ", " ".join(checker.words)), checker


def printed(report: dict[str, Any]) -> str:
    console = Console(file=io.StringIO(), width=300)
    console.print(summary_table(report))
    out: str = console.file.getvalue()  # type: ignore[attr-defined]
    return out


def everything(value: Any, leaf: Any) -> Any:
    """The same structure with every leaf replaced."""
    if isinstance(value, dict):
        return {key: everything(item, leaf) for key, item in value.items()}
    if isinstance(value, list):
        return [everything(item, leaf) for item in value]
    return leaf


def test_the_page_shows_the_report() -> None:
    words, _ = page(REPORT)
    for expected in (
        "m.onnx on vta",
        "seed 7",
        "0 of 51,200 elements differ",
        "97.78 %",
        "31.4 dB",
        "4.00× smaller (float 14.0 MB)",
        "3.00× faster (float 9 ms)",
        "300.8 M",
        "of a space of 10^54.2",
        "1 Softmax vta runs no Softmax softmax_0",
        "a->b:0 0.01 shift beyond 31",
        "Conversions 4 + 2 float ↔ integer",
        "conv_3 Conv requantized by shift",
        "relu threshold 6 -> 4",
        "bits:w bits 4 w->conv:1",
        "three values were not finite",
    ):
        assert expected in words, expected
    assert words.index("worst") < words.index("fine") < words.index("unknown")


def test_the_steps_of_recovery_are_shown() -> None:
    words, _ = page(REPORT)
    assert "rounding 9 layers 0.25 0.125 0.125 yes 3.21 s" in words
    assert "propagation 0.125 0.5 -0.375 no 4.32 s" in words
    rows = [[cell.strip() for cell in re.split("[│┃]", line)[1:-1]] for line in printed(REPORT).splitlines()]
    assert ["rounding", "0.25", "0.125", "0.125", "yes", "3.21 s", "9 layers"] in rows
    assert ["propagation", "0.125", "0.5", "-0.375", "no", "4.32 s", ""] in rows


def test_a_step_that_could_not_be_made_says_why() -> None:
    row = {"step": "rounding", "kl_before": 0.25, "kl_after": None, "kept": False, "seconds": 1.0, "reason": "no <i>"}
    assert "rounding no <i> 0.25 – – no 1.00 s" in page(REPORT | {"recover": [row]})[0]
    said = printed(REPORT | {"recover": [row | {"reason": "no <i> (which is a long story)"}]})
    assert said.splitlines()[-1].rstrip() == "rounding: no <i>"


def test_without_recovery_there_is_no_table_of_it() -> None:
    report = REPORT | {"recover": []}
    assert "Recovery" not in page(report)[0] and "recovery" not in printed(report)


def test_the_page_is_self_contained() -> None:
    html = render_html(REPORT)
    _, checker = page(REPORT)
    assert not checker.tags & {"script", "link", "iframe", "object", "embed", "base"}
    assert not [name for name, _ in checker.attributes if name in ("src", "href") or name.startswith("on")]
    assert "url(" not in html and "@import" not in html and "http" not in html
    assert "prefers-color-scheme: dark" in html


def test_hostile_names_are_text() -> None:
    report = everything(REPORT, HOSTILE)
    report["agreement"] |= {"elements": 10, "differing": 2, "first_tensor": HOSTILE}
    words, checker = page(report)
    assert "script" not in checker.tags and HOSTILE in words and "49" not in words
    assert "[bold]b[/bold]" in printed(report)


@pytest.mark.parametrize("missing", [*REPORT, "everything"])
@pytest.mark.parametrize("how", ["absent", "null"])
def test_missing_parts_are_tolerated(missing: str, how: str) -> None:
    report: dict[str, Any] = {} if missing == "everything" else dict(REPORT)
    if how == "null":
        report = report | dict.fromkeys(REPORT if missing == "everything" else [missing])
    else:
        report.pop(missing, None)
    words, _ = page(report)
    assert "None None" not in words and "undefined" not in words.lower()
    assert printed(report)


def test_null_values_are_dashes() -> None:
    words, _ = page(everything(REPORT, None))
    assert "no labels" in words and "not compared" in words and "None " not in words.replace("None recorded.", "")
    assert "– dB" not in words and "– MB" not in words
    assert "no labels" in printed(everything(REPORT, None))


@pytest.mark.parametrize("leaf", [float("nan"), float("inf"), -1, 0, 10**20, True, "", [], {}])
def test_odd_values_do_not_break_the_page(leaf: Any) -> None:
    report = everything(REPORT, leaf)
    page(report)
    printed(report)


def test_a_space_beyond_floating_point() -> None:
    assert "10^412.3" in page(REPORT | {"search": {"space_size": None, "space_log10": 412.3}})[0]


def test_single_keys_may_be_missing() -> None:
    for part, content in REPORT.items():
        for key in content if isinstance(content, dict) else ():
            report = copy.deepcopy(REPORT)
            del report[part][key]
            page(report)
            printed(report)


def test_a_difference_is_red_and_names_the_tensor() -> None:
    report = REPORT | {
        "agreement": {"tensors": 9, "elements": 100, "differing": 3, "max_lsb": 1, "first_tensor": "conv7"}
    }
    words, checker = page(report)
    assert "3 of 100 elements differ" in words and "first in conv7, by at most 1 integer step." in words
    assert ("class", "verdict bad") in checker.attributes
    assert ("class", "verdict good") in page(REPORT)[1].attributes
    assert "conv7" in printed(report)


def test_nothing_compared_is_not_green() -> None:
    for agreement in (None, {}, {"elements": 0, "differing": 0}, {"elements": 5, "differing": None}):
        assert text.verdict(agreement)[0] == "open"


def test_long_lists_are_folded() -> None:
    report = REPORT | {"layers": [{"tensor": f"t{i:04}", "sqnr_db": float(i)} for i in range(1000)]}
    words, checker = page(report)
    assert "details" in checker.tags and "960 more" in words and "t0999" in words


def test_the_table_shows_the_headline() -> None:
    out = printed(REPORT)
    for expected in ("m.onnx · vta · symmetric · kl · greedy", "97.22 %", "31.4 dB", "14.0 MB", "7.61 / 8", "19.2 G"):
        assert expected in out, expected
    assert "0 of 51,200 elements differ" in out


# ---------------------------------------------------------------- numbers


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (text.number(0.972222), "0.9722"),
        (text.number(1234567), "1,234,567"),
        (text.number(8.0), "8"),
        (text.number(1.2e-7), "1.2e-07"),
        (text.number(10**400), "10^400.0"),
        (text.number(None), "–"),
        (text.number(float("nan")), "nan"),
        (text.count(999_999), "999,999"),
        (text.count(2.5e12), "2.5 T"),
        (text.size(999), "999 B"),
        (text.size(1_500), "1.5 kB"),
        (text.size(3 * 10**12), "3000.0 GB"),
        (text.seconds(0.5), "0.50 s"),
        (text.seconds(90), "90 s"),
        (text.seconds(600), "10 min"),
        (text.seconds(9000), "2 h 30 min"),
        (text.times(1, 4, "smaller", "larger"), "4.00× smaller"),
        (text.times(4, 1, "smaller", "larger"), "4.00× larger"),
        (text.times(4, 4, "smaller", "larger"), "the same"),
        (text.times(None, 4, "smaller", "larger"), "–"),
    ],
)
def test_numbers_as_people_read_them(shown: str, expected: str) -> None:
    assert shown == expected


@pytest.mark.parametrize(
    ("form", "caption"),
    [("least_cost_within_tolerance", "cost (cost) of the best"), ("best_value_within_cost", "value of the best")],
)
def test_the_plot_shows_what_the_search_was_after(form: str, caption: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUANTPIPE_FIGURES", "all")
    search = {"form": form, "trace": [[0, -0.1], [3, -0.2]], "trace_cost": [[0, 90.0], [3, 70.0]]}
    page = render_html({"search": search})
    assert caption in page
    assert (">90<" in page) == (form == "least_cost_within_tolerance")


def test_contributions_are_listed_and_the_loss_is_drawn_at_the_same_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUANTPIPE_FIGURES", "all")
    row = {"choice": "range:stem.out", "before": "estimated", "after": "halved", "gain": 0.25, "saved": 0.0}
    broken = {**row, "choice": "float:head", "gain": None}
    search = {
        "form": "least_cost_within_tolerance",
        "metric": "kl",
        "cost": "cycles",
        "contributions": [broken, row],
        "device": {"sentence": "loss from 0.5 to 0.25 at the same cost"},
        "trace": [[0, -0.5], [3, -0.25]],
        "trace_cost": [[0, 7.0], [3, 7.0]],
    }
    page = render_html({"search": search})  # type: ignore[typeddict-item]
    assert page.index("float:head") < page.index("range:stem.out") and "at the same cost" in page
    assert "kl of the best candidate" in page and "cost (cycles) of the best" not in page
