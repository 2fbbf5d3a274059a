"""Recurrent layers that a user's own file quantizes at run time: onnxruntime gives each thread's rows a scale."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnxruntime.quantization import QuantType, quantize_dynamic

import quantpipe
from quantpipe.api.progress import QuantpipeWarning
from quantpipe.graph import execute
from quantpipe.graph.execute import Session
from quantpipe.graph.session_options import carried
from tests.ops.line import hardware
from tests.recurrent.nets import classifier


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> onnx.ModelProto:
    """A classifier of frames with a DynamicQuantizeLSTM and a MatMulInteger, as onnxruntime's tool writes it."""
    folder = tmp_path_factory.mktemp("own")
    onnx.save(classifier("LSTM", 20), folder / "float.onnx")
    quantize_dynamic(folder / "float.onnx", folder / "model.onnx", weight_type=QuantType.QInt8)
    return onnx.load(folder / "model.onnx")


def frames(count: int) -> np.ndarray:
    """Samples `[count, 20, 6]` whose loudness varies, so that rows of other threads have another scale."""
    rng = np.random.default_rng(0)
    return (rng.standard_normal((count, 20, 6)) * rng.uniform(0.05, 3, (count, 1, 1))).astype(np.float32)


def test_results_do_not_depend_on_the_number_of_threads(quantized: onnx.ModelProto) -> None:
    assert "DynamicQuantizeLSTM" in {n.op_type for n in quantized.graph.node}
    model, feeds = ir.from_proto(quantized), {"x": frames(64)}
    one, two = (Session(model, threads=n).run(feeds)["scores"] for n in (1, 2))
    np.testing.assert_array_equal(one, two)


def test_a_file_with_such_a_layer_holds_the_searched_integers(
    quantized: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions of the comparison have different numbers of threads on machines with several cores."""
    monkeypatch.setattr(execute, "available_cores", lambda: 2)
    path = tmp_path / "model.onnx"
    onnx.save(quantized, path)
    found = quantpipe.quantize(path, {"x": frames(96)}, "ort_cpu", recover="none", executor="serial")
    assert found.report["agreement"]["differing"] == 0


@pytest.mark.parametrize("keep", ["all", "none"])
def test_no_session_option_changes_such_a_layer(quantized: onnx.ModelProto, tmp_path: Path, keep: str) -> None:
    """Weights that would need exact kernels are exact as uint8 instead: the layer computes what it computed before."""
    path = tmp_path / "model.onnx"
    onnx.save(quantized, path)
    with pytest.warns(QuantpipeWarning, match="Exact kernels for int8 would change .*use hardware.isa=any"):
        found = quantpipe.quantize(
            path,
            {"x": frames(96)},
            hardware("ort_cpu", isa="vnni"),
            keep=keep,
            recover="none",
            executor="serial",
        )
    assert carried(ir.from_proto(found.model)) == {}
    assert found.report["agreement"]["differing"] == 0
