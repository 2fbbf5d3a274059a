"""Functions of rows, of which nothing is proved: the model computes of drawn rows what the plan's steps give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from quantpipe.verify import programs, verify_folder
from tests.ops.test_every_op import line_of
from tests.verify.folders import changed, constants, read, refreshed, with_constant, write

CASES = [("softmax_last", "tflite_int8"), ("softmax_last", "npu_w8a16"), ("layer_norm", "fpga_shift"),
         ("layer_norm", "npu_w8a16"), ("rms_norm", "qnn_htp"), ("log_softmax_island", "qnn_htp"),
         ("local_response", "qnn_htp"), ("divide", "esp32p4"), ("reduce_mean", "tflite_int8")]  # fmt: skip


def written(name: str, spec: str, root: Path) -> tuple[Path, str]:
    made = line_of(name, spec, "auto")
    folder = write(made, made.plan(), "integer", root / "run")
    kernels = read(folder, "plan.json")["kernels"]
    (node,) = (n for n, k in kernels.items() if k["kind"] == "program")
    return folder, node


def found(root: Path) -> str:
    wrong = verify_folder(root).wrong
    assert wrong is not None
    return wrong


@pytest.mark.sliced(24)
@pytest.mark.parametrize(("name", "spec"), CASES)
def test_numbers_of_steps_are_found(name: str, spec: str, tmp_path: Path) -> None:
    root, node = written(name, spec, tmp_path)
    assert verify_folder(root).wrong is None
    ends = ("/number", "/table", "64")
    steps = {n: v for n, v in constants(root) if n.startswith(f"{node}/") and n.endswith(ends)}
    assert steps or name == "reduce_mean"
    for value, array in steps.items():
        other = array.copy()
        other.reshape(-1)[-1] += 3
        with_constant(root, value, other)
        assert found(root).startswith(f"{node}: "), value
        with_constant(root, value, array)
    assert verify_folder(root).wrong is None


@pytest.mark.sliced(4)
@pytest.mark.parametrize(("name", "spec"), CASES[:-1])
def test_another_op_is_found(name: str, spec: str, tmp_path: Path) -> None:
    root, node = written(name, spec, tmp_path)
    path = root / "realize" / "model.onnx"
    original, planted = path.read_bytes(), 0
    model = onnx.load(path)
    others = {"ReduceMax": "ReduceMin", "Mul": "Sub", "Floor": "Ceil", "Div": "Mul"}
    for number, made in enumerate(model.graph.node):
        if not made.name.startswith(f"{node}/step") or made.op_type not in others:
            continue
        changed_model = onnx.load_from_string(original)
        changed_model.graph.node[number].op_type = others[made.op_type]
        path.write_bytes(changed_model.SerializeToString())
        refreshed(root)
        assert found(root).startswith((f"{node}: ", f"{made.name}: ")), made.name
        planted += 1
    assert planted


def planted(root: Path, node: str) -> str:
    """What is found where an op of the program is another one."""
    path = root / "realize" / "model.onnx"
    model = onnx.load(path)
    made = next(n for n in model.graph.node if n.name.startswith(f"{node}/step") and n.op_type in ("Mul", "ReduceMax"))
    made.op_type = {"Mul": "Sub", "ReduceMax": "ReduceMin"}[made.op_type]
    path.write_bytes(model.SerializeToString())
    refreshed(root)
    return found(root)


@pytest.mark.parametrize(("name", "spec"), [("softmax_last", "tflite_int8"), ("local_response", "qnn_htp")])
def test_large_operands_are_drawn_with_fewer_rows(
    name: str, spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, node = written(name, spec, tmp_path)
    monkeypatch.setattr(programs, "MOST_ELEMENTS", 30)
    assert verify_folder(root).wrong is None
    assert planted(root, node).startswith((f"{node}: ", f"{node}/step"))


@pytest.mark.parametrize(("name", "spec"), [("softmax_last", "tflite_int8"), ("local_response", "qnn_htp")])
def test_the_certificate_decides_not_what_is_drawn(name: str, spec: str, tmp_path: Path) -> None:
    """Shapes that it leaves out are the model's; others than the model has, however large, are found."""
    root, node = written(name, spec, tmp_path)
    shapes = read(root, "certificate.json")["kernels"][node]["program"]["shapes"]

    def large(content: Any) -> None:
        content["kernels"][node]["program"]["shapes"] = [[1, *(5000 for _ in shape[1:])] for shape in shapes]

    def left_out(content: Any) -> None:
        del content["kernels"][node]["program"]

    changed(root, "certificate.json", large)
    assert "its operand has the axes" in found(root)
    changed(root, "certificate.json", left_out)
    assert verify_folder(root).wrong is None
    assert planted(root, node).startswith((f"{node}: ", f"{node}/step"))


