"""What an evaluation covers and says of it; what main.log keeps of a run."""

from __future__ import annotations

from tests.e2e.program import Program


def test_the_realized_model_on_fewer_samples_is_said(program: Program) -> None:
    small = ("dataset.samples.evaluate=48", "hardware=vta")
    whole = program.run(*small, folder="whole").report
    few = program.run(*small, "evaluate.realized_samples=16")
    assert few.code == 0, few.err
    assert "48 samples, the realized model on 16 of them" in few.err
    (row,) = (line for line in few.out.splitlines() if line.startswith("│ samples "))
    assert [cell.strip() for cell in row.strip("│").split("│")] == ["samples", "48", "48", "16"]
    report = few.report
    assert (report["run"]["samples"], report["run"]["realized_samples"]) == (48, 16)
    assert "realized_samples" not in whole["run"]
    for name in ("float", "simulated"):
        assert report["metrics"][name] == whole["metrics"][name]
    assert report["metrics"]["realized"] != whole["metrics"]["realized"] == whole["metrics"]["simulated"]
    assert ">16<" in (few.folder / "evaluate" / "report.html").read_text()
    again = program.run(*small)
    assert "config evaluate.realized_samples is 16 in the file, null here" in again.paragraph
    for wrong in ("0", "some", "1.5"):
        assert "evaluate.realized_samples" in program.run(f"evaluate.realized_samples={wrong}", folder="no").paragraph


def test_main_log_says_what_happened(program: Program) -> None:
    done = program.run("hardware=vta")
    log = (done.folder / "main.log").read_text()
    for said in (
        "hardware=vta",
        "calibrate ",
        "search     done after 1 evaluations",
        "evaluate   0 of ",
        "done",
    ):
        assert said in log, log
    refused = program.run("hardware=vta", "annotate.min_bits=5")
    log = (done.folder / "main.log").read_text()
    assert refused.code == 2 and "Traceback" not in refused.err
    assert "ERROR   ended by ArtifactError" in log and "Traceback (most recent call last)" in log and "refuse" in log
