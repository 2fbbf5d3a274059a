"""`threshold.rules` end to end: runs, searches, runs anew, and what is left in the folder."""

from __future__ import annotations

import pytest

import quantpipe
from quantpipe.data import DigitsDataset
from tests.api.nets import numbers_of
from tests.e2e.program import Program, read

pytestmark = pytest.mark.program

RULES = "threshold.rules=[{tensors: image, use: {option: percentile, p: 60}}, {ops: [Conv], use: max_range}]"
GIVEN = [{"tensors": "image", "use": {"option": "percentile", "p": 60}}, {"ops": ["Conv"], "use": "max_range"}]
NOTHING = ("precision=none", "recover=none")


def test_a_run_with_rules_by_both_doors(program: Program) -> None:
    result = program.run(RULES, *NOTHING)
    assert result.code == 0, result.err
    assert result.report["agreement"]["differing"] == 0
    first, second = result.report["search"]["threshold_rules"]
    assert first["tensors"] == ["image"] and "percentile(p=60)" in first["rule"]
    assert len(second["tensors"]) > 1 and second["overruled"] == []
    assert "Rules of thresholds" in (result.folder / "evaluate" / "report.html").read_text()
    mse, widest = (program.run(f"threshold={name}", *NOTHING, folder=name) for name in ("mse", "max_range"))
    chosen, others = result.strategy["thresholds"], mse.strategy["thresholds"]
    for name in second["tensors"]:
        assert chosen[name] == widest.strategy["thresholds"][name]
    for name in set(chosen) - set(second["tensors"]) - {"image"}:
        assert chosen[name] == others[name]
    assert chosen["image"] != others["image"]
    mine = quantpipe.quantize(
        quantpipe.example_model(), DigitsDataset(), threshold={"rules": GIVEN}, precision="none", recover="none",
        evaluate={"latency_runs": 1, "baseline": "none"},
    )  # fmt: skip
    assert numbers_of(mine.folder) == numbers_of(result.folder)


def test_changed_rules_are_not_answered_from_what_others_left(program: Program) -> None:
    """Search and recovery follow from the rules; statistics and the empty list do not."""
    first = program.run(*NOTHING)
    other = program.run(RULES, *NOTHING)
    assert other.code == 2 or other.strategy != first.strategy
    assert "trials.jsonl" in other.err or other.code == 0
    fresh = program.run(RULES, *NOTHING, folder="fresh")
    again = program.run(RULES, *NOTHING, folder="fresh")
    assert again.err.count("from an earlier run in this folder") == 2
    assert fresh.strategy == again.strategy
    changed = program.run(RULES.replace("60", "70"), *NOTHING, folder="fresh")
    assert changed.code == 2 or changed.strategy != fresh.strategy


def test_replays_know_the_rules(program: Program) -> None:
    first = program.run(RULES, *NOTHING)
    log = f"strategy={first.folder}/search/trials.jsonl"
    same = program.run("command=replay", log, "replay.trial=0", RULES, *NOTHING, folder="same")
    assert same.code == 0, same.err
    assert same.report["search"]["threshold_rules"] == first.report["search"]["threshold_rules"]
    assert same.report["metrics"]["realized"] == first.report["metrics"]["realized"]
    other = program.run("command=replay", log, "replay.trial=0", *NOTHING, folder="other")
    assert "it belongs to another threshold" in other.paragraph
    whole = program.run("command=replay", f"strategy={first.folder}/search/strategy.json", folder="whole")
    assert whole.report["search"]["threshold_rules"] == first.report["search"]["threshold_rules"]


def test_rules_beside_a_search_of_ranges_and_precision(program: Program) -> None:
    result = program.run(
        "model=digits_vit",
        "search=greedy",
        "search.max_evaluations=12",
        "threshold.rules=[{ops: [Gelu], use: search}, {tensors: '*LayerNorm*', use: max_range}]",
    )
    assert result.code == 0, result.err
    assert result.report["agreement"]["differing"] == 0
    clips = [c["key"] for c in read(result.folder / "annotate" / "choices.json")["choices"] if "clip:" in c["key"]]
    assert len(clips) == 3 and all("mlp.1" in key for key in clips)


def test_a_rule_for_nothing(program: Program) -> None:
    result = program.run("threshold.rules=[{tensors: '*imag', use: max_range}]")
    assert "did you mean 'image'" in result.paragraph
