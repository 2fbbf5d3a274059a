"""Search and recovery together: candidates with recovered weights, finalists, and what replays of them give."""

from __future__ import annotations

import json

from tests.e2e.program import Program

NARROW = ("hardware=int4_weights", "annotate.min_bits=2", "search=knapsack", "search.max_evaluations=12")
LIMIT = ("objective.form=best_value_within_cost", "objective.cost=weight_bytes", "objective.cost_limit=0.75")


def test_candidates_with_recovered_weights_are_what_is_realized(program: Program) -> None:
    arguments = (*NARROW, *LIMIT, "search.weights=recovered")
    result = program.run(*arguments)
    assert result.code == 0, result.err
    report = result.report
    assert report["agreement"]["differing"] == 0
    assert report["search"]["weights"] == "recovered"
    # The realized model on the search samples is the candidate that the search chose.
    assert report["generalization"]["search"] == -report["search"]["best_value"]
    nearest = program.run(*NARROW, *LIMIT, folder="nearest").report
    assert report["search"]["best_value"] > nearest["search"]["best_value"]

    again = program.run("command=replay", f"strategy={result.folder / 'search' / 'strategy.json'}", *NARROW, folder="r")
    assert again.report["metrics"]["realized"] == report["metrics"]["realized"]
    log = result.folder / "search" / "trials.jsonl"
    wanted = (report["search"]["best_value"], report["search"]["best_cost"])
    trials = [json.loads(line) for line in log.read_text().splitlines()[1:]]
    best = next(t for t in trials if (t["value"], t["cost"]) == wanted)
    one = program.run(
        "command=replay", f"strategy={log}", f"replay.trial={best['number']}", *NARROW, "search.weights=recovered",
        folder="t",
    )  # fmt: skip
    assert one.report["metrics"]["realized"] == report["metrics"]["realized"]
    other = program.run("command=replay", f"strategy={log}", "replay.trial=0", *NARROW, folder="n")
    assert other.code == 2
    assert "weights" in other.err


def test_the_best_finalist_after_recovery_is_taken(program: Program) -> None:
    arguments = (
        *NARROW,
        "objective.cost=weight_bytes",
        "objective.tolerance=0.1",
        "search.refine=true",
        "search.finalists=2",
    )
    arguments = (*arguments, "search.weights=recovered", "recover=default", "recover.steps=[propagation]")
    result = program.run(*arguments)
    assert result.code == 0, result.err
    search = result.report["search"]
    rows = search["finalists"]
    assert len(rows) == 2
    assert all(row["recovered"] >= row["value"] for row in rows)
    held = [row for row in rows if row["recovered"] >= -0.1]
    best = min(held, key=lambda row: row["cost"]) if held else max(rows, key=lambda row: row["recovered"])
    assert best["picked"]
    assert (search["best_cost"], search["best_value"]) == (best["cost"], best["recovered"])
    assert result.report["generalization"]["search"] == -best["recovered"]
    assert result.report["agreement"]["differing"] == 0

    before = result.report
    again = program.run(*arguments)
    assert again.code == 0
    assert again.report["search"]["finalists"] == rows
    assert again.report["metrics"]["realized"] == before["metrics"]["realized"]
    strategy = result.folder / "search" / "strategy.json"
    replayed = program.run("command=replay", f"strategy={strategy}", *NARROW, folder="r")
    assert replayed.report["metrics"]["realized"] == before["metrics"]["realized"]


def test_refining_without_recovery_is_refused(program: Program) -> None:
    result = program.run("search.refine=true")
    assert result.code == 2
    assert "search.refine" in result.err
    assert "recover=default" in result.err
    result = program.run("search.weights=rounded")
    assert result.code == 2
    assert "legal are nearest, recovered" in result.err
