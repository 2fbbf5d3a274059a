"""Runs are compared from their folders: what differs, which is the best, and whether that is more than chance."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import quantpipe
from quantpipe.app.compare_command import found_runs, jobs_of, write
from quantpipe.data import DigitsDataset
from quantpipe.errors import QuantpipeError
from quantpipe.pipeline.compare import Found, compare, found_in
from quantpipe.pipeline.log_run import best_so_far
from quantpipe.report import compare_note, compare_page, compared
from quantpipe.report.compared import beside

EVALUATE = {"latency_runs": 1, "baseline": "none"}


def made(where: str, **changes: Any) -> Found:
    """A run as its folder would tell it."""
    right = changes.pop("right", np.ones(200, bool))
    run = {"hardware": "vta", "search": "uniform", "model_hash": "sha256:1", "schema": "a", **changes.pop("run", {})}
    metrics = {"top1": float(np.mean(right)), "kl": 0.1, "sqnr_db": 20.0}
    report = {
        **changes.pop("more", {}),
        "version": quantpipe.__version__,
        "run": run,
        "metrics": {"float": {"top1": 0.99}, "realized": metrics},
        "model": {"realized_bytes": changes.pop("size", 1000), "mean_weight_bits": 8.0, "mean_activation_bits": 8.0},
        "agreement": {"differing": changes.pop("differing", 0)},
        "data": {"evaluate": {"digest": changes.pop("digest", "sha256:e")}},
        "search": {"shortfall": changes.pop("shortfall", None), **changes.pop("search", {})},
        "choices": changes.pop("choices", []),
    }
    label = np.zeros(len(right), np.int64)
    samples = {"loss": np.full(len(right), 0.1), "found_class": np.where(right, 0, 1), "label": label}
    return Found(where, report, changes.pop("config", {}), samples)


def printed(report: Any) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(compared(report))
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_the_best_holds_its_integers_and_meets_its_objective() -> None:
    worse = np.arange(200) >= 10
    runs = [
        made("differs", differing=3),
        made("misses", shortfall="its loss is 0.3"),
        made("right", right=worse),
        made("small", right=worse, size=500),
    ]
    assert compare(runs)["best"] == "D"


def test_equal_runs_are_a_tie_and_none_of_them_is_called_the_best() -> None:
    report = compare([made("0"), made("1"), made("2", right=np.arange(200) >= 40)])
    assert report["best"] == "A" and report["tied"] == ["B"]
    assert report["verdict"] == "A and B have equal results, the best by top-1 accuracy. Price of A: 1,000 bytes."
    assert compare([made("0"), made("1")])["verdict"] == "A and B have equal results. Price of A: 1,000 bytes."
    for shown in (printed(report), compare_page(report), compare_note(report)):
        assert "A and B have equal results" in shown and "is the best" not in shown


def test_the_mean_over_devices_is_of_runs_that_are_equal_in_all_else() -> None:
    """A row for each algorithm, as the column of means in published tables; one device alone has none."""
    wrong = {("lsq", "vta"): 20, ("lsq", "snpe"): 4, ("lsq", "tensorrt"): 6, ("pact", "vta"): 40, ("pact", "snpe"): 0}
    runs = [
        made(device, right=np.arange(200) >= count, run={"train": train, "hardware": device, "schema": device})
        for (train, device), count in wrong.items()
    ]
    report = compare([*runs, made("alone", run={"train": "dsq"}), Found("unfinished", problem="not finished")])
    assert report["notes"] == [
        "lsq: 95.0 ± 4.4 % over 3 devices (mean and standard deviation), lowest 90.0 % on vta",
        "pact: 90.0 ± 14.1 % over 2 devices (mean and standard deviation), lowest 80.0 % on vta",
    ]
    assert "lsq: 95.0 ± 4.4 % over 3 devices" in " ".join(printed(report).split())
    assert compare([runs[0], made("twice", run={"train": "lsq"})])["notes"] == []


def test_by_chance_only_the_smallest_is_taken_and_its_price_is_named() -> None:
    """One sample of 200 more is chance (p = 1): it makes no run the best that is larger and slower."""
    slow = {"latency": {"realized_ms": 6.0, "of": "device"}}
    quick = {"latency": {"realized_ms": 1.0, "of": "device"}}
    one = np.arange(200) != 7
    runs = [
        made("quick", right=one, more=quick),
        made("slow", size=2000, more=slow),
        made("small", right=one, size=900),
    ]
    report = compare(runs)
    assert report["best"] == "C" and report["tied"] == ["B", "A"]
    assert "differ by chance only" in str(report["verdict"]) and "C is the smallest" in str(report["verdict"])
    clear = np.arange(200) >= 40
    report = compare([made("quick", right=clear, more=quick), made("slow", size=2000, more=slow)])
    assert report["best"] == "B" and report["tied"] == []
    assert report["verdict"] == (
        "B is the best by top-1 accuracy (the value's p is at most 1.8e-12). Price of B: 2,000 bytes, 6 ms (the "
        "smallest is A with 1,000, the fastest is A with 1 ms)."
    )


def test_the_objective_decides_its_cost_on_one_device_and_its_loss_otherwise() -> None:
    """By accuracy the first would win; the objective asks for the lowest cost within a tolerance."""
    objective = {"form": "least_cost_within_tolerance", "metric": "auto", "cost": "bops"}
    few = np.arange(200) >= 40
    runs = [
        made("right", search=objective, more={"cost": {"bops": 20.0}}),
        made("cheap", search=objective, more={"cost": {"bops": 10.0}}, right=few),
    ]
    report = compare(runs)
    assert report["best"] == "B" and report["by"] == "the lowest bops, then the smallest loss"
    elsewhere = made("c", search=objective, more={"cost": {"bops": 1.0}}, run={"hardware": "ort_cpu"}, right=few)
    elsewhere.samples["loss"][:] = 0.2  # type: ignore[index]
    report = compare([runs[0], elsewhere])
    assert report["best"] == "A" and report["by"] == "the smallest loss"


def test_runs_are_held_against_the_best_by_what_decides() -> None:
    """The third run has more right answers, which may be chance, and a greater loss, by which the first two win."""
    few, auto = np.arange(200) >= 4, {"metric": "auto"}
    runs = [made(name, right=few, search=auto) for name in "01"] + [made("2", search=auto)]
    runs[2].samples["loss"][:] = np.linspace(0.2, 0.3, 200)  # type: ignore[index]
    report = compare(runs)
    assert str(report["verdict"]).startswith("A and B have equal results, the best by the smallest loss.")
    assert "vs best: mean loss" in printed(report) and "Wilcoxon" in printed(report)
    assert "loss +0.15, p < 0.001" in compare_note(report) and "points" not in compare_note(report)
    assert "loss compared with the best" in compare_page(report) and "+0.15" in compare_page(report)
    by_accuracy = compare([made("0"), made("1", right=few)])
    assert "vs best: points of accuracy" in printed(by_accuracy) and "McNemar" in printed(by_accuracy)


def test_a_latency_of_a_reference_form_is_not_compared() -> None:
    reference = {"latency": {"realized_ms": 82.4, "ratio": 40.0, "of": "reference"}}
    here = {"latency": {"realized_ms": 2.0, "ratio": 0.9, "ratio_low": 0.7, "ratio_high": 1.2, "of": "device"}}
    report = compare([made("vta", more=reference), made("ort", more=here, run={"hardware": "ort_cpu"})])
    assert [run["figures"]["latency_ms"] for run in report["runs"]] == [None, 2.0]
    assert report["runs"][1]["figures"]["latency_ratio_high"] == 1.2
    assert "82.4" not in compare_page(report) and "82.4" not in printed(report)


def test_a_difference_that_is_more_than_chance_and_one_that_is_not() -> None:
    runs = [made("all"), made("one", right=np.arange(200) != 7), made("many", right=np.arange(200) >= 40)]
    report = compare(runs)
    one, many = report["paired"]
    assert (one["only_best"], one["only_this"], one["p"]) == (1, 0, 1.0)
    assert report["tied"] == ["B"]
    assert many["only_best"] == 40 and many["p_holm"] < 1e-6 and many["difference"] == pytest.approx(-0.2)
    words = {row["label"]: beside(row) for row in report["paired"]}
    assert "may be chance" in words["B"] and "p < 0.001" in words["C"] and "chance" not in words["C"]
    assert max(map(len, printed(report).splitlines())) <= 80


def test_names_say_what_tells_runs_apart_and_no_more() -> None:
    """The schema follows from the hardware here, so that it is not part of a name."""
    runs = [
        made("0", run={"hardware": "vta", "schema": "power2", "search": "greedy"}),
        made("1", run={"hardware": "vta", "schema": "power2", "search": "random"}),
        made("2", run={"hardware": "ort_cpu", "schema": "asymmetric", "search": "greedy"}),
    ]
    report = compare(runs)
    assert [run["name"] for run in report["runs"]] == ["vta greedy", "vta random", "ort_cpu greedy"]
    assert {row["key"] for row in report["configuration"]} == {"hardware", "schema", "search"}


def test_a_word_that_says_nothing_has_its_group_and_reasons_stand_below_the_table() -> None:
    runs = [made(str(i), run={"recover": option}) for i, option in enumerate(("none", "default"))]
    failed = Found("2", problem="not finished: HardwareError: it is too long for a column", given={"recover": "auto"})
    report = compare([*runs, failed])
    assert [run["name"] for run in report["runs"]] == ["recover=none", "recover=default", "recover=auto"]
    lines = printed(report).splitlines()
    assert any(line.startswith("C: not finished: HardwareError") for line in lines)
    assert [run["name"] for run in compare([runs[0], failed])["runs"]] == ["recover=none", "recover=auto"]


def test_keys_and_choices_that_differ() -> None:
    choices = [{"key": "w", "kind": "weight", "value": 4}, {"key": "x", "kind": "activation", "value": 8}]
    config = {"seed": 1, "search": {"max_evaluations": 9, "algorithm": {"_target_": "a"}}, "tracking": {"uri": "a"}}
    other = {"seed": 2, "search": {"max_evaluations": 9, "algorithm": {"_target_": "a"}}, "tracking": {"uri": "b"}}
    runs = [made("0", config=config, choices=choices), made("1", config=other, choices=choices[1:])]
    report = compare(runs)
    assert report["configuration"] == [{"key": "seed", "values": ["1", "2"]}]
    assert report["strategy"] == [{"key": "weight w", "values": ["4", "–"]}] and report["same_tensors"] == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [({"run": {"model_hash": "sha256:2"}}, "different models"), ({"digest": "x"}, "different samples")],
)
def test_what_cannot_be_compared_is_said(change: dict[str, Any], said: str) -> None:
    report = compare([made("0"), made("1", **change)])
    assert report["best"] is None and report["paired"] == [] and said in report["notes"][0]
    assert said in compare_page(report) and said in compare_note(report)


def test_without_labels_losses_are_compared() -> None:
    rng = np.random.default_rng(0)
    runs = [made("0"), made("1"), made("2")]
    for run, added in zip(runs, (0.0, 0.05, 1e-4), strict=True):
        run.report["metrics"]["realized"] |= {"top1": None, "kl": 0.1 + added}  # type: ignore[index]
        del run.samples["label"]  # type: ignore[attr-defined]
        run.samples["loss"][:] = 0.1 + added + rng.normal(0, 1e-3, 200)  # type: ignore[index]
    report = compare(runs)
    assert report["best"] == "A"
    worse, near = report["paired"]
    assert worse["test"] == near["test"] == "Wilcoxon" and worse["p_holm"] < 1e-3 < near["p_holm"]
    assert worse["difference"] == pytest.approx(0.05, abs=1e-3)


@pytest.mark.program
def test_folders_of_runs_of_a_sweep_and_broken_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sweep = tmp_path / "sweep"
    for number, hardware in enumerate(("ort_cpu", "vta")):
        quantpipe.quantize(
            quantpipe.example_model(), DigitsDataset(), hardware, folder=sweep / f"{number}", evaluate=EVALUATE
        )
    shutil.copytree(sweep / "0", sweep / "10")
    (sweep / "10" / "evaluate" / "report.json").unlink()
    (sweep / "10" / "main.log").write_text("x ERROR ended by ModelError: no such op\n")
    (tmp_path / "empty").mkdir()
    assert [job.name for job in jobs_of(sweep)] == ["0", "1", "10"]
    report = compare(found_runs(["sweep"], tmp_path, None))
    assert [run["problem"] for run in report["runs"]] == [None, None, "not finished: ModelError: no such op"]
    assert [run["name"] for run in report["runs"]][:2] == ["ort_cpu", "vta"]
    assert report["paired"][0]["samples"] == 607 and report["best"] is not None
    for path in write(report, tmp_path):
        assert path.is_file()
    assert json.loads((tmp_path / "compare.json").read_text())["best"] == report["best"]
    assert "no such op" in (tmp_path / "compare.html").read_text()
    (sweep / "1" / "evaluate" / "report.json").write_text("{")
    assert "report.json" in str(found_in(sweep / "1", "1").problem)
    for names, said in ((["empty", "sweep/0"], "no folder of a run"), (["sweep/0"], "two are needed")):
        with pytest.raises(QuantpipeError, match=said):
            found_runs(names, tmp_path, None)


def test_searches_are_drawn_together() -> None:
    """Runs with one metric share a figure; a run without a search is a dashed line there, and alone there is none."""
    steps = [[0, -0.05], [7, -0.02]]
    runs = [made("greedy"), made("random"), made("uniform"), made("other")]
    parts = [("kl", steps, 40), ("kl", [[0, -0.05], [2, -0.04]], 40), ("kl", [[0, -0.05]], 1), ("mse", steps, 9)]
    for run, (metric, trace, evaluations) in zip(runs, parts, strict=True):
        run.report["search"].update(metric=metric, trace=trace, evaluations=evaluations)
    report = compare(runs)
    assert [run["trace"] for run in report["runs"]][:2] == [
        [[1, -0.05], [8, -0.02], [40, -0.02]],
        [[1, -0.05], [3, -0.04], [40, -0.04]],
    ]
    page = compare_page(report)
    assert page.count('aria-label="kl of the best candidate so far, per run"') == 1 and "mse of the best" not in page
    drawn = page[page.index('<section id="searches">') :]
    drawn = drawn[: drawn.index("</section>")]
    assert all(f">{label}</text>" in drawn for label in "ABC") and ">D</text>" not in drawn
    assert "stroke-dasharray" in drawn
    assert '<section id="searches">' not in compare_page(compare(runs[2:]))


def test_costs_are_drawn_where_a_search_lowered_one() -> None:
    runs = [made("greedy"), made("random")]
    for run, last in zip(runs, (700, 1000), strict=True):
        trace, costs = [[0, -0.01], [9, -0.02]], [[0, 1000.0], [9, float(last)]]
        run.report["search"].update(metric="kl", trace=trace, trace_cost=costs, evaluations=20)
    assert 'aria-label="cost of the best candidate so far, per run"' in compare_page(compare(runs))
    runs[0].report["search"]["trace_cost"] = [[0, 1000.0], [9, 1000.0]]
    assert "cost of the best candidate so far" not in compare_page(compare(runs))


def test_mlflow_gets_the_best_so_far_at_the_number_of_candidates() -> None:
    search = {"trace": [[0, -0.05], [7, -0.02]], "trace_cost": [[0, 9.0], [7, 8.0]], "evaluations": 40}
    steps = best_so_far(search)
    assert [(step, *found.values()) for step, found in steps] == [(1, -0.05, 9.0), (8, -0.02, 8.0), (40, -0.02, 8.0)]
    assert [step for step, _ in best_so_far({**search, "evaluations": 8})] == [1, 8]
    assert best_so_far({**search, "evaluations": 1}) == [] == best_so_far({})
    broken = {**search, "trace": [[0, None], [7, -0.02]]}
    assert [step for step, _ in best_so_far(broken)] == [8, 40]
