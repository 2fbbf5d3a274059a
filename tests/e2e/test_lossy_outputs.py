"""Outputs of the realized model that come out useless are warned of, with where that happens and what helps."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from onnx import helper

from tests.e2e.data_models import normal, write
from tests.e2e.program import Program

FAR = 3.0e4


def encoder(path: Path) -> str:
    """x [N, 8] -> `small`, of scale 1e-3, and `large`, of scale 1e3; no class scores. In front of `small`, one channel
    is lifted so far that eight bits hold nothing of the others, and brought back again."""
    lifted = np.zeros(16, np.float32)
    lifted[0] = FAR
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"], name="first"),
        helper.make_node("Relu", ["h"], ["r"], name="relu"),
        helper.make_node("Add", ["r", "up"], ["lifted"], name="lift"),
        helper.make_node("Add", ["lifted", "down"], ["back"], name="bring_back"),
        helper.make_node("Gemm", ["back", "w2", "b2"], ["small"], name="second"),
        helper.make_node("Gemm", ["r", "w3", "b3"], ["large"], name="third"),
    ]
    constants = {
        "w1": normal(0, 8, 16), "b1": normal(1, 16), "up": lifted, "down": -lifted,
        "w2": normal(2, 16, 4, scale=1e-3), "b2": normal(3, 4, scale=1e-3),
        "w3": normal(4, 16, 4, scale=1e3), "b3": normal(5, 4, scale=1e3),
    }  # fmt: skip
    outputs = [("small", ["N", 4], "float32"), ("large", ["N", 4], "float32")]
    return write(path, nodes, [("x", ["N", 8], "float32")], outputs, constants)


def data(program: Program) -> tuple[str, ...]:
    np.savez(program.cwd / "x.npz", x=normal(7, 160, 8, scale=1.0))
    model = encoder(program.cwd / "net.onnx")
    return "dataset=npz", f"dataset.path={program.cwd / 'x.npz'}", model, "precision=none"


def test_a_lost_output_is_named_with_its_tensor_and_the_advice_helps(program: Program) -> None:
    given = data(program)
    lost = program.run(*given)
    assert lost.code == 0, lost.err
    rows = {row["output"]: row for row in lost.report["outputs"]}
    assert rows["small"]["sqnr_db"] < 10 < 25 < rows["large"]["sqnr_db"]
    assert rows["small"]["cosine"] < rows["large"]["cosine"] <= 1.0
    said = [text for text in lost.report["warnings"] if "evaluate.warn_sqnr_db" in text]
    assert len(said) == 1 and "the output small " in said[0] and "computed from the integers of lifted)" in said[0], (
        said
    )
    assert f"{rows['small']['sqnr_db']:.1f} dB" in said[0]
    assert said[0][:40] in " ".join(lost.err.split()), lost.err
    page = (lost.folder / "evaluate" / "report.html").read_text()
    assert "the output small of the realized model" in page and "Output large" in page
    assert "output small" in lost.out and "output large" in lost.out
    for number, advice in enumerate(re.findall(r"annotate\.float_\w+=\[[^\]]*\]", said[0])):
        helped = program.run(*given, advice, folder=f"helped{number}")
        sqnr = {row["output"]: row["sqnr_db"] for row in helped.report["outputs"]}
        assert sqnr["small"] > 20, (advice, sqnr)
        assert not [text for text in helped.report["warnings"] if "warn_sqnr_db" in text]
    assert number == 1, "both overrides were tried"


def test_by_default_the_nodes_that_lose_it_stay_in_float(program: Program) -> None:
    *given, _ = data(program)
    found = program.run(*given)
    assert found.code == 0, found.err
    assert all(row["sqnr_db"] > 20 for row in found.report["outputs"])
    assert "lift" in found.report["precision"]["float"] and "first" not in found.report["precision"]["float"]


def test_the_threshold_of_the_warning_is_the_users(program: Program) -> None:
    given = data(program)
    silent = program.run(*given, "evaluate.warn_sqnr_db=null")
    assert silent.code == 0 and "warn_sqnr_db" not in silent.err, silent.err
    assert silent.report["outputs"][0]["sqnr_db"] < 10, "the figure itself stays"
    strict = program.run(*given, "evaluate.warn_sqnr_db=90", folder="strict")
    said = [text for text in strict.report["warnings"] if "evaluate.warn_sqnr_db=90" in text]
    assert [text.split()[2] for text in said] == ["small", "large"], "worst first"
    for wrong in ("some", "true", "[1]"):
        assert "evaluate.warn_sqnr_db" in program.run(f"evaluate.warn_sqnr_db={wrong}", folder="no").paragraph
