"""What is advised is run, and gives what was promised."""

from __future__ import annotations

import pytest

from tests.e2e.program import Program, read


@pytest.mark.program
def test_what_is_advised_is_run(program: Program) -> None:
    """experiment= is the word of other programs for experiments=."""
    first = program.run("experiment=vta_digits", "recover=none", "precision=none", "threshold=max_range")
    assert first.code == 0 and first.report["run"]["hardware"] == "vta"
    result = program.bare("command=explain", "explain.run=run", "explain.apply=2", "explain.culprits=1")
    assert result.code == 0, result.err
    folder = first.folder / "explained"
    after = read(folder / "run" / "evaluate" / "report.json")
    assert after["metrics"]["realized"]["kl"] < 0.5 * first.report["metrics"]["realized"]["kl"]
    promised = read(first.folder / "explain.json")["advice"][0]
    assert promised["overrides"][0].partition("=")[0] in (folder / "experiments" / "explained.yaml").read_text()
    compared = read(folder / "compare.json")
    assert [run["label"] for run in compared["runs"]] == ["A", "B"] and compared["best"] == "B"
