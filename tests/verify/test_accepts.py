"""No false alarm: what the realize stage writes is accepted, for every hardware file, form and op."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from quantpipe.app.chosen_forms import forms_of
from quantpipe.errors import ArtifactError, HardwareError, QuantpipeError
from quantpipe.intake.load import load_graph
from quantpipe.types import QuantPlan
from quantpipe.verify import verify_folder
from tests.ops.line import ArraySamples, Line, Net, hardware, line
from tests.verify.folders import FORMS, constants, digits_line, hardware_files, refreshed, with_constant, write

QUICK = {"ort_cpu": ("qdq", "qoperator", "integer"), "vta": ("integer",), "tflite_int8": ("integer",),
         "tflite_xnnpack": ("integer",), "hago_int16_acc": ("integer",), "mixed_npu": ("integer",)}  # fmt: skip


def accepted(made: Line, plan: QuantPlan, form: str, root: Path) -> Any:
    found = verify_folder(write(made, plan, form, root))
    assert found.wrong is None, (made.spec.name, form, found.wrong)
    assert found.kernels == len(plan.kernels) and plan.weights
    return found


@pytest.mark.parametrize("spec", QUICK)
def test_the_digits_model_is_accepted(spec: str, tmp_path: Path) -> None:
    made = digits_line(spec)
    for form in QUICK[spec]:
        found = accepted(made, made.plan((8, 7, 6, 5), seed=1), form, tmp_path / form)
        real = form != "integer"  # the logits leave as real numbers
        assert found.proved == found.kernels - real


@pytest.mark.slow
@pytest.mark.parametrize("spec", hardware_files())
def test_every_hardware_file_and_form_is_accepted(spec: str, tmp_path: Path) -> None:
    made, written = digits_line(spec), 0
    for number, plan in enumerate((made.plan(), made.plan((8, 7, 6, 5, 4), seed=1), made.plan(16), made.ties())):
        for form in FORMS:
            root = tmp_path / f"{number}{form}"
            try:
                accepted(made, plan, form, root)
            except (HardwareError, OverflowError):
                continue  # this form cannot express this hardware
            written += 1
    assert written >= 3


@pytest.mark.slow
def test_every_op_is_accepted(tmp_path: Path) -> None:
    from tests.ops.cases import CASES
    from tests.ops.test_every_op import NOTHING_TO_DO, TARGETS, line_of

    written = 0
    for target, (spec, schema, form) in TARGETS.items():
        for name in CASES:
            if spec == "hago_sample" and name in NOTHING_TO_DO:
                continue
            made = line_of(name, spec, schema)
            for kind in ("plan", "ties"):
                try:
                    plan = getattr(made, kind)()
                    root = write(made, plan, form, tmp_path / target / name / kind)
                except HardwareError:
                    continue
                found = verify_folder(root)
                assert found.wrong is None, (target, name, kind, found.wrong)
                written += 1
    assert written > 1000


SOME = ("mul_activations", "mul_channel", "mul_square", "add_activations", "add_same_twice", "add_channel",
        "sub_activations", "function_hardsigmoid", "function_neg", "function_gelu", "function_leakyrelu",
        "softmax_last", "layer_norm", "divide", "average_pool", "global_average_pool", "max_pool", "concat_two",
        "pad_constant", "matmul_activations", "attention", "transposed_strides", "conv_1d")  # fmt: skip
"""A case for each kind of kernel."""


@pytest.mark.sliced(28)
@pytest.mark.parametrize("spec", hardware_files())
def test_each_kind_of_kernel_is_accepted_on_each_device(spec: str, tmp_path: Path) -> None:
    """In the form that a run writes, with 8 bits or as many as there are, and with mixed ones."""
    from tests.ops.test_every_op import line_of

    device, count = hardware(spec), 0
    (form, *_) = forms_of({"backend": "auto"}, device, verify="fail")
    for name in SOME:
        for number, bits in enumerate(((16 if len(name) % 2 else 8), (8, 7, 6, 5, 16))):
            try:
                made = line_of(name, spec, "auto")
                root = write(made, made.plan(bits, seed=3), form, tmp_path / name / str(number))
            except QuantpipeError:
                continue  # nothing of it runs in integers there, or not with these bits
            found = verify_folder(root)
            assert found.wrong is None, (spec, name, bits, found.wrong)
            count += found.kernels
    assert count >= (0 if form not in FORMS else 40)


@pytest.mark.parametrize("shape", [(1,), (6, 1, 1)])
@pytest.mark.parametrize("spec", ["tflite_int8", "esp32p4", "stm32n6"])
def test_a_constant_that_several_kernels_read_is_accepted(spec: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    net = Net(5)
    gain = net.floats(*shape, scale=0.5)
    x = net.conv(net.input(None, 3, 6, 6), 3, 6, 3, 3)
    for _ in range(3):  # the products are outputs, too: else they would become weights
        net.output(x, y := net.node("Mul", x, gain))
        x = net.conv(y, 6, 6)
    net.output(x)
    made = line(net, spec)
    root = write(made, made.plan(), "integer", tmp_path / "run")
    assert verify_folder(root).wrong is None
    copies = [name for name, _ in constants(root) if "/reader" in name]
    assert (len(shape) < 2) == bool(copies)
    for name in copies[-1:]:
        with_constant(root, name, next(a for n, a in constants(root) if n == name) - 1)
        assert verify_folder(root).wrong


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder whose integer weights lie in a data file beside the model."""
    net = Net()
    x = net.input(None, 300)
    net.output(net.dense(x, 300, 300, name="wide"))
    path = tmp_path / "float" / "net.onnx"
    path.parent.mkdir()
    onnx.save_model(net.proto(), path, save_as_external_data=True, size_threshold=0, convert_attribute=False)
    rows = np.random.default_rng(0).standard_normal((6, 300)).astype(np.float32)
    graph = load_graph(path, lambda raw: {"x": rows[:2]}, resident_mb=0)
    made = line(graph, "ort_cpu", samples=ArraySamples({"x": rows}))
    root = write(made, made.plan(), "qdq", tmp_path / "run")
    assert list((root / "realize").glob("*.data"))
    return root


def test_weights_beside_the_model_are_read_and_compared(outside: Path) -> None:
    assert verify_folder(outside).wrong is None
    (data,) = (outside / "realize").glob("*.data")
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    wrong = verify_folder(outside).wrong
    assert wrong is not None and wrong.startswith(f"{data.name}: its digest")
    refreshed(outside)
    assert str(verify_folder(outside).wrong).startswith("wide: its weights are not those")
    data.unlink()
    with pytest.raises(ArtifactError, match="cannot be read"):
        verify_folder(outside)
