"""Models and data other than the embedded ones: no labels, other outputs, fixed batches, ops that no rule knows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.e2e.models import SCALED, autoencoder, npz, with_batch, with_op, with_second_output
from tests.e2e.program import Program


def test_without_labels_the_objective_is_kl(program: Program) -> None:
    data = npz(program.cwd / "d.npz", labels=None)
    result = program.run(*SCALED, data)
    assert result.code == 0, result.err
    assert {m["top1"] for m in result.report["metrics"].values()} == {None}
    assert 0 < result.report["metrics"]["realized"]["kl"] < 0.02
    assert result.report["agreement"]["differing"] == 0
    assert "no labels" in result.out


def test_without_labels_accuracy_is_refused(program: Program) -> None:
    result = program.run(*SCALED, npz(program.cwd / "d.npz", labels=None), "objective=accuracy")
    assert "accuracy needs labelled samples; without labels give kl or mse" in result.paragraph


@pytest.mark.parametrize("hardware", ["ort_cpu", "vta"])
def test_an_autoencoder_by_mean_squared_error(program: Program, hardware: str) -> None:
    values = np.random.default_rng(1).standard_normal((400, 16)).astype(np.float32)
    data = npz(program.cwd / "d.npz", images=values, labels=None)
    model = autoencoder(program.cwd / "ae.onnx")
    result = program.run(
        model, "dataset=npz", data, "objective=mse", f"hardware={hardware}", "search=greedy", "objective.cost=bits"
    )
    assert result.code == 0, result.err
    assert result.report["agreement"]["differing"] == 0
    assert result.report["metrics"]["realized"]["sqnr_db"] > 18
    assert result.report["search"]["best_value"] >= -0.01


@pytest.mark.parametrize("size", [1, 48])
def test_a_fixed_batch(program: Program, size: int) -> None:
    model = with_batch(program.cwd / "m.onnx", size)
    result = program.run(model)
    assert result.code == 0, result.err
    assert result.report["agreement"]["differing"] == 0
    assert result.report["run"]["samples"] == 607 // size * size
    assert result.report["metrics"]["realized"]["top1"] > 0.97
    realized = onnx.load(result.folder / "realize" / "model.onnx")
    assert realized.graph.input[0].type.tensor_type.shape.dim[0].dim_value == size


def test_a_fixed_batch_larger_than_the_data_is_made_free(program: Program) -> None:
    result = program.run(with_batch(program.cwd / "m.onnx", 130))
    assert result.code == 0 and "a batch of 130, of which there are too few samples" in result.err
    model = onnx.load(result.folder / "realize" / "model.onnx")
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param


@pytest.mark.parametrize("hardware", ["ort_cpu", "vta"])
def test_several_outputs(program: Program, hardware: str) -> None:
    result = program.run(with_second_output(program.cwd / "m.onnx"), f"hardware={hardware}")
    assert result.code == 0, result.err
    assert result.report["agreement"]["differing"] == 0
    outputs = onnx.load(result.folder / "realize" / "model.onnx").graph.output
    assert [o.name for o in outputs] == ["logits", "pool.out"]


def test_the_output_that_counts_is_chosen_by_name(program: Program) -> None:
    """Whichever stands first in the file, the same output by name gives the same search, numbers and accuracy."""
    model = onnx.load(with_second_output(program.cwd / "m.onnx").removeprefix("model.path="))
    first, second = (onnx.ValueInfoProto.FromString(o.SerializeToString()) for o in model.graph.output)
    del model.graph.output[:]
    model.graph.output.extend([second, first])
    onnx.save(model, program.cwd / "swapped.onnx")
    few = ("search=greedy", "objective.cost=bits", "search.max_evaluations=6", "objective=accuracy")
    plain = program.run(f"model.path={program.cwd}/m.onnx", *few, folder="plain")
    named = program.run(f"model.path={program.cwd}/swapped.onnx", *few, "evaluate.output=logits", folder="named")
    assert plain.code == named.code == 0, plain.err + named.err
    assert named.report["run"]["output"] == plain.report["run"]["output"] == "logits"
    assert named.report["metrics"] == plain.report["metrics"]
    assert named.report["metrics"]["realized"]["top1"] > 0.97
    for key in ("best_value", "best_cost", "trace"):
        assert named.report["search"][key] == plain.report["search"][key]
    other = program.run(f"model.path={program.cwd}/swapped.onnx", folder="other")
    same = program.run(f"model.path={program.cwd}/m.onnx", "evaluate.output=pool.out", folder="same")
    assert other.report["metrics"] == same.report["metrics"]
    assert other.report["metrics"]["realized"]["top1"] is None
    assert other.report["metrics"]["realized"]["sqnr_db"] != plain.report["metrics"]["realized"]["sqnr_db"]


def test_an_output_that_the_model_has_not_is_refused_with_near_names(program: Program) -> None:
    model = with_second_output(program.cwd / "m.onnx")
    paragraph = program.run(model, "evaluate.output=logit").paragraph
    assert "evaluate.output" in paragraph
    assert "did you mean 'logits'" in paragraph
    assert "legal are logits, pool.out, or null" in paragraph
    assert "legal is a word, or null" in program.run(model, "evaluate.output=3").paragraph


def test_a_folder_of_another_output_is_refused(program: Program) -> None:
    model = with_second_output(program.cwd / "m.onnx")
    assert program.run(model, folder="one").code == 0
    assert "output" in program.run(model, "evaluate.output=pool.out", folder="one").paragraph


@pytest.mark.parametrize(
    ("domain", "op", "written", "reason"),
    [
        ("", "Asinh", "Asinh", "no rule knows the op"),
        ("com.microsoft", "FastGelu", "Gelu", "ort_cpu runs Gelu in float only"),
        ("com.microsoft", "Gelu", "Gelu", "ort_cpu runs Gelu in float only"),
    ],
)
def test_an_op_without_integers_stays_float_and_is_listed(
    program: Program, domain: str, op: str, written: str, reason: str
) -> None:
    model = with_op(program.cwd / "m.onnx", domain, op)
    result = program.run(model)
    assert result.code == 0, result.err
    assert [(n["node"], n["op"]) for n in result.report["float_nodes"]] == [("odd", written)]
    assert reason in result.report["float_nodes"][0]["reason"]
    strict = program.run(model, "strict=true", folder="strict")
    assert strict.code == 0 if domain else f"odd ({written})" in strict.paragraph


@pytest.mark.slow
def test_the_seed_is_all_that_a_random_search_follows(program: Program, tmp_path: Path) -> None:
    search = ("search=random", "objective.cost=bits", "search.max_evaluations=6", "stages=[calibrate,search]")
    one, again, other = (
        program.run(*search, f"seed={seed}", folder=folder) for seed, folder in ((3, "a"), (3, "b"), (4, "c"))
    )
    trials = [(r.folder / "search" / "trials.jsonl").read_text().splitlines()[1:] for r in (one, again, other)]
    points = [[line.partition('"choices"')[0] for line in lines] for lines in trials]
    assert points[0] == points[1]
    assert points[0] != points[2]


@pytest.mark.parametrize("options", [("model=digits_vit",), ("model=digits_vit_masked", "dataset=digits_columns")])
def test_the_embedded_transformers(program: Program, options: tuple[str, ...]) -> None:
    result = program.run(*options)
    assert result.code == 0, result.err
    assert result.report["agreement"]["differing"] == 0
    assert result.report["run"]["samples"] == 607
    assert result.report["metrics"]["float"]["top1"] > 0.97