def test_steps_of_the_plan_are_held_against_their_bounds(tmp_path: Path) -> None:
    root, node = written("softmax_last", "tflite_int8", tmp_path)

    def tighten(content: Any) -> None:
        content["kernels"][node]["steps"][0]["range"] = [0, 0]

    changed(root, "plan.json", tighten)
    assert "its step 0 leaves the bounds [0, 0]" in found(root)


def test_a_certificate_of_an_earlier_version_has_no_shapes(tmp_path: Path) -> None:
    root, node = written("softmax_last", "tflite_int8", tmp_path)
    changed(root, "certificate.json", lambda content: content["kernels"][node]["program"].pop("shapes"))
    assert verify_folder(root).wrong is None


def test_entries_of_tables_that_are_not_proved_are_compared(tmp_path: Path) -> None:
    made = line_of("function_hardswish", "tflite_int8", "auto")
    root = write(made, made.plan(), "integer", tmp_path / "run")
    claim = read(root, "certificate.json")["kernels"]["mid"]
    assert not claim["proved"]
    (name,) = (n for n, v in constants(root) if v.size == 256)
    table = dict(constants(root))[name].copy()
    table.reshape(-1)[130] += np.int8(1)
    with_constant(root, name, table)
    assert found(root) == "mid: the table in the model differs from plan.json"


def test_what_is_not_compared_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row alone is larger than what is drawn: the verdict names the kernel."""
    root, node = written("softmax_last", "npu_w8a16", tmp_path)
    assert node not in verify_folder(root).uncompared
    monkeypatch.setattr(programs, "MOST_ELEMENTS", 1)
    verdict = verify_folder(root)
    assert verdict.wrong is None and node in verdict.uncompared
    assert f"not compared: {node}" in str(verdict)


@pytest.mark.parametrize("value", ["mid_out_high", "mid_out_low", "front_out_zero_point", "mid_out_scale"])
def test_other_numbers_around_a_float_function_are_found(value: str, tmp_path: Path) -> None:
    """A function that stays the float op is not proved; what it makes of each code is in plan.json."""
    made = line_of("function_hardswish", "ort_cpu", "auto")
    root = write(made, made.plan(7), "qdq", tmp_path / "run")
    verdict = verify_folder(root)
    assert verdict.wrong is None and "mid" not in verdict.uncompared
    held = dict(constants(root))
    assert value in held
    other = held[value] * 1.25 if held[value].dtype.kind == "f" else held[value] ^ 1
    with_constant(root, value, np.asarray(other, held[value].dtype))
    assert verify_folder(root).wrong is not None


def test_another_bound_of_a_program_is_found(tmp_path: Path) -> None:
    """Drawn rows need not reach it."""
    root, _ = written("layer_norm_no_offset", "qnn_htp", tmp_path)
    (name,) = (n for n, _ in constants(root) if n.startswith("mid_out_high"))
    with_constant(root, name, dict(constants(root))[name] + 8)
    assert "has not the bound" in found(root)
