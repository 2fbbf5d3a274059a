"""Whatever is changed in a certificate, a plan or a model is found, by content: all digests are made to fit."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from quantpipe.errors import HardwareError
from quantpipe.verify import verify_folder
from quantpipe.verify.checked_digits import expect_digits
from quantpipe.verify.files import Wrong
from tests.verify.folders import (
    FORMS,
    changed,
    constants,
    digits_line,
    hardware_files,
    put,
    read,
    refreshed,
    with_constant,
    write,
)
from tests.verify.mutations import leaves, other_number, with_other

QUICK = (("ort_cpu", "qdq"), ("ort_cpu", "qoperator"), ("vta", "integer"), ("hago_int16_acc", "integer"),
         ("tflite_int8", "integer"), ("snpe", "integer"), ("mixed_npu", "integer"))  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """A fresh copy of a written folder."""
    place = tmp_path_factory.mktemp("verify")
    made: dict[tuple[str, str], Path] = {}

    def copy(spec: str, form: str) -> Path:
        if (spec, form) not in made:
            line = digits_line(spec)
            made[spec, form] = write(line, line.plan((8, 7, 6, 5), seed=1), form, place / f"{spec}-{form}")
        root = place / "copy"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(made[spec, form], root)
        return root

    return copy


def found(root: Path) -> str:
    """The line that names what is wrong."""
    wrong = verify_folder(root).wrong
    assert wrong is not None
    return wrong


def test_each_kind_of_number_in_the_model_is_found_by_place(folders: Callable[[str, str], Path]) -> None:
    names = {
        ("ort_cpu", "qdq"): {
            "block1.pointwise.bn_out_weight_q": "block1.pointwise.conv: its weights",
            "block1.pointwise.conv_bias_q": "block1.pointwise.conv: its bias",
            "block1.pointwise.conv_bias_scale": "block1.pointwise.conv: its bias's scale",
            "block1.pointwise.bn_out_weight_scale": "block1.pointwise.conv: its weights' scale",
            "stem.out_scale": "stem.conv: its result's scale",
            "stem.out_zero_point": "stem.conv: its result's zero point",
        },
        ("ort_cpu", "qoperator"): {
            "classifier.weight_q": "classifier: its weights",
            "image_zero_point": "stem.conv: the zero point of image",
        },
        ("vta", "integer"): {
            "stem.conv_bias_q": "stem.conv: its bias",
            "stem.bn_out_weight_q": "stem.conv: its weights",
            "stem.out/shift": "stem.conv",
            "stem.out_high_int32": "stem.conv: the accumulator",
            "logits_acc_scale": "logits",
        },
        ("tflite_int8", "integer"): {"stem.out/fixed_multiplier": "stem.conv: its q31"},
        ("tflite_xnnpack", "integer"): {"block2.pointwise.add/term0/fixed_multiplier": "block2.pointwise.add: "},
        ("snpe", "integer"): {"stem.out_multiplier": "stem.conv"},
    }
    for (spec, form), places in names.items():
        values = dict(constants(folders(spec, form)))
        for name, where in places.items():
            root, other = folders(spec, form), other_number(values[name], np.random.default_rng(0))
            assert other is not None
            with_constant(root, name, other)
            assert found(root).startswith(where), (name, found(root))


def test_claims_that_are_too_good_are_found(folders: Callable[[str, str], Path]) -> None:
    def bound(content: Any) -> None:
        content["kernels"]["stem.conv"]["accumulator"]["bound"] -= 1

    def planned(content: Any) -> None:
        content["kernels"]["stem.conv"]["accumulator_bound"] -= 1

    def departing(content: Any) -> None:
        content["kernels"]["stem.conv"]["requantize"]["departing"] += 1

    def overflow(content: Any) -> None:
        content["kernels"]["stem.conv"]["accumulator"]["overflow"] = "wrap"

    def float32(content: Any) -> None:
        content["kernels"]["stem.conv"]["carried"] = {"by": "digits", "data": [1, 0], "weight": [1, 0]}
        content["kernels"]["pool"]["carried"] = {"by": "float64"}

    for name, change in (("certificate.json", bound), ("plan.json", planned), ("certificate.json", departing),
                         ("certificate.json", overflow), ("certificate.json", float32)):  # fmt: skip
        root = folders("ort_cpu", "qdq")
        changed(root, name, change)
        where = "pool" if change is float32 else "stem.conv"
        assert found(root).startswith(f"{where}: "), (change, found(root))


def test_digits_whose_sums_are_too_large_are_found() -> None:
    """The same weights by two digits of eight bits, and by one of them: 4096 · 255 · 127 is beyond 2^24."""
    weight = np.full((2, 4096), 127, np.int64)
    expect_digits(weight, 0, 255, {"data": [2, 4], "weight": [2, 4]}, where="node")
    for carried in ({"data": [1, 0], "weight": [1, 0]}, {"data": [2, 8], "weight": [1, 0]}):
        with pytest.raises(Wrong, match="float32 does not hold"):
            expect_digits(weight, 0, 255, carried, where="node")


@pytest.mark.slow
def test_sixteen_bit_sums_are_not_claimed_to_fit_float32(tmp_path: Path) -> None:
    made = digits_line("mixed_npu")
    root = write(made, made.plan(16), "integer", tmp_path)
    assert verify_folder(root).wrong is None
    claims = read(root, "certificate.json")["kernels"]
    split = [n for n, k in claims.items() if k.get("carried", {}).get("by") == "digits"]
    assert split

    def claim(content: Any) -> None:
        content["kernels"][split[0]]["carried"] = {"by": "float32"}

    changed(root, "certificate.json", claim)
    assert "float32 does not hold exactly" in found(root)


def test_missing_and_strange_kernels_are_found(folders: Callable[[str, str], Path]) -> None:
    def drop(content: Any) -> None:
        del content["kernels"]["block2.pointwise.add"]

    root = folders("vta", "integer")
    changed(root, "certificate.json", drop)
    assert found(root) == "block2.pointwise.add: the certificate has no entry for this kernel"
    root = folders("vta", "integer")
    changed(root, "plan.json", drop)
    assert found(root).startswith("block2.pointwise.add: the certificate claims something of a kernel")
    changed(root, "certificate.json", drop)  # now both leave it out, and the model has its nodes
    assert found(root).startswith("block2.pointwise.")


def test_a_node_that_no_one_names_is_found(folders: Callable[[str, str], Path]) -> None:
    root = folders("vta", "integer")
    path = root / "realize" / "model.onnx"
    model = onnx.load(path)
    last = model.graph.node[-1]
    model.graph.node.append(onnx.helper.make_node("Neg", [last.output[0]], ["turned"], name="turn"))
    model.graph.output[0].name = "turned"
    path.write_bytes(model.SerializeToString())
    refreshed(root)
    assert "turn" in found(root)


def test_swapped_operands_are_found(folders: Callable[[str, str], Path]) -> None:
    """No number is changed; a kernel reads another tensor of the same shape."""
    root = folders("ort_cpu", "qdq")
    path = root / "realize" / "model.onnx"
    model = onnx.load(path)
    node = next(n for n in model.graph.node if n.name == "block2.pointwise.add")
    node.input[0], node.input[1] = node.input[1], node.input[0]
    path.write_bytes(model.SerializeToString())
    refreshed(root)
    assert found(root).startswith("block2.pointwise.add: it reads ")


def test_stale_digests_are_found(folders: Callable[[str, str], Path]) -> None:
    root = folders("ort_cpu", "qdq")
    path = root / "realize" / "model.onnx"
    model = onnx.load(path)
    model.doc_string = "touched"
    path.write_bytes(model.SerializeToString())
    assert found(root).startswith("model.onnx: its digest is")
    root = folders("ort_cpu", "qdq")
    plan = read(root, "plan.json")
    plan["kernels"]["stem.conv"]["bias"][0] += 1
    put(root, "plan.json", plan)
    assert found(root).startswith("plan.json: its digest is")
    root = folders("ort_cpu", "qdq")
    plan = read(root, "plan.json")
    plan["origin"]["config"]["hardware"]["accumulator"]["dtype"] = "int16"
    put(root, "plan.json", plan)
    refreshed(root)
    assert "hardware" in found(root)


def test_what_is_no_certificate_is_one_line(folders: Callable[[str, str], Path]) -> None:
    for key, value in (("kernels", []), ("values", {}), ("form", 7), ("float_nodes", None), ("summary", {})):
        root = folders("vta", "integer")

        def spoil(content: Any, key: str = key, value: Any = value) -> None:
            content[key] = value

        changed(root, "certificate.json", spoil)
        assert "\n" not in found(root)


def escaped(root: Path, keep: Path, picks: int, seed: int) -> list[Any]:
    """Changes of single numbers that the checker does not see; `picks` of the possible ones, 0 for all."""
    rng, missed = np.random.default_rng(seed), []
    work: list[tuple[str, Any]] = [("model.onnx", n) for n, v in constants(root) if other_number(v, rng) is not None]
    for file in ("plan.json", "certificate.json"):
        work += [(file, at) for at in leaves(read(root, file), rng)]
    values = dict(constants(root))
    chosen = rng.permutation(len(work))[: picks or None]
    for file, at in (work[i] for i in chosen):
        if file == "model.onnx":
            with_constant(root, at, other_number(values[at], rng))  # type: ignore[arg-type]
        else:
            put(root, file, with_other(read(root, file), at))
            refreshed(root)
        if verify_folder(root).wrong is None and not harmless(file, at, keep):
            missed.append((file, at))
        for name in ("model.onnx", "plan.json", "certificate.json"):
            shutil.copyfile(keep / "realize" / name, root / "realize" / name)
    return missed


def harmless(file: str, at: Any, root: Path) -> bool:
    """What decides nothing on any input: the width that a weight could have had, a last bit of a weight's scale that
    multipliers round away, an end of a range that no result reaches, the size of blocks where there is one alone,
    rounding constants of ties that no accumulator reaches, 1e-45 added to whole numbers; how many pairs saturate where
    some do; and what nodes in float read."""
    if file == "plan.json":
        unproved = at[0] == "kernels" and not read(root, "certificate.json")["kernels"][at[1]]["proved"]
        pairs = unproved and at[2] == "saturating_pairs" and read(root, file)["kernels"][at[1]][at[2]] > 0
        one = at[2:] == ("block", "size") and len(read(root, file)["weights"][at[1]]["block"]["multiplier"][0]) == 1
        moved = at[0] == "kernels" and read(root, file)["kernels"][at[1]]["kind"] == "move" and at[2:] == ("range", 1)
        return (
            pairs
            or one
            or moved
            or (at[0] == "weights" and at[2] in ("bits", "scale"))
            or (at[0], at[2:3]) == ("quantizers", ("range",))
        )
    if file == "model.onnx":
        floats = {f["node"] for f in read(root, "certificate.json")["float_nodes"]}
        nodes = onnx.load(root / "realize" / "model.onnx").graph.node
        inside = {i for n in nodes if n.name not in floats for i in n.input}
        kernels = read(root, "plan.json")["kernels"].values()
        moved = {f"{k['result']['tensor']}_high" for k in kernels if k["kind"] == "move"}
        return at not in inside or at in moved or at.endswith(("/lift", "/moved", "_zero"))
    return False


@pytest.mark.sliced(6)
@pytest.mark.parametrize(("spec", "form"), QUICK)
def test_single_changes_are_found(spec: str, form: str, folders: Callable[[str, str], Path], tmp_path: Path) -> None:
    root = folders(spec, form)
    shutil.copytree(root, tmp_path / "keep")
    assert escaped(root, tmp_path / "keep", 6, seed=len(spec)) == []


@pytest.mark.slow
@pytest.mark.parametrize("spec", hardware_files())
def test_all_single_changes_are_found(spec: str, folders: Callable[[str, str], Path], tmp_path: Path) -> None:
    for form in FORMS:
        try:
            root = folders(spec, form)
        except (HardwareError, OverflowError):
            continue  # this form cannot express this hardware
        shutil.copytree(root, tmp_path / form)
        assert escaped(root, tmp_path / form, 0, seed=1) == []


@pytest.mark.sliced(2)
@pytest.mark.parametrize(("spec", "form"), [("ort_cpu", "qdq"), ("ort_cpu", "qoperator"), ("vta", "integer")])
def test_windows_that_move_otherwise_are_found(spec: str, form: str, folders: Callable[[str, str], Path]) -> None:
    """Pads on other sides, another stride: no number of the model changes, and what it computes does."""
    convolutions = 0
    for attribute in ("pads", "strides", "dilations"):
        root = folders(spec, form)
        path = root / "realize" / "model.onnx"
        model = onnx.load(path)
        for node in model.graph.node:
            given = next((a for a in node.attribute if a.name == attribute), None)
            if given is None or "Conv" not in node.op_type:
                continue
            convolutions += 1
            kept = list(given.ints)
            given.ints[0], given.ints[-1] = given.ints[0] - 1 if kept[0] else 1, given.ints[-1] + 1
            path.write_bytes(model.SerializeToString())
            refreshed(root)
            assert f"{attribute} of {node.name} is" in found(root)
            given.ints[:] = kept
    assert convolutions > 10


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("plan.json", lambda p: p["kernels"]["stem.conv"].update(op="Convx"), "its op is"),
        ("plan.json", lambda p: p["kernels"]["stem.conv"]["reads"][0].update(tensor="nothing"), "which plan.json has"),
        ("plan.json", lambda p: p["kernels"]["stem.conv"]["reads"][0].update(form="raw"), "which plan.json has not"),
        ("certificate.json", lambda c: c.update(form="qdqx"), "the form 'qdqx' is unknown"),
        ("certificate.json", lambda c: c["kernels"]["stem.conv"].update(reason=1), "neither a text nor null"),
    ],
)
def test_names_that_stand_for_nothing_are_found(
    name: str, change: Callable[[Any], None], said: str, folders: Callable[[str, str], Path]
) -> None:
    root = folders("ort_cpu", "qdq")
    changed(root, name, change)
    assert said in found(root)
