"""Results in bfloat16: a kernel gives them to nodes in float and to the model's outputs, where the file declares it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

import quantpipe
from quantpipe.errors import ConfigError, HardwareError
from quantpipe.hardware.load import load_hardware
from quantpipe.verify import verify_folder
from quantpipe.verify.ops import to_bfloat16
from tests.ops.line import Net, hardware_data, line
from tests.verify.folders import changed, refreshed, write
from tests.verify.test_grammar import forged


def npu(real: str = "bfloat16", **changes: Any) -> dict[str, Any]:
    """A device whose convolutions give real results in a type."""
    ops = {
        "Conv": [{"in": ["int8", "int8"], "out": ["int8", real]}],
        "Relu": [{"in": ["int8"], "out": ["int8"]}, {"in": ["float32"], "out": ["float32"]}],
    }
    return hardware_data("tensorrt") | {"name": "npu", "realize": "integer", "qdq_bias": None, "ops": ops} | changes


def net() -> Net:
    """Two layers in integers; the second is read by a Softmax in float, and leaves the model."""
    made = Net(seed=3)
    x = made.input(None, 3, 8, 8)
    y = made.node("Relu", made.conv(x, 3, 8, 3, 3, name="front"))
    z = made.conv(y, 8, 5, 1, 1, name="head")
    made.output(z)
    made.output(made.node("Softmax", z, axis=1))
    return made


def test_real_results_are_rounded_and_all_forms_agree() -> None:
    made = line(net(), load_hardware(npu()))
    assert made.topology.brain_floats == {"head_out"}
    plan = made.plan(8)
    assert made.agree(plan, "integer").differing == 0
    found = made.outputs(made.realize(plan, "integer").model)["head_out"]
    assert np.array_equal(found, found.astype(ml_dtypes.bfloat16).astype(np.float32))
    plain = line(net(), load_hardware(npu("float32")))
    exact = plain.outputs(plain.realize(plain.plan(8), "integer").model)["head_out"]
    assert np.abs(found - exact).max() <= np.abs(exact).max() / 256 and not np.array_equal(found, exact)


def test_the_checker_rounds_as_the_type_does() -> None:
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(20000) * 10.0 ** rng.integers(-30, 30, 20000)).astype(np.float32)
    x = np.concatenate([x, np.array([0, -0.0, np.inf, -np.inf, 1.00390625, 1.01171875, 3.4e38], np.float32)])
    assert np.array_equal(to_bfloat16(x), x.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_the_certificate_claims_the_type_and_the_checker_finds_other_casts(tmp_path: Path) -> None:
    made = line(net(), load_hardware(npu()))
    root = write(made, made.plan(8), "integer", tmp_path / "run")
    assert verify_folder(root).wrong is None

    def as_float(model: onnx.ModelProto) -> None:
        for node in (n for n in model.graph.node if n.name == "head_out/to_bfloat16"):
            node.attribute[0].i = onnx.TensorProto.FLOAT

    assert "head_out" in forged(root, as_float)
    root = write(made, made.plan(8), "integer", tmp_path / "other")
    changed(root, "certificate.json", lambda c: c.pop("bfloat16"))
    refreshed(root)
    assert "head_out" in str(verify_folder(root).wrong)


def test_a_run_agrees_with_such_results() -> None:
    samples = np.random.default_rng(0).standard_normal((64, 3, 8, 8)).astype(np.float32)
    device = npu()
    found = quantpipe.quantize(net().proto(), samples, device)
    assert found.report["agreement"]["differing"] == 0


@pytest.mark.parametrize(
    ("signature", "match"),
    [
        ({"in": ["bfloat16"], "out": ["float32"]}, "bfloat16, which is a type of results alone"),
        ({"in": ["int8", "int8"], "out": ["bfloat16"]}, r"legal is bfloat16 next to the type that the kernel stores"),
        ({"in": ["float32"], "out": ["bfloat16"]}, r"legal is bfloat16 next to the type"),
    ],
)
def test_other_places_of_the_type_are_rejected(signature: dict[str, list[str]], match: str) -> None:
    with pytest.raises(HardwareError, match=match):
        load_hardware(npu(ops={"Conv": [signature]}))


def test_forms_without_the_type_are_rejected() -> None:
    samples = np.zeros((8, 3, 8, 8), np.float32)
    device = npu(realize="qdq")
    with pytest.raises(ConfigError, match="realize: is qdq, which has no results in bfloat16"):
        quantpipe.quantize(net().proto(), samples, device)
