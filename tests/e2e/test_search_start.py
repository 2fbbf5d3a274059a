"""A run whose search begins at another's strategy."""

from __future__ import annotations

import json

from tests.e2e.program import Program


def test_a_search_begins_there_and_resumes(program: Program) -> None:
    short = ("objective.cost=bits", "stages=[calibrate,search]")
    first = program.run("search=knapsack", "search.max_evaluations=20", *short, folder="first")
    assert first.code == 0, first.err
    start = f"search.start={first.folder}/search/strategy.json"
    again = ("search=greedy", "objective.tolerance=0.05", start, *short)
    second = program.run(*again, "search.max_evaluations=4", folder="second")
    assert second.code == 0, second.err
    lines = [json.loads(line) for line in (second.folder / "search/trials.jsonl").read_text().splitlines()]
    taken = json.loads((first.folder / "search/strategy.json").read_text())["results"]["search"]
    assert lines[0]["origin"]["start"].startswith("sha256:") and lines[2]["cost"] == taken["best_cost"]
    longer = program.run(*again, "search.max_evaluations=8", folder="second")
    assert longer.code == 0, longer.err
    other = program.run(*again[:2], start.replace("strategy.json", "trials.jsonl"), *short, folder="second")
    assert other.code == 2 and "start: 'sha256:" in other.paragraph
