"""Thresholds against onnxruntime's own calibrators on ResNet-20 of the zoo: the same samples, the same tensors."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from quantpipe.calibrate.collector import StatsCollector
from quantpipe.calibrate.estimators import KL, MaxRange, Percentile
from quantpipe.types import Range, Symmetry, TensorSchema, TensorStats
from tests.zoo import requires_zoo, zoo

pytestmark = [pytest.mark.slow, requires_zoo]
ASYMMETRIC = TensorSchema(symmetry=Symmetry.ASYMMETRIC)
SAMPLES, BATCH = 16, 8
MEAN, STD = np.asarray([0.485, 0.456, 0.406]), np.asarray([0.229, 0.224, 0.225])


@pytest.fixture(scope="module")
def images() -> NDArray[np.float32]:
    with np.load(zoo("data/cifar10_calib.npz")) as data:
        pixels = data["images"][:SAMPLES]
    return ((pixels / 255 - MEAN) / STD).transpose(0, 3, 1, 2).astype(np.float32)


@pytest.fixture(scope="module")
def stats(images: NDArray[np.float32]) -> dict[str, TensorStats]:
    """Of every float tensor of the original model, run without optimizations as the calibrators do."""
    model = onnx.shape_inference.infer_shapes(onnx.load(zoo("models/cifar10_resnet20.onnx")))
    shown = {o.name for o in model.graph.output}
    floats = [v for v in model.graph.value_info if v.type.tensor_type.elem_type == onnx.TensorProto.FLOAT]
    model.graph.output.extend(v for v in floats if v.name not in shown)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    name, names = session.get_inputs()[0].name, [o.name for o in session.get_outputs()]
    collectors = {t: StatsCollector(t) for t in (name, *names)}
    for batch in np.split(images, SAMPLES // BATCH):
        for tensor, values in zip((name, *names), (batch, *session.run(names, {name: batch})), strict=True):
            collectors[tensor].update(values, 0)
    return {t: c.finish() for t, c in collectors.items()}


def theirs(method: str, images: NDArray[np.float32], folder: Path, **options: Any) -> dict[str, Range]:
    """What the calibrator of the installed onnxruntime decides, per tensor."""
    from onnxruntime.quantization.calibrate import CalibrationDataReader, CalibrationMethod, create_calibrator

    path = zoo("models/cifar10_resnet20.onnx")
    name = onnx.load(path).graph.input[0].name

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        batches = iter(np.split(images, SAMPLES // BATCH))

        def get_next(self) -> dict[str, NDArray[np.float32]] | None:
            batch = next(self.batches, None)
            return None if batch is None else {name: batch}

    calibrator = create_calibrator(
        path, None, str(folder / "augmented.onnx"), CalibrationMethod[method], extra_options=options
    )
    with contextlib.redirect_stdout(io.StringIO()):
        calibrator.collect_data(Reader())
        table = calibrator.compute_data().data
    return {t: Range(np.asarray(d.lowest).item(), np.asarray(d.highest).item()) for t, d in table.items()}


def test_max_range_is_minmax(stats: dict[str, TensorStats], images: NDArray[np.float32], tmp_path: Path) -> None:
    found = theirs("MinMax", images, tmp_path)
    common = set(found) & set(stats)
    assert len(common) >= 30
    for tensor in common:
        assert MaxRange()(stats[tensor], 8, ASYMMETRIC) == found[tensor], tensor


@pytest.mark.parametrize("percent", [99.0, 99.9])
@pytest.mark.parametrize("symmetric", [True, False])
def test_percentile_is_theirs_within_the_bins(
    stats: dict[str, TensorStats], images: NDArray[np.float32], tmp_path: Path, percent: float, symmetric: bool
) -> None:
    """Symmetric: of |x|. Else both cut half of the rest from each end, which we do for data of two signs only."""
    found = theirs("Percentile", images, tmp_path, percentile=percent, num_bins=4096, symmetric=symmetric)
    schema = TensorSchema() if symmetric else ASYMMETRIC
    common = [t for t in set(found) & set(stats) if symmetric or stats[t].minimum < 0.0 < stats[t].maximum]
    assert len(common) >= 10
    for tensor in common:
        s = stats[tensor]
        ours, other = Percentile(percent)(s, 8, schema), found[tensor]
        # Theirs is the border below or above the bin that ours lies in. Both grids have bins of at most limit / 2048.
        bins = 2 * s.limit / 2048
        assert abs(ours.high - other.high) <= bins, tensor
        # They cut a symmetric range to the observed minimum afterwards.
        assert symmetric or abs(ours.low - other.low) <= bins, tensor


def test_entropy_is_the_full_range_by_default(
    stats: dict[str, TensorStats], images: NDArray[np.float32], tmp_path: Path
) -> None:
    """Why ours differs from it: 128 bins on 128 levels leave a single candidate, the whole of the first batch."""
    found = theirs("Entropy", images, tmp_path)
    common = set(found) & set(stats)
    kept = [found[t].threshold / stats[t].absolute_maximum for t in common if stats[t].absolute_maximum > 0.0]
    assert np.median(kept) >= 0.97


def test_kl_clips_as_entropy_does_with_enough_bins(
    stats: dict[str, TensorStats], images: NDArray[np.float32], tmp_path: Path
) -> None:
    """With 512 bins on 64 levels theirs has a choice. It counts the bins at zero, we do not, and it merges by whole
    bins, so only the order of the results is the same: half of the thresholds lie within a quarter of the range."""
    found = theirs("Entropy", images, tmp_path, num_bins=512, num_quantized_bins=64)
    signed = [t for t in set(found) & set(stats) if stats[t].minimum < 0.0 < stats[t].maximum]
    apart = [
        abs(KL()(stats[t], 6, TensorSchema()).threshold - found[t].threshold) / stats[t].absolute_maximum
        for t in signed
    ]
    assert len(signed) >= 10 and np.median(apart) <= 0.25
