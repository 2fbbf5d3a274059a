"""The group choices that change what comes out: hardware, schema, output form, experiments."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.program import ROOT, Program
from tests.zoo import ZOO, needs_zoo


def agrees(report: dict[str, object]) -> None:
    agreement = report["agreement"]
    assert isinstance(agreement, dict)
    assert agreement["differing"] == 0
    assert agreement["elements"] > 0


def test_vta_with_greedy_search(program: Program) -> None:
    result = program.run(
        "hardware=vta", "search=greedy", "objective.cost=bits", "objective.tolerance=0.2", "search.max_evaluations=40"
    )
    assert result.code == 0, result.err
    agrees(result.report)
    assert result.report["search"]["algorithm"] == "greedy"
    assert result.report["search"]["evaluations"] == 40
    search = result.report["search"]
    assert search["best_value"] >= -0.2
    assert search["best_cost"] < search["trace_cost"][0][1]


def test_a_missed_objective_says_by_how_much(program: Program) -> None:
    result = program.run("hardware=vta", "objective.tolerance=0.001", "recover=none")
    assert result.code == 0
    (warning,) = (w for w in result.report["warnings"] if "objective.tolerance" in w)
    loss = f"{-result.report['search']['best_value']:.4g}"
    assert f"KL divergence from the float model on the search samples is {loss}, allowed is 0.001" in warning
    assert f"warning: {warning}" in result.err
    assert warning[:60] in (result.folder / "evaluate" / "report.html").read_text()


def test_a_missed_accuracy_or_cost_too(program: Program) -> None:
    result = program.run("hardware=vta", "objective=accuracy", "objective.tolerance=0", "recover=none", folder="a")
    assert "(the float model's 0.9922 less objective.tolerance=0)" in result.report["warnings"][0]
    limit = ("objective.form=best_value_within_cost", "objective.cost_limit=0.5")
    result = program.run(*limit, folder="c")
    assert "(objective.cost_limit)" in result.report["warnings"][0]


def test_hago_sample(program: Program) -> None:
    result = program.run("hardware=hago_sample")
    assert result.code == 0, result.err
    agrees(result.report)
    reasons = {n["op"]: n["reason"] for n in result.report["float_nodes"]}
    assert set(reasons) == {"GlobalAveragePool", "Flatten", "Gemm"}
    assert all(reasons.values())


@pytest.mark.parametrize("backend", ["qoperator", "integer"])
def test_output_forms_on_ort_cpu(program: Program, backend: str) -> None:
    result = program.run(f"realize={backend}")
    assert result.code == 0, result.err
    agrees(result.report)
    assert result.report["run"]["realize"] == backend
    assert result.report["metrics"]["realized"]["top1"] > 0.97


@pytest.mark.parametrize("schema", ["asymmetric", "symmetric", "symmetric_with_uint8", "symmetric_with_power2_scale"])
@pytest.mark.parametrize("hardware", ["ort_cpu", "vta"])
def test_schemas_run_or_are_refused_with_the_legal_ones(program: Program, hardware: str, schema: str) -> None:
    result = program.run(f"hardware={hardware}", f"schema={schema}")
    if hardware == "vta" and schema != "symmetric_with_power2_scale":
        assert f"'{schema}' cannot run on vta" in result.paragraph
        assert "legal are auto, symmetric_with_power2_scale" in result.paragraph
        return
    assert result.code == 0, result.err
    agrees(result.report)
    assert result.report["run"]["schema"] == schema


def test_a_search_may_leave_layers_in_float_and_a_replay_knows(program: Program) -> None:
    kinds = ("hardware=ort_cpu", "annotate.choices=[bits,float,granularity]", "search=random", "objective.tolerance=9")
    pin = r"choices.fix={float\:block1.pointwise.conv:float,float\:classifier:integer}"
    found = program.run(*kinds, pin, "search.max_evaluations=3", "recover=default", folder="a")
    assert found.code == 0, found.err
    agrees(found.report)
    reasons = {n["node"]: n["reason"] for n in found.report["float_nodes"]}
    assert "by the choice float:block1.pointwise.conv" in reasons["block1.pointwise.conv"]
    strategy = json.loads((found.folder / "search" / "strategy.json").read_text())["strategy"]
    assert strategy["structure"]["float:block1.pointwise.conv"] == "float"
    assert strategy["topology"]["node_conds"]["block1.pointwise.conv"] is False
    chosen = {(c["kind"], c["key"]): c["value"] for c in found.report["choices"]}
    assert chosen["float", "block1.pointwise.conv"] == "float" and chosen["float", "classifier"] == "integer"
    assert found.report["search"]["pinned"]["float:classifier"] == "integer"

    again = program.run("command=replay", f"strategy={found.folder}/search/strategy.json", folder="b")
    assert again.code == 0, again.err
    for part in ("metrics", "agreement", "cost", "float_nodes"):
        assert again.report[part] == found.report[part], "a replay knows the structure without annotate.choices"
    log = f"strategy={found.folder}/search/trials.jsonl"
    one = program.run(*kinds, pin, "command=replay", log, "replay.trial=2", folder="c")
    assert one.code == 0, one.err
    agrees(one.report)

    several = program.run(*kinds, "search.weights=recovered", folder="e")
    assert several.code == 2 and "recovered for one topology" in several.paragraph

    strategy_file = json.loads((found.folder / "search" / "strategy.json").read_text())
    strategy_file["strategy"]["structure"] = {"float:nothing": "float"}
    del strategy_file["origin"]["content"]
    (program.cwd / "edited.json").write_text(json.dumps(strategy_file))
    refused = program.run("command=replay", "strategy=edited.json", folder="d")
    assert refused.code == 2 and "its structure is another one" in refused.paragraph


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(p.stem for p in (ROOT / "experiments").glob("*.yaml")))
def test_experiments_run(program: Program, name: str) -> None:
    if needs_zoo(name):
        if not ZOO.is_dir():
            pytest.skip(f"its model lies in the zoo, which is not at {ZOO}; set QUANTPIPE_ZOO")
        program.env["QUANTPIPE_ZOO"] = str(ZOO)
    result = program.run(f"experiments={name}", "search.max_evaluations=3")
    assert result.code == 0, result.err
    agrees(result.report)


def test_paths_are_relative_to_where_the_program_was_started(program: Program) -> None:
    source = ROOT / "quantpipe" / "assets" / "digits.onnx"
    (program.cwd / "my model.onnx").write_bytes(source.read_bytes())
    result = program.run("model.path='my model.onnx'", "stages=[calibrate]")
    assert result.code == 0, result.err
    assert (Path(result.folder) / "calibrate" / "stats.npz").is_file()
