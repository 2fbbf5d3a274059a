"""What a written model may not contain is rejected by name, with all digests made to fit."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from quantpipe.errors import ArtifactError
from quantpipe.verify import real_part, verify_folder
from tests.ops.line import Line, Net, hardware, hardware_data, line
from tests.verify.folders import changed, digits_line, read, refreshed, write
from tests.verify.forgeries import REAL, STRUCTURES, Forgery, in_a_foreign_domain, node_of

WHERE = (("ort_cpu", "qdq"), ("ort_cpu", "qoperator"), ("vta", "integer"), ("esp32p4", "integer"))
every_form = pytest.mark.parametrize(("spec", "form"), WHERE)
Copies = Callable[[str, str], Path]


def two_headed(spec: str) -> Line:
    """Two nodes in float, one with a constant, between kernels; two outputs of one shape."""
    net = Net(3)
    x = net.node("CumSum", net.input(None, 4, 6, 6), net.constant(np.array(2, np.int64)), name="front", reverse=1)
    y = net.node("LpNormalization", net.conv(x, 4, 4, name="first"), name="norm", axis=1, p=2)
    z = net.conv(y, 4, 4, name="second")
    net.output(net.conv(z, 4, 4, name="left"))
    net.output(net.conv(z, 4, 4, name="right"))
    return line(net, spec)


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Copies:
    """A fresh copy of a written folder."""
    place = tmp_path_factory.mktemp("grammar")

    def copy(spec: str, form: str) -> Path:
        kept, root = place / f"{spec}-{form}", place / "copy"
        if not kept.exists():
            made = two_headed(spec)
            write(made, made.plan(), form, kept)
            assert verify_folder(kept).wrong is None
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(kept, root)
        return root

    return copy


def forged(root: Path, forgery: Forgery) -> str:
    """What the checker finds wrong with a model that a forgery has changed, with all digests made to fit."""
    path = root / "realize" / "model.onnx"
    model = onnx.load(path)
    before = model.SerializeToString()
    forgery(model)
    assert model.SerializeToString() != before
    path.write_bytes(model.SerializeToString())
    refreshed(root)
    wrong = verify_folder(root).wrong
    assert wrong is not None and "\n" not in wrong
    return wrong


@pytest.mark.sliced(3)
@every_form
@pytest.mark.parametrize("forgery", STRUCTURES, ids=lambda f: f.__name__)
def test_what_no_form_writes_is_found(forgery: Forgery, spec: str, form: str, copies: Copies) -> None:
    assert STRUCTURES[forgery] in forged(copies(spec, form), forgery)


@every_form
def test_a_function_of_an_earlier_version_takes_no_kernel_s_place(spec: str, form: str, copies: Copies) -> None:
    root = copies(spec, form)
    changed(root, "certificate.json", without_real_part)
    assert "is no op in which the kernel" in forged(root, in_a_foreign_domain)


def without_real_part(certificate: Any) -> None:
    for key in real_part.KEYS:
        del certificate[key]
    for entry in certificate["float_nodes"]:
        for key in ("op_type", "domain", "inputs", "outputs", "attributes"):
            del entry[key]


@every_form
def test_a_certificate_of_an_earlier_version_is_accepted_and_named(spec: str, form: str, copies: Copies) -> None:
    root = copies(spec, form)
    assert "earlier version" not in str(verify_folder(root))
    changed(root, "certificate.json", without_real_part)
    verdict = verify_folder(root)
    assert verdict.wrong is None and not verdict.complete and "of an earlier version" in str(verdict)


@every_form
@pytest.mark.parametrize("key", real_part.KEYS)
def test_a_certificate_without_one_key_is_rejected(key: str, spec: str, form: str, copies: Copies) -> None:
    root = copies(spec, form)
    changed(root, "certificate.json", lambda c: c.pop(key))
    assert verify_folder(root).wrong == f"certificate.json: it has no {key}"


# --- attributes with one legal value ----------------------------------------------------------------------------------

VALUES: dict[str, dict[str, Any]] = {
    "Mod": {"fmod": 1},
    "Gemm": {"alpha": 2.0, "beta": 0.5, "transA": 1},
    "QGemm": {"alpha": 2.0, "transA": 1},
    "QLinearConv": {"group": 2},
    "ConvInteger": {"group": 2},
    "Cast": {"saturate": 0},
    "BitShift": {"turbo": 1},
    "QuantizeLinear": {"saturate": 0, "axis": 0, "block_size": 2},
    "DequantizeLinear": {"block_size": 2},
    "MaxPool": {"ceil_mode": 1, "storage_order": 1},
    "Flatten": {"axis": 0},
}


@pytest.mark.sliced(3)
@every_form
def test_another_value_of_each_attribute_is_found(spec: str, form: str, tmp_path: Path) -> None:
    made = digits_line(spec)
    root = write(made, made.plan(), form, tmp_path / "run")
    original = (root / "realize" / "model.onnx").read_bytes()
    floats = {f["node"] for f in read(root, "certificate.json")["float_nodes"]}
    model, planted = onnx.load_from_string(original), set()
    for number, node in enumerate(model.graph.node):
        for name, value in VALUES.get(node.op_type, {}).items():
            if (node.op_type, name) in planted or node.name in floats:
                continue

            def set_other(model: onnx.ModelProto, number: int = number, name: str = name, value: Any = value) -> None:
                held = model.graph.node[number].attribute
                kept = [a for a in held if a.name != name]
                del held[:]
                held.extend([*kept, helper.make_attribute(name, value)])

            (root / "realize" / "model.onnx").write_bytes(original)
            assert name in forged(root, set_other), (node.op_type, name)
            planted.add((node.op_type, name))
    assert len(planted) >= 4


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_a_square_weight_that_is_read_the_other_way_is_found(form: str, tmp_path: Path) -> None:
    net = Net(4)
    net.output(net.dense(net.input(None, 6), 6, 6, name="square"))
    made = line(net)
    root = write(made, made.plan(), form, tmp_path / "run")
    assert verify_folder(root).wrong is None

    def flip(model: onnx.ModelProto) -> None:
        node = node_of(model, "square")
        held = next((a for a in node.attribute if a.name == "transB"), None)
        if held is None:
            node.attribute.append(helper.make_attribute("transB", 1))
        else:
            held.i = 1 - held.i

    assert "its weights are not those" in forged(root, flip)


def split_over_channels(root: Path) -> Path:
    """A transposed convolution whose sums float32 does not hold, so that it is written in parts of its channels."""
    rows = {"ConvTranspose": [{"in": ["int16", "int8"], "out": ["int16"]}]}
    net = Net(8)
    up = net.node("ConvTranspose", net.input(None, 7, 7, 7), net.signs(7, 3, 1, 1, scale=0.3), name="mid")
    net.output(net.conv(up, 3, 2, name="last"))
    made = line(net, hardware("mixed_npu", ops=rows | hardware_data("mixed_npu")["ops"]))
    return write(made, made.plan(16), "integer", root)


CUTS: dict[str, tuple[Any, ...]] = {
    "axis": (3, [2]),
    "start": (1, [0]),
    "end": (2, [7]),
    "step": (4, [2]),
}


@pytest.mark.parametrize("side", CUTS)
def test_parts_of_the_channels_are_those_that_the_weights_belong_to(side: str, tmp_path: Path) -> None:
    root = split_over_channels(tmp_path / "run")
    assert verify_folder(root).wrong is None
    port, other = CUTS[side]

    def cut_elsewhere(model: onnx.ModelProto) -> None:
        cuts = [n for n in model.graph.node if n.op_type == "Slice"]
        assert len(cuts) >= 2
        for number, node in enumerate(cuts if side != "start" else cuts[-1:]):
            while len(node.input) <= port:
                node.input.append("")
            node.input[port] = f"other{number}"
            model.graph.initializer.append(numpy_helper.from_array(np.array(other, np.int64), f"other{number}"))

    assert "channels" in forged(root, cut_elsewhere)


@pytest.mark.parametrize("spec", ["vta", "esp32p4"])
def test_a_product_of_all_channels_reads_no_part(spec: str, copies: Copies) -> None:
    def turned(model: onnx.ModelProto) -> None:
        """One kernel reads its maps upside down."""
        node = next(n for n in model.graph.node if n.op_type in ("ConvInteger", "MatMulInteger"))
        cut = helper.make_node("Slice", [node.input[0], "from", "to", "along", "by"], ["turned"], name="turn")
        for name, value in (("from", -1), ("to", -(1 << 40)), ("along", 2), ("by", -1)):
            model.graph.initializer.append(numpy_helper.from_array(np.array([value], np.int64), name))
        model.graph.node.insert(list(model.graph.node).index(node), cut)
        node.input[0] = "turned"

    assert "turn" in forged(copies(spec, "integer"), turned)


# --- what is in float -------------------------------------------------------------------------------------------------


@pytest.mark.sliced(3)
@every_form
@pytest.mark.parametrize("forgery", REAL, ids=lambda f: f.__name__)
def test_another_real_part_is_found(forgery: Forgery, spec: str, form: str, copies: Copies) -> None:
    assert REAL[forgery] in forged(copies(spec, form), forgery)


@every_form
def test_the_real_part_is_that_of_the_float_model(spec: str, form: str, copies: Copies) -> None:
    made, claims = two_headed(spec), read(copies(spec, form), "certificate.json")
    for entry in claims["float_nodes"]:
        node = made.graph.by_name[entry["node"]]
        assert (entry["op_type"], entry["domain"]) == (node.op_type, node.domain)
        assert (entry["inputs"], entry["outputs"]) == (list(node.inputs), list(node.outputs))
        assert entry["attributes"] == {name: node.attr(name) for name in node.attributes}
    assert claims["outputs"] == [o.name for o in made.graph.outputs]
    assert claims["inputs"] == [i.name for i in made.graph.inputs]
    assert len(claims["float_nodes"]) >= 2 and len(claims["constants"]) >= 1


# --- hostile folders --------------------------------------------------------------------------------------------------


def test_pipes_devices_and_links_are_not_opened(copies: Copies) -> None:
    for name in ("model.onnx", "plan.json", "certificate.json"):
        for place in ("/dev/zero", "/dev/stdin", "pipe", "folder", "/etc/hostname"):
            root = copies("vta", "integer")
            path = root / "realize" / name
            path.unlink()
            if place == "pipe":
                os.mkfifo(path)
            elif place == "folder":
                path.mkdir()
            else:
                path.symlink_to(place)
            with pytest.raises(ArtifactError, match="regular files of the folder only") as caught:
                verify_folder(root)
            assert "\n" not in str(caught.value)


def test_data_beside_the_model_are_files_of_the_sizes_named(copies: Copies) -> None:
    for place, offset, match in (
        ("/dev/zero", 0, "regular files"),
        (None, 1 << 40, "are not there"),
        (None, 0, "bytes"),
    ):
        root = copies("vta", "integer")
        path = root / "realize" / "model.onnx"
        model = onnx.load(path)
        tensor = max(model.graph.initializer, key=lambda t: len(t.raw_data))
        content = tensor.raw_data + (b"" if match != "bytes" else bytes(1 << 20))
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "far.data"), ("offset", str(offset))):
            tensor.external_data.add(key=key, value=value)
        path.write_bytes(model.SerializeToString())
        beside = root / "realize" / "far.data"
        beside.write_bytes(content)
        changed(root, "certificate.json", lambda c: c["digests"]["data"].update({"far.data": ""}))
        if place is not None:
            beside.unlink()
            beside.symlink_to(place)
        with pytest.raises(ArtifactError, match=match):
            verify_folder(root)


def test_quantizers_of_32_bits_take_no_memory(copies: Copies) -> None:
    root = copies("esp32p4", "integer")

    def widen(plan: Any) -> None:
        for q in plan["quantizers"].values():
            q.update(dtype="int32", bits=32, range=[-(1 << 31), (1 << 31) - 1])

    changed(root, "plan.json", widen)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "stored tensors have at most 16" in str(verify_folder(root).wrong)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 18  # KiB


def test_ranges_and_shifts_take_no_memory(copies: Copies) -> None:
    def widen(plan: Any) -> None:
        for kernel in plan["kernels"].values():
            kernel["requantize"].update(range=[-(1 << 62), 1 << 62])

    def shift(plan: Any) -> None:
        for kernel in plan["kernels"].values():
            kernel["requantize"]["shift"] = 10**12

    for change, said in ((widen, "is clamped to"), (shift, "it shifts by 1000000000000")):
        root = copies("vta", "integer")
        changed(root, "plan.json", change)
        assert said in str(verify_folder(root).wrong)


def test_deep_nesting_is_one_paragraph(copies: Copies) -> None:
    root = copies("vta", "integer")
    (root / "realize" / "plan.json").write_text('{"a":' * 100_000 + "1" + "}" * 100_000)
    with pytest.raises(ArtifactError, match="not whole JSON"):
        verify_folder(root)
    (root / "realize" / "plan.json").write_text("[" * (1 << 22))
    with pytest.raises(ArtifactError, match="more than 2097152 times"):
        verify_folder(root)

    def chain(model: onnx.ModelProto) -> None:
        """A constant behind 20,000 nodes."""
        graph = model.graph
        held = max(graph.initializer, key=lambda t: len(t.raw_data)).name
        links = [helper.make_node("Identity", [f"link{n}" if n else held], [f"link{n + 1}"], name=f"link{n}")
                 for n in range(20_000)]  # fmt: skip
        for node in graph.node:
            node.input[:] = [links[-1].output[0] if i == held else i for i in node.input]
        for place, link in enumerate(links):
            graph.node.insert(place, link)

    assert "RecursionError" in forged(copies("vta", "integer"), chain)
