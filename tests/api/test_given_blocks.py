"""Files with weights in blocks (MatMulNBits): every block size, zero points and bits are kept integer by integer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from onnx import TensorProto, helper, numpy_helper

import quantpipe
from quantpipe.errors import HardwareError

DATASET = {"samples": {"calibrate": 16, "search": 16, "evaluate": 16}}


def file(path: Path, depth: int, block: int, bits: int = 4, *, zeros: bool = True) -> Path:
    """Write a MatMulNBits of random codes, scales and packed zero points."""
    rng, features, blocks = np.random.default_rng(0), 6, -(-depth // block)
    held = {"b": rng.integers(0, 256, (features, blocks, block * bits // 8)).astype(np.uint8)}
    held["s"] = rng.uniform(0.001, 0.01, features * blocks).astype(np.float32)
    if zeros:
        held["z"] = rng.integers(0, 256, features * -(-blocks * bits // 8)).astype(np.uint8)
    node = helper.make_node(
        "MatMulNBits", ["x", *held], ["y"], name="dense", domain="com.microsoft", K=depth, N=features, bits=bits,
        block_size=block,
    )  # fmt: skip
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", s]) for n, s in (("x", depth), ("y", features))]
    graph = helper.make_graph(
        [node], "net", ports[:1], ports[1:], [numpy_helper.from_array(a, n) for n, a in held.items()]
    )
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=domains, ir_version=10), path)
    return path


def run(path: Path, depth: int, hardware: Any = "ort_matmul_nbits") -> Any:
    samples = np.random.default_rng(1).standard_normal((80, depth)).astype(np.float32)
    return quantpipe.quantize(path, samples, hardware, dataset=DATASET, recover="none").report


@pytest.mark.sliced(15)
@pytest.mark.parametrize("zeros", [True, False])
@pytest.mark.parametrize(
    ("depth", "block", "bits"),
    [
        (128, 16, 4), (128, 32, 4), (128, 64, 4), (512, 128, 4), (512, 256, 4), (1024, 512, 4), (1024, 1024, 4),
        (100, 32, 4), (100, 64, 4), (100, 128, 4), (600, 512, 4), (128, 32, 8), (128, 64, 8),
    ],
)  # fmt: skip
def test_integers_of_every_block_size_are_kept(depth: int, block: int, bits: int, zeros: bool, tmp_path: Path) -> None:
    report = run(file(tmp_path / "m.onnx", depth, block, bits, zeros=zeros), depth)
    part = report["imported"]
    assert (part["weight_differing"], part["weight_integers"]) == (0, 6 * depth)
    assert not [row for row in part["changed"] if row["kind"] == "weight"]
    assert report["agreement"]["differing"] == 0
    assert (report["outputs"][0]["sqnr_db"] or np.inf) > 90


def test_what_a_device_cannot_keep_is_said_with_its_loss(tmp_path: Path) -> None:
    report = run(file(tmp_path / "m.onnx", 128, 32), 128, "ort_cpu")
    (said,) = [text for text in report["warnings"] if "other integers on this device" in text]
    assert "a scale for every 32 integers, which no device here has" in said and "dB from the file's" in said


def test_nothing_is_said_where_all_is_kept(tmp_path: Path) -> None:
    report = run(file(tmp_path / "m.onnx", 128, 32), 128)
    assert not [text for text in report["warnings"] if "other integers on this device" in text]


@pytest.mark.parametrize(
    ("block", "found"),
    [
        ({"size": 48}, r"weights.block.size.* is 48; legal are 8, 16, .*512"),
        ({"size": 32, "given_sizes": [48]}, r"weights.block.given_sizes.* has 48; legal are"),
    ],
)
def test_other_sizes_in_a_hardware_file_are_refused(block: dict[str, Any], found: str, tmp_path: Path) -> None:
    hardware = {"option": "ort_matmul_nbits", "weights": {"block": block}}
    with pytest.raises(HardwareError, match=found):
        run(file(tmp_path / "m.onnx", 128, 32), 128, hardware)


def test_given_sizes_are_for_float_scales_alone(tmp_path: Path) -> None:
    content = yaml.safe_load(Path("conf/hardware/npu_w4_blocks.yaml").read_text())
    content["weights"]["block"]["given_sizes"] = [64]
    with pytest.raises(HardwareError, match=r"given_sizes.* is given with multiplier_bits"):
        run(file(tmp_path / "m.onnx", 128, 32), 128, content)
