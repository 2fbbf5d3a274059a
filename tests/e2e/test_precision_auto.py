"""precision=auto through the whole program: what stays in float, and that a run can be ended, damaged and replayed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from tests.e2e.data_models import normal, write
from tests.e2e.program import Program

pytestmark = pytest.mark.program

BLOCKS = 3
PRODUCTS = (
    "hardware.ops.MatMul=[{in: [uint8, int8], out: [uint8, float32], when: {operands: weight}},"
    "{in: [uint8, uint8], out: [uint8], when: {operands: activations}},{in: [float32], out: [float32]}]"
)
"""ort_cpu with products of two activations in integers, so that what masks them is stored."""


def attention(path: Path, infinite: bool = False, gated: bool = True) -> str:
    """x [N, 6, 8], keep [N, 1, 6] -> y [N, 6, 8]: blocks of attention with (1 - keep) · -1e9 on the scores; `infinite`:
    with minus infinity where keep is 0; `gated`: a layer in integers reads the masked scores, too. With their Softmax
    alone the sum is real anyway.
    """
    nodes, constants = [], {"one": np.float32(1.0), "low": np.float32(-1e9)}
    nodes += [
        helper.make_node("Sub", ["one", "keep"], ["away"], name="away"),
        helper.make_node("Mul", ["away", "low"], ["mask"], name="mask"),
    ]
    if infinite:
        constants |= {"half": np.float32(0.5), "never": np.float32(-np.inf), "zero": np.float32(0.0)}
        nodes = [
            helper.make_node("Greater", ["keep", "half"], ["kept"], name="kept"),
            helper.make_node("Where", ["kept", "zero", "never"], ["mask"], name="mask"),
        ]
    x = "x"
    for block in range(BLOCKS):
        for part in "qkv":
            constants[f"w{part}{block}"] = normal(10 * block + ord(part), 8, 8)
            name = f"{part}{block}"
            nodes.append(helper.make_node("MatMul", [x, f"w{part}{block}"], [name], name=name))
        nodes += [
            helper.make_node("Transpose", [f"k{block}"], [f"t{block}"], name=f"t{block}", perm=[0, 2, 1]),
            helper.make_node("MatMul", [f"q{block}", f"t{block}"], [f"s{block}"], name=f"scores{block}"),
            helper.make_node("Add", [f"s{block}", "mask"], [f"m{block}"], name=f"apply{block}"),
            helper.make_node("Softmax", [f"m{block}"], [f"p{block}"], name=f"softmax{block}", axis=-1),
            helper.make_node("MatMul", [f"p{block}", f"v{block}"], [f"mix{block}"], name=f"mix{block}"),
        ]
        if gated:
            constants[f"wg{block}"] = normal(10 * block, 6, 8)
            nodes += [
                helper.make_node("Relu", [f"m{block}"], [f"r{block}"], name=f"gate{block}"),
                helper.make_node("MatMul", [f"r{block}", f"wg{block}"], [f"g{block}"], name=f"gated{block}"),
                helper.make_node("Add", [f"mix{block}", f"g{block}"], [f"o{block}"], name=f"both{block}"),
            ]
        mixed = f"o{block}" if gated else f"mix{block}"
        nodes.append(helper.make_node("Add", [x, mixed], [f"x{block}"], name=f"residual{block}"))
        x = f"x{block}"
    nodes[-1].output[0] = "y"
    inputs = [("x", ["N", 6, 8], "float32"), ("keep", ["N", 1, 6], "float32")]
    return write(path, nodes, inputs, [("y", ["N", 6, 8], "float32")], constants)


def data(
    program: Program, padded: bool = True, gated: bool = True, ways: Sequence[str] = (PRODUCTS,)
) -> tuple[str, ...]:
    keep = np.ones((160, 1, 6), np.float32)
    if padded:
        keep[np.arange(160) % 2 == 0, :, 4:] = 0.0
    np.savez(program.cwd / "x.npz", x=normal(7, 160, 6, 8, scale=1.0), keep=keep)
    net = attention(program.cwd / "net.onnx", gated=gated)
    return "dataset=npz", f"dataset.path={program.cwd / 'x.npz'}", net, *ways


def decided(folder: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / "precision" / "precision.json").read_text())
    return found


@pytest.mark.parametrize(("hardware", "least"), [("ort_cpu", 15), ("vta", 10)])
def test_masks_stay_in_float_and_are_named(program: Program, hardware: str, least: float) -> None:
    """On `vta`, whose additions are integers alone, the host beside it runs them."""
    ways = [PRODUCTS] if hardware == "ort_cpu" else []
    given = (*data(program, ways=ways), f"hardware={hardware}", "recover=none")
    lost = program.run(*given, "precision=none", folder="none")
    found = program.run(*given)
    assert found.code == 0, found.err
    rows = [run.report["outputs"][0]["sqnr_db"] for run in (lost, found)]
    assert rows[0] < 5 and rows[1] > least, rows
    precision = found.report["precision"]
    assert set(precision["float"]) >= {f"apply{n}" for n in range(BLOCKS)}
    assert not any(name.startswith(("q", "k", "v")) for name in precision["float"]), "layers keep their integers"
    role = next(row for row in precision["roles"] if "apply0" in row["role"])
    assert role["nodes"] == BLOCKS and role["why"] == "mask"
    assert "apply0" in found.out and "loss" in found.out
    assert "apply0 to apply2" in (found.folder / "evaluate" / "report.html").read_text()
    assert found.report["agreement"]["differing"] == 0


@pytest.mark.parametrize("hardware", ["qnn_htp", "npu_w8a16"])
def test_what_reads_a_mask_in_integers_alone_goes_to_the_host_with_it(program: Program, hardware: str) -> None:
    """A Softmax of 16 bits whose operand has the mask in its range is as lost as the addition was."""
    found = program.run(*data(program, gated=False, ways=()), f"hardware={hardware}", "recover=none")
    assert found.code == 0, found.err
    assert found.report["outputs"][0]["sqnr_db"] > 15 and found.report["agreement"]["differing"] == 0
    floats = set(found.report["precision"]["float"])
    assert floats - {"away", "mask"} == {f"{op}{n}" for op in ("apply", "softmax") for n in range(BLOCKS)}
    assert "mask" in floats  # what computes the mask stays in float with it


MASKED = ("model=digits_vit_masked", "dataset=digits_columns", "hardware=tflite_16x8")


def test_a_start_that_the_device_cannot_express_is_mended(program: Program) -> None:
    """float32's least number beside scores: its multiplier is beyond the device, which has no number for it either."""
    found = program.run(*MASKED)
    assert found.code == 0, found.err
    assert "cannot express the model" in found.err and "no requantize multiplier" in found.err
    assert "loss infinite to" in found.out
    assert found.report["outputs"][0]["sqnr_db"] > 30 and found.report["agreement"]["differing"] == 0
    assert decided(found.folder)["loss_before"] is None
    page = (found.folder / "evaluate" / "report.html").read_text()
    assert "loss infinite to" in page
    again = program.run(*MASKED)
    assert again.code == 0 and again.strategy == found.strategy


