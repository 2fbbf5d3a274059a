"""Half-precision models through the whole line: the same integers in both models, and the file's own ends."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import quantpipe
from quantpipe.data import DigitsDataset
from quantpipe.errors import DataError
from quantpipe.verify.half_precision import without_end_casts
from tests.api.nets import QUICK, images, small_net
from tests.e2e.models import DIGITS
from tests.intake.half_models import BRAIN, HALF, to_half

pytestmark = pytest.mark.filterwarnings("ignore::quantpipe.api.progress.QuantpipeWarning")
ENDS = {HALF: "tensor(float16)", BRAIN: "tensor(float)"}


@pytest.mark.parametrize("form", ["qdq", "qoperator", "integer"])
@pytest.mark.parametrize("kind", ENDS)
@pytest.mark.program
def test_a_half_model_goes_through_and_keeps_its_ends(kind: int, form: str, tmp_path: Path) -> None:
    model = to_half(onnx.load(DIGITS), kind)
    result = quantpipe.quantize(model, DigitsDataset(), folder=tmp_path, realize=form, evaluate=QUICK)
    assert result.report["agreement"]["differing"] == 0
    session = ort.InferenceSession(result.model_path, providers=["CPUExecutionProvider"])
    assert [p.type for p in (*session.get_inputs(), *session.get_outputs())] == [ENDS[kind]] * 2
    assert [p.name for p in (*session.get_inputs(), *session.get_outputs())] == ["image", "logits"]
    assert quantpipe.verify(tmp_path).wrong is None


@pytest.mark.grid
def test_samples_of_float16_and_float32_are_the_same_samples(tmp_path: Path) -> None:
    model = to_half(small_net())
    plans = []
    for kind in (np.float16, np.float32):
        samples = images().astype(np.float16).astype(kind)
        plans.append(quantpipe.quantize(model, samples, folder=tmp_path / kind.__name__, evaluate=QUICK).plan)
    numbers = [{t: (float(q.scale), q.zero_point) for t, q in plan.quantizers.items()} for plan in plans]
    assert numbers[0] == numbers[1]


def test_a_sample_beyond_float16_is_refused_by_name() -> None:
    samples = images().astype(np.float32)
    samples[0].flat[0] = 1e5
    with pytest.raises(DataError, match="which float16 does not hold"):
        quantpipe.quantize(to_half(small_net()), samples, evaluate=QUICK)


@pytest.mark.grid
@pytest.mark.parametrize("fault", ["truncates", "scales"])
def test_a_certificate_does_not_look_through_other_ends(fault: str, tmp_path: Path) -> None:
    quantpipe.quantize(to_half(onnx.load(DIGITS)), DigitsDataset(), folder=tmp_path, evaluate=QUICK)
    path = tmp_path / "realize" / "model.onnx"
    model = onnx.load(path)
    cast = model.graph.node[0]
    assert cast.op_type == "Cast"
    if fault == "truncates":
        cast.attribute[0].i = onnx.TensorProto.INT32
    else:
        cast.op_type = "Neg"
        del cast.attribute[:]
    assert without_end_casts(model.graph).node[0].op_type == cast.op_type  # it stays, and is checked with the rest
