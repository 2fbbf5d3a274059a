"""A tensor that has no elements for some samples: statistics, integers and outputs come from the others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantpipe

SHORT, LONG = 16, 24


def net() -> onnx.ModelProto:
    """Return a convolution next to half of what is beyond the first 16 places, which short samples do not have."""
    nodes = [
        helper.make_node("Slice", ["x", "st", "en", "ax"], ["sl"]),
        helper.make_node("Mul", ["sl", "k"], ["c"]),
        helper.make_node("Conv", ["x", "w"], ["d"], pads=[1, 1]),
        helper.make_node("Concat", ["d", "c"], ["e"], axis=2),
        helper.make_node("GlobalAveragePool", ["e"], ["p"]),
        helper.make_node("Flatten", ["p"], ["y"]),
    ]
    held = {"st": np.array([SHORT]), "en": np.array([10**9]), "ax": np.array([2]), "k": np.float32(0.5)}
    held["w"] = np.random.default_rng(1).standard_normal((4, 4, 3)).astype(np.float32)
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", ["n", 4, "L"]), ("y", ["n", 4]))]
    graph = helper.make_graph(
        nodes, "net", ports[:1], ports[1:], [numpy_helper.from_array(np.asarray(a), n) for n, a in held.items()]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.sliced(12)
@pytest.mark.parametrize("hardware", ["ort_cpu", "esp32p4"])
@pytest.mark.parametrize("lengths", [(SHORT, LONG), (LONG, SHORT), (SHORT, SHORT)])
def test_lengths_with_and_without_elements(lengths: tuple[int, int], hardware: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    samples = [rng.standard_normal((4, lengths[number % 2])).astype(np.float32) for number in range(128)]
    onnx.save(net(), tmp_path / "m.onnx")
    dataset = {"samples": {"calibrate": 32, "search": 32, "evaluate": 32}}
    result = quantpipe.quantize(tmp_path / "m.onnx", samples, hardware, recover="none", dataset=dataset)
    assert result.report["agreement"]["differing"] == 0
    assert result.report["outputs"][0]["sqnr_db"] > 18
