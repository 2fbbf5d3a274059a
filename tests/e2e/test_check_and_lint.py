"""`command=check` and `command=lint` as a user types them."""

from __future__ import annotations

import json

import pytest

from tests.e2e.program import Program


@pytest.mark.smoke
def test_check_of_a_model_that_fits(program: Program) -> None:
    result = program.run("command=check")
    assert result.code == 0, result.err
    assert "the model fits" in result.out
    assert not (result.folder / "annotate").exists()


def test_check_for_machines_with_a_fallback(program: Program) -> None:
    result = program.run("command=check", "check.format=json", "hardware=hago_sample")
    assert result.code == 3, result.err
    found = json.loads(result.out)
    assert found["verdict"] == "falls_back"
    assert {r["op"] for r in found["refused"]} == {"GlobalAveragePool", "Flatten", "Gemm"}
    assert all(r["reason"] for r in found["refused"])


def test_check_refuses_what_cannot_be(program: Program) -> None:
    assert "legal are" in program.run("command=check", "schema=asymmetric", "hardware=vta").paragraph
    assert "check.shapes.image" in program.run("command=check", "check.shapes={image: [1, 3, 8, 8]}").paragraph
    assert "check.format" in program.run("command=check", "check.format=xml").paragraph
    assert "no such file" in program.run("command=check", "model.path=nowhere.onnx").paragraph


def test_a_sweep_of_checks_ends_with_the_worst_answer(program: Program) -> None:
    result = program.bare("-m", "command=check", "hardware=ort_cpu,hago_sample", f"hydra.sweep.dir={program.cwd}/sweep")
    assert result.code == 3, result.err
    assert "the model fits" in result.out
    assert "parts of it in float" in result.out


@pytest.mark.program
@pytest.mark.smoke
def test_lint_of_our_own_model_and_of_another_device(program: Program) -> None:
    assert program.run("hardware=vta", folder="made").code == 0
    model = f"model.path={program.cwd}/made/realize/model.onnx"
    clean = program.run("command=lint", "hardware=vta", model, folder="lint")
    assert clean.code == 0, clean.err
    assert "nothing that the device would reject" in clean.out
    refused = program.run("command=lint", "check.format=json", "hardware=ort_cpu", model, folder="lint")
    assert refused.code == 3
    found = json.loads(refused.out)
    assert {f["rule"] for f in found["findings"]} >= {"dtype"}
    fixed = program.run("command=lint", "hardware=vta", model, "model.fixed={pixels: 1}", folder="lint")
    assert "model.fixed" in fixed.paragraph  # it is heard, and the model has no such input


def test_lint_of_a_float_model(program: Program) -> None:
    result = program.run("command=lint")
    assert result.code == 2
    assert "there is no integer op in it" in result.out