def test_where_nothing_that_was_tried_can_be_expressed_the_kernel_is_named(program: Program) -> None:
    found = program.run(*MASKED, "precision=none", "search=greedy", "search.max_evaluations=4")
    assert found.code == 2
    assert "Softmax" in found.err and "annotate.float_nodes=[" in found.err and "Traceback" not in found.err
    assert not (found.folder / "search" / "strategy.json").exists()


def test_masks_of_minus_infinity_do_as_well(program: Program) -> None:
    """Nothing has to be measured for them: what only a Softmax reads is real."""
    given = data(program)[:2]
    found = program.run(*given, attention(program.cwd / "infinite.onnx", infinite=True, gated=False))
    assert found.code == 0, found.err
    assert found.report["outputs"][0]["sqnr_db"] > 15 and found.report["agreement"]["differing"] == 0
    topology = json.loads((found.folder / "annotate" / "topology.json").read_text())
    assert set(topology["float_nodes"]) >= {f"apply{n}" for n in range(BLOCKS)}


def test_an_unpadded_mask_is_warned_of_where_integers_would_hold_it(program: Program) -> None:
    found = program.run(*data(program, padded=False))
    assert found.code == 0, found.err
    said = [text for text in found.report["warnings"] if "constant in all calibration samples" in text]
    assert len(said) == 1 and "padded" in said[0]
    assert {f"apply{n}" for n in range(BLOCKS)} <= set(found.report["precision"]["float"])


def test_an_unpadded_mask_is_not_frozen(program: Program) -> None:
    found = program.run(*data(program, padded=False, gated=False))
    assert found.code == 0, found.err
    # The model that was never shown a padded sample runs padded ones as the float model does.
    import onnxruntime as ort

    x = normal(9, 4, 6, 8, scale=1.0)
    keep = np.ones((4, 1, 6), np.float32)
    keep[:, :, 3:] = 0.0
    feeds = {"x": x, "keep": keep}
    expected = ort.InferenceSession(str(program.cwd / "net.onnx")).run(None, feeds)[0]
    got = ort.InferenceSession(str(found.folder / "realize" / "model.onnx")).run(None, feeds)[0]
    assert 10 * np.log10(np.var(expected) / np.mean((expected - got) ** 2)) > 15


def test_a_model_that_loses_little_is_left_as_it_was(program: Program) -> None:
    with_it = program.run(folder="auto")
    without = program.run("precision=none", folder="none")
    assert with_it.strategy == without.strategy
    assert with_it.report["precision"]["evaluations"] == 2 and not with_it.report["precision"]["float"]
    assert without.report["precision"]["why_not"] == "precision=none"


def test_the_strategy_replays_without_the_stage(program: Program) -> None:
    given = data(program)
    found = program.run(*given)
    replayed = program.run(
        *given, "command=replay", f"strategy={found.folder / 'search' / 'strategy.json'}", folder="replay"
    )
    assert replayed.code == 0, replayed.err
    assert replayed.strategy == found.strategy
    assert replayed.report["metrics"]["realized"] == found.report["metrics"]["realized"]


