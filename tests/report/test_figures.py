"""The figures of a page: drawn from what a run keeps, self-contained, quick for large models, whole in a browser."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import quantpipe
from quantpipe.artifacts import read_json
from quantpipe.data import DigitsDataset
from quantpipe.data.thumbnail import thumbnail
from quantpipe.report import render_html
from quantpipe.report.figures import course
from quantpipe.report.figures.graph_figure import MOST, _merged, _places
from tests.report.browser import browse
from tests.report.test_report_page import HOSTILE, REPORT, everything, page

SECTIONS = ("network", "depth", "bars", "histograms", "classes", "curve", "timeline")


@pytest.fixture(autouse=True)
def drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUANTPIPE_FIGURES", "all")


def made(count: int) -> tuple[dict[str, Any], Any]:
    """A report and figures of a model of that many stored tensors, with branches."""
    rng = np.random.default_rng(count)
    layers: list[dict[str, Any]] = []
    for i in range(count):
        errors = {"rounding": float(rng.exponential(1e-3)), "saturation": float(rng.exponential(1e-4)), "overflow": 0.0}
        bits, sqnr = int(rng.choice([4, 8, 16])), float(rng.normal(25, 6))
        layers.append({"tensor": f"block{i // 7}/conv{i}.out", "bits": bits, "sqnr_db": sqnr, **errors})
    nodes = [
        {"name": f"n{i}", "op": "Conv", "bits": row["bits"], "sqnr_db": row["sqnr_db"]} for i, row in enumerate(layers)
    ]
    nodes[0]["bits"] = None
    edges = [[i - 1, i] for i in range(1, count)] + [[i - 5, i] for i in range(5, count, 9)]
    histogram = {
        "tensor": "t", "bits": 8, "low": -1.0, "high": 3.0, "counts": [int(n) for n in rng.integers(0, 99, 96)],
        "clip_low": -0.5, "clip_high": 2.0, "scale": 0.01, "saturated": 0.02,
    }  # fmt: skip
    figures = {
        "graph": {"nodes": nodes, "edges": edges},
        "histograms": [histogram] * 6,
        "confusion": {"classes": [0, 1], "counts": [[5, 1], [0, 4]], "changed": 1, "samples": 10},
        "changed": [{"index": 3, "label": 0, "float_class": 0, "found_class": 1, "image": thumbnail(np.eye(8))}],
        "timeline": [{"stage": "search", "start": 0.0, "seconds": 2.0, "memory_mb": 100.0}],
        "stages": [{"stage": "the search", "sqnr_db": {row["tensor"]: row["sqnr_db"] - 3 for row in layers[1:]}}],
        "shares": {row["tensor"]: 1 / count for row in layers[1:]},
    }
    report = {
        **REPORT,
        "layers": layers,
        "search": {**REPORT["search"], "front": [[0, 1.0, 0.5], [4, 2.0, 0.9]], "picked": 4},
    }
    return report, figures


@pytest.mark.grid
def test_a_page_holds_every_figure_and_nothing_from_elsewhere() -> None:
    report, figures = made(20)
    html = render_html(report, figures)
    for name in (*SECTIONS, "front"):
        assert re.search(rf'id="{name}".*?<svg', html, re.S), name
    assert html.count("<svg viewBox=") == html.count('role="img" aria-label="') >= 12
    assert all(ref.startswith("#") for ref in re.findall(r'(?:href="|url\()([^")]*)', html))
    assert all(src.startswith("data:image/png;base64,") for src in re.findall(r'src="([^"]*)"', html))
    assert "http" not in html and "<script" not in html and "#010203" not in html and "var(--ink)" in html
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', html))
    assert used <= set(re.findall(r'id="([^"]+)"', html))
    assert "<title>n7 (Conv): " in html and "trial 4: cost 2" in html and ">Conv</text>" in html
    assert "after the search" in html and "share of the cycles" in html and '<td class="n">5.00 %</td>' in html
    assert render_html(report, figures) == html  # the same report gives the same page


@pytest.mark.program
def test_names_in_figures_are_text() -> None:
    report, figures = made(12)
    for row, node in zip(report["layers"], figures["graph"]["nodes"], strict=True):
        row["tensor"] = node["name"] = "<script>x</script>&$_^{"
    html = render_html(report, figures)
    assert "<script" not in html and "&lt;script&gt;" in html


@pytest.mark.parametrize("leaf", [None, [], -1, float("nan"), 10**20, HOSTILE])
def test_odd_values_do_not_break_figures(leaf: Any) -> None:
    page(everything(REPORT, leaf))


def test_without_anything_to_draw_nothing_is_drawn() -> None:
    bare: Any = {**REPORT, "layers": [], "search": {}, "float_nodes": [], "rescales": []}
    html = render_html(bare)
    assert "<svg" not in html and "None recorded" not in html and "<h2>Nodes left in float" not in html


def test_where_no_class_changed_no_table_of_classes_is_drawn() -> None:
    report, figures = made(3)
    figures["confusion"]["changed"] = 0
    assert 'id="classes"' not in render_html(report, figures)


def test_equal_reasons_are_folded() -> None:
    rows = [{"node": f"n{i}", "op": "Softmax", "reason": "no integer form"} for i in range(90)]
    words, _ = page(REPORT | {"float_nodes": rows})
    assert words.count("no integer form") == 1 and "90 Softmax no integer form n0, n1" in words


def test_nodes_stand_apart_and_behind_what_they_read() -> None:
    _, figures = made(300)
    edges = [(a, b) for a, b in figures["graph"]["edges"]]
    x, y = _places(300, edges)
    assert len({*zip(x.tolist(), y.tolist(), strict=True)}) == 300
    assert all(y[b] > y[a] or x[b] > x[a] for a, b in edges)


def test_a_large_model_is_drawn_in_steps_that_show_their_worst() -> None:
    _, figures = made(5001)
    merged = _merged(figures["graph"])
    assert len(merged["nodes"]) <= MOST
    least = min(node["sqnr_db"] for node in figures["graph"]["nodes"])
    assert min(node["sqnr_db"] or 0 for node in merged["nodes"]) == least
    assert merged["nodes"][0]["bits"] is None


def test_pictures_and_what_is_none() -> None:
    rng = np.random.default_rng(0)
    for shape, size in (((3, 32, 24), (48, 64)), ((28, 28, 1), (64, 64)), ((16, 64), (64, 16)), ((1, 8, 8), (64, 64))):
        found = thumbnail(rng.normal(size=shape))
        assert found is not None and Image.open(io.BytesIO(base64.b64decode(found))).size == size
    corner = np.zeros((8, 8))
    corner[0, 0] = 1
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(thumbnail(corner) or ""))))
    assert pixels[0, 0] == 255 and pixels[-1, -1] == 0
    for other in (np.zeros(9), np.zeros((2, 2)), np.zeros((5, 9, 9, 9)), np.full((8, 8), np.nan), np.array(["a"])):
        assert thumbnail(other) is None


@pytest.mark.program
@pytest.mark.parametrize("count", [20, 2000, 10_000])
def test_size_of_large_pages(count: int) -> None:
    """At most 5 MB, for 10,000 tensors too."""
    report, figures = made(count)
    assert len(render_html(report, figures).encode()) < 5_000_000


@pytest.mark.program
def test_a_run_in_a_browser(tmp_path: Path) -> None:
    """At three sizes, and pages of 2,000 and 10,000 tensors: every figure is there, and the console stays empty."""
    result = quantpipe.quantize(
        quantpipe.example_model(), DigitsDataset(), "vta", folder=tmp_path / "run", search="greedy",
        objective={"cost": "bits"}, evaluate={"latency_runs": 1, "baseline": "none"},
        recover={"option": "default", "steps": ["rounding"]},
    )  # fmt: skip
    evaluate = result.folder / "evaluate"
    stored = {"large": made(2000), "huge": made(10_000)}
    for name, (report, drawn) in stored.items():
        (tmp_path / f"{name}.html").write_text(render_html(report, drawn), encoding="utf-8")
    figures = read_json(evaluate / "figures.json")
    (before,) = figures["stages"]
    after = {row["tensor"]: row["sqnr_db"] for row in result.report["layers"]}
    assert before["sqnr_db"].keys() == after.keys() == figures["shares"].keys() & after.keys()
    assert sum(after[name] > error for name, error in before["sqnr_db"].items()) > len(after) / 2
    assert sum(figures["shares"].values()) == pytest.approx(1)
    stages = [row["stage"] for row in figures["timeline"]]
    assert stages[0] == "model" and "evaluate" in stages
    assert len(figures["graph"]["nodes"]) == 23 and len(figures["histograms"]) == 6
    assert sum(map(sum, figures["confusion"]["counts"])) == 607
    assert all(one["image"] for one in figures["changed"])
    for path in (evaluate / "report.html", *(tmp_path / f"{name}.html" for name in stored)):
        for size in ((1400, 1000), (820, 1100), (390, 844)):
            seen = browse(path, size)
            assert seen.console == []
            for name in SECTIONS:
                assert seen.width(name) > 200, (path.name, size, name)
            assert seen.overflow <= 0, (path.name, size)


def test_the_curve_of_a_loss_shows_the_loss() -> None:
    """A search stores minus the loss; accuracies are as they are."""
    found = course._values([[1, -0.5], [2, 0.0]], "kl")
    assert found == [(1.0, 0.5), (2.0, 0.0)] and str(found[1][1]) == "0.0"
    assert course._values([[1, 0.5]], "accuracy") == [(1.0, 0.5)]
