"""Search and recovery together: candidates with recovered weights, finalists, and what replays of them give."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from scipy.special import log_softmax

import quantpipe
from quantpipe.data.sources.digits import digits_arrays
from tests.e2e.program import Program, Result

NARROW = (
    "hardware=int4_weights",
    "annotate.min_bits=2",
    "search=knapsack",
    "objective.cost=bits",
    "search.max_evaluations=12",
)
DIGITS = Path(quantpipe.__file__).parent / "assets" / "digits.onnx"
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


def parts(result: Result) -> dict[str, list[int]]:
    """Which digits the search saw, and which judged recovery."""
    data = json.loads((result.folder / "data.json").read_text())
    return {role: [i for a, b in data[role]["indices"] for i in range(a, b + 1)] for role in ("search", "judge")}


def judges_kl(result: Result) -> float:
    """KL of the realized model on the samples that judge recovery, by onnxruntime."""
    lists = parts(result)
    assert set(lists["search"]).isdisjoint(lists["judge"])
    assert len(lists["search"]) == len(lists["judge"]) == result.report["data"]["judge"]["samples"] == 64
    wanted, got = (
        log_softmax(outputs(model, lists["judge"]), axis=1) for model in (DIGITS, result.folder / "realize/model.onnx")
    )
    return float((np.exp(wanted) * (wanted - got)).sum(axis=1).mean())


def outputs(model: Path, indices: list[int]) -> NDArray[np.float64]:
    """Logits of digits, by onnxruntime."""
    images, _ = digits_arrays()
    feed = (images[indices].transpose(0, 3, 1, 2) / 16).astype(np.float32)
    return np.asarray(ort.InferenceSession(str(model)).run(None, {"image": feed})[0], np.float64)


def test_recovery_is_judged_by_samples_that_the_search_has_not_seen(program: Program) -> None:
    arguments = (*NARROW, *LIMIT, "search.weights=recovered", "recover=default", "recover.steps=[propagation]")
    result = program.run(*arguments)
    assert result.code == 0, result.err
    (row,) = result.report["recover"]
    value = row["kl_after"] if row["kept"] else row["kl_before"]
    assert value == pytest.approx(judges_kl(result), rel=1e-6)
    shared = program.run(*arguments, "recover.holdout=0", folder="shared")
    assert "judge" not in shared.report["data"]
    assert shared.report["recover"][0]["kl_before"] == -shared.report["search"]["best_value"]
    assert shared.report["data"]["search"]["samples"] == 128
    again = program.run(*arguments)
    assert again.err.count("from an earlier run in this folder") == 3  # calibrate, recover, evaluate
    assert "another run" in program.run(*arguments, "recover.holdout=0.25").paragraph  # other judges
    single = program.run(*arguments, "dataset.samples.search=1", "dataset.force_few=true", folder="single")
    assert single.code == 0 and "search samples (1) cannot be divided (recover.holdout)" in single.err
    assert any("cannot be divided" in warning for warning in single.report["warnings"])
    assert "cannot be divided" not in result.err
    plain = program.run(*NARROW, *LIMIT, "recover=default", "recover.steps=[propagation]", folder="plain")
    assert "judge" not in plain.report["data"]  # no candidate keeps the weights that it was chosen with


def test_samples_that_a_search_has_seen_do_not_judge(program: Program) -> None:
    """Stages run separately: a search that knew of no recovery saw all samples."""
    arguments = (*NARROW, *LIMIT, "search.weights=recovered")
    steps = ("recover=default", "recover.steps=[propagation]", "stages=[realize,evaluate]")
    assert program.run(*arguments, "stages=[annotate,calibrate,search]").code == 0
    refused = program.run(*arguments, *steps)
    assert "recover.holdout=0" in refused.paragraph
    assert program.run(*arguments, *steps, "recover.holdout=0").code == 0


def test_an_accuracy_is_judged_against_the_float_models_own(program: Program) -> None:
    """The float model's accuracy on the judges is not the one on what the search sees."""
    coarse = ("hardware=int4_weights", "hardware.weights.bits=2", "hardware.activations.bits=2", "annotate.min_bits=2")
    arguments = (*coarse, "search.weights=recovered", "recover=default", "recover.steps=[propagation]", "seed=3")
    result = program.run(*arguments, "objective=accuracy", "objective.tolerance=0.001")
    assert result.code == 0, result.err
    found, labels = parts(result), digits_arrays()[1]
    right = {role: float((outputs(DIGITS, i).argmax(axis=1) == labels[i]).mean()) for role, i in found.items()}
    assert right["search"] != right["judge"]
    assert f"(the float model's {right['judge']:.4g}" in result.report["search"]["shortfall"]


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
    held = [row for row in rows if row["recovered"] >= -0.1]
    best = min(held, key=lambda row: row["cost"]) if held else max(rows, key=lambda row: row["recovered"])
    assert best["picked"]
    assert (search["best_cost"], search["best_value"]) == (best["cost"], best["recovered"])
    assert best["recovered"] == pytest.approx(-judges_kl(result), rel=1e-6)
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
    result = program.run("search.refine=true", "recover=none")
    assert result.code == 2
    assert "search.refine" in result.err
    assert "recover=default" in result.err
    result = program.run("search.weights=rounded")
    assert result.code == 2
    assert "legal are nearest, recovered" in result.err