def test_what_was_decided_is_taken_from_the_folder_and_made_again_where_it_is_damaged(program: Program) -> None:
    given = data(program)
    first = program.run(*given)
    place = first.folder / "precision"
    again = program.run(*given)
    assert "stay in float" not in again.out.split("│")[0], "nothing is decided again"
    assert again.strategy == first.strategy
    trials = (place / "trials.jsonl").read_text().splitlines()
    (place / "trials.jsonl").write_text("\n".join(trials[:3]) + "\n")
    (place / "precision.json").write_text((place / "precision.json").read_text().replace("apply1", "apply0"))
    mended = program.run(*given)
    assert "is damaged" in mended.err
    assert mended.strategy == first.strategy
    assert (place / "trials.jsonl").read_text().splitlines()[:3] == trials[:3]
    assert decided(first.folder)["float"] == first.report["precision"]["float"]


def test_another_objective_is_refused_where_decisions_lie(program: Program) -> None:
    given = data(program)
    assert program.run(*given).code == 0
    refused = program.run(*given, "precision.loss_above=0.5")
    assert "precision" in refused.paragraph and "another run" in refused.paragraph


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("precision.mode=often", "precision.mode"),
        ("precision.max_evaluations=0", "precision.max_evaluations"),
        ("precision.loss_above=-1", "precision.loss_above"),
        ("precision.above=1", "loss_above"),
    ],
)
def test_bad_options_are_named(program: Program, override: str, words: str) -> None:
    assert words in program.run(override).paragraph


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (("annotate.choices=[bits,float]",), "annotate.choices"),
        (("search.weights=recovered", "search.max_evaluations=2"), "search.weights"),
    ],
)
def test_what_stands_against_the_stage_is_said(program: Program, given: tuple[str, ...], why: str) -> None:
    found = program.run(*given)
    assert found.code == 0, found.err
    assert why in found.report["precision"]["why_not"] and not (found.folder / "precision").exists()


def test_a_short_budget_ends_with_the_best_so_far(program: Program) -> None:
    given = data(program)
    found = program.run(*given, "precision.max_evaluations=2")
    precision = found.report["precision"]
    assert found.code == 0 and precision["evaluations"] == 2 and len(precision["trials"]) == 2
    assert precision["loss_after"] <= precision["loss_before"]


def test_a_candidate_of_the_log_replays_with_what_was_decided(program: Program) -> None:
    given = data(program)
    found = program.run(*given)
    log = found.folder / "search" / "trials.jsonl"
    replayed = program.run(*given, "command=replay", f"strategy={log}", "replay.trial=0", folder="replay")
    assert replayed.code == 0, replayed.err
    assert replayed.strategy == found.strategy
    assert replayed.report["metrics"]["realized"] == found.report["metrics"]["realized"]


def test_more_bits_are_part_of_the_strategy_of_the_certificate_and_of_the_folder(program: Program) -> None:
    """One channel 80 times as large as the others sets the step of the input: the device has 16 bits, too."""
    weights = {"w": normal(1, 6, 4, 1, 1) / np.float32([80, 1, 1, 1]).reshape(1, 4, 1, 1), "v": normal(2, 3, 6, 3, 3)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="spread"),
        helper.make_node("Relu", ["a"], ["r"], name="relu"),
        helper.make_node("Conv", ["r", "v"], ["y"], name="last"),
    ]
    ports = [("x", ["N", 4, 6, 6], "float32")], [("y", ["N", 3, 4, 4], "float32")]
    pixels = normal(7, 96, 4, 6, 6, scale=1.0)
    pixels[:, 0] *= 80
    np.savez(program.cwd / "x.npz", x=pixels)
    data = "dataset=npz", f"dataset.path={program.cwd / 'x.npz'}", "dataset.keys.images=x"
    given = (*data, write(program.cwd / "net.onnx", nodes, *ports, weights), "hardware=esp32p4", "recover=none")
    found = program.run(*given)
    assert found.code == 0, found.err
    raised = found.report["precision"]["raised"]
    assert "x" in raised and "16 bits after input" in found.out and found.report["outputs"][0]["sqnr_db"] > 30
    assert program.bare("command=verify", f"hydra.run.dir={found.folder}").code == 0
    model = (found.folder / "realize" / "model.onnx").read_bytes()
    again = program.run(*given, "command=replay", f"strategy={found.folder}/search/strategy.json", folder="again")
    assert again.code == 0 and (again.folder / "realize" / "model.onnx").read_bytes() == model, again.err
    trial = program.run(
        *given, "command=replay", f"strategy={found.folder}/search/trials.jsonl", "replay.trial=0", folder="t"
    )
    assert trial.code == 0 and (trial.folder / "realize" / "model.onnx").read_bytes() == model, trial.err
    (found.folder / "realize" / "model.onnx").unlink()
    resumed = program.run(*given, folder=found.folder.name)
    assert resumed.code == 0 and (found.folder / "realize" / "model.onnx").read_bytes() == model
    searched = program.run(*given, "search=greedy", "annotate.choices=[bits]", folder="greedy")
    assert searched.code == 0 and searched.report["precision"]["raised"] == raised, searched.err
    assert searched.report["agreement"]["differing"] == 0
