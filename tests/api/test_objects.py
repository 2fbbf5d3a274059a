"""From Python, estimators are objects of the caller's, and the simulated model is an object that runs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import cloudpickle
import numpy as np
import onnx
import onnxruntime as ort
import pytest
import yaml

import quantpipe
from quantpipe import extend
from quantpipe.calibrate.estimators import MaxRange
from quantpipe.errors import ArtifactError, ConfigError, DataError, ModelError
from quantpipe.extend import Extension, Layer, LayerDecision
from quantpipe.types import Range, TensorSchema, TensorStats
from tests.api.nets import QUICK, images, small_net


@dataclass(frozen=True)
class Share:
    """A share of everything that calibration saw."""

    needs_histogram: ClassVar[bool] = False
    needs_batches: ClassVar[bool] = False
    factor: float = 0.5

    def __call__(self, stats: TensorStats, bits: int, schema: TensorSchema) -> Range:
        found = MaxRange()(stats, bits, schema)
        return Range(found.low * self.factor, found.high * self.factor)


class Loose:
    needs_histogram = needs_batches = False

    def __call__(self, stats: TensorStats, bits: int, schema: TensorSchema) -> Range:
        return Range(0.0, 1.0)


@pytest.fixture(autouse=True)
def few_samples() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def ranges(threshold: Any, folder: Path | None = None) -> dict[str, Range]:
    given: dict[str, Any] = {"precision": "none", "recover": "none", "executor": "serial", "evaluate": QUICK}
    with quantpipe.Pipeline(small_net(), images(), "ort_cpu", threshold=threshold, folder=folder, **given) as pipeline:
        return dict(pipeline.search().strategy.ranges)


@pytest.mark.program
def test_an_estimator_may_be_an_object() -> None:
    whole, half = ranges("max_range"), ranges(Share())
    assert whole == ranges(Share(1.0)) == ranges(MaxRange())
    assert half == {key: Range(found.low / 2, found.high / 2) for key, found in whole.items()}
    assert ranges({"activations": Share(), "weights": {"method": "max_range"}}) == half


def test_its_fields_belong_to_the_run(tmp_path: Path) -> None:
    found = ranges(Share(), tmp_path)
    assert ranges(Share(), tmp_path) == found and "factor=0.5" in (tmp_path / "config.yaml").read_text()
    with pytest.raises(ArtifactError, match=r"belongs to another search .threshold: 'Share.factor=0\.5."):
        ranges(Share(0.75), tmp_path)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (Loose(), "threshold: is a Loose, which is no dataclass"),
        (Share, r"threshold: is <class .*Share'>; legal are the name of an option"),
        (3, "threshold: is 3; legal are the name of an option, a mapping of its keys, and an estimator"),
        ({"activations": abs}, "threshold: is <built-in function abs>; legal are"),
        ({"activation": Share()}, "threshold.activation: is no key .did you mean 'activations'"),
    ],
)
def test_what_is_no_estimator_is_refused(given: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ranges(given)


@pytest.mark.sliced(2)
@pytest.mark.parametrize("device", ["ort_cpu", "vta"])
def test_the_simulated_model_runs_with_the_integers_of_the_realized_one(device: str) -> None:
    model = quantpipe.example_model()
    inputs = np.random.default_rng(0).random((5, 1, 8, 8), np.float32)
    samples = np.random.default_rng(1).random((64, 1, 8, 8), np.float32)
    with quantpipe.Pipeline(model, samples, device, recover="none", evaluate=QUICK) as pipeline:
        simulated, written = pipeline.simulate(), pipeline.realize().model
    stored = [t for t in simulated.tensors if f"{t}_q" in {o for n in written.graph.node for o in n.output}]
    assert {"stem.out", "pool.out"} <= {*stored} and simulated.inputs == ("image",)
    written.graph.output.extend(onnx.ValueInfoProto(name=f"{t}_q") for t in stored)
    session = ort.InferenceSession(written.SerializeToString())
    logits, *realized = session.run(["logits", *(f"{t}_q" for t in stored)], {"image": inputs})
    integers = simulated.integers({"image": inputs})
    for tensor, wanted in zip(stored, realized, strict=True):
        np.testing.assert_array_equal(integers[tensor], wanted, tensor)
        assert np.ptp(wanted.astype(int)) > 0
    np.testing.assert_allclose(simulated(inputs)["logits"], logits, atol=1e-6)
    for bad, error, said in (
        ({"imag": inputs}, DataError, "did you mean 'image'"),
        ({}, DataError, "gives no image; the model reads image"),
        (inputs[0], ModelError, "has 3 axes instead of 4"),
    ):
        with pytest.raises(error, match=said):
            simulated(bad)


def halves(layer: Layer) -> LayerDecision:
    return LayerDecision({t: Range(0.5 * r.low, 0.5 * r.high) for t, r in layer.ranges.items() if t in layer.open})


def quarters(layer: Layer) -> LayerDecision:
    return LayerDecision({t: Range(0.25 * r.low, 0.25 * r.high) for t, r in layer.ranges.items() if t in layer.open})


def test_calibrators_may_be_objects() -> None:
    """Without a package; another object of the same patterns takes the place of the first."""
    given: dict[str, Any] = {"precision": "none", "recover": "none", "executor": "serial", "evaluate": QUICK}
    whole, found = ranges("max_range"), {}
    names = set()
    try:
        for calibrator in (halves, quarters):
            extension = Extension(calibrators={"Conv": calibrator})
            options = {**given, "threshold": "max_range", "plugins": [extension]}
            with quantpipe.Pipeline(small_net(), images(), "ort_cpu", **options) as pipeline:
                found[calibrator] = dict(pipeline.search().strategy.ranges)
                names |= {*pipeline.settings.config["plugins"]}
    finally:
        extend.forget("given: Conv")
    assert names == {"given: Conv"} and not extend.has_calibrators()
    changed = {key for key in whole if found[halves][key] != whole[key]}
    assert changed and all(found[halves][key].high == whole[key].high / 2 for key in changed)
    assert all(found[quarters][key].high == whole[key].high / 4 for key in changed)


def test_patterns_may_be_objects() -> None:
    """Both for the check of a device and for a run: Conv, bias and HardSwish become one kernel of it."""
    from tests.extend.example import HARDWARE
    from tests.ops.line import Net

    from example_npu.extension import EXTENSION  # isort: skip

    net = Net()
    net.output(net.node("HardSwish", net.conv(net.input(None, 3, 8, 8), 3, 4, 3, 3)))
    spec = yaml.safe_load(HARDWARE.read_text())
    before = {name for name, _ in extend.installed()}
    try:
        fit = quantpipe.check(net.proto(), spec, plugins=[EXTENSION])
        given: dict[str, Any] = {"precision": "none", "recover": "none", "executor": "serial", "evaluate": QUICK}
        result = quantpipe.quantize(net.proto(), images(), spec, plugins=[EXTENSION], **given)
    finally:
        for name in {name for name, _ in extend.installed()} - before:
            extend.forget(name)
    assert fit.verdict.value == "fits" and fit.nodes == 1
    assert [node.op_type for node in result.model.graph.node].count("ConvHardSwishInteger") == 1
    assert result.report["agreement"]["differing"] == 0


def test_another_process_gets_the_object() -> None:
    extension = Extension(calibrators={"Conv": halves})
    try:
        extend.install_given(extension)
        sources = cloudpickle.loads(cloudpickle.dumps(extend.installed()))
        extend.forget("given: Conv")
        extend.ensure(sources)
        assert extend.has_calibrators()
    finally:
        extend.forget("given: Conv")


@dataclass(frozen=True, eq=False)
class Table:
    """An estimator with a long table, whose text leaves out most of it."""

    needs_histogram: ClassVar[bool] = False
    needs_batches: ClassVar[bool] = False
    factors: Any = None

    def __call__(self, stats: TensorStats, bits: int, schema: TensorSchema) -> Range:
        found, factor = MaxRange()(stats, bits, schema), float(self.factors[2500])
        return Range(found.low * factor, found.high * factor)


def test_an_estimator_with_other_elements_is_another_estimator(tmp_path: Path) -> None:
    """One element in the middle of a long array, which NumPy's text does not show."""
    one, other = np.ones(5000), np.ones(5000)
    other[2500] = 0.5
    assert repr(Table(one)) == repr(Table(other))
    ranges(Table(one), tmp_path)
    with pytest.raises(ArtifactError, match="belongs to another search"):
        ranges(Table(other), tmp_path)


def test_the_simulated_model_takes_doubles_and_cuts_to_the_models_own_batch() -> None:
    model = small_net()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 4
    given: dict[str, Any] = {"precision": "none", "recover": "none", "executor": "serial", "evaluate": QUICK}
    with quantpipe.Pipeline(model, images(), "vta", **given) as pipeline:
        simulated = pipeline.simulate()
        both = simulated(images()[:8].astype(np.float64))
        halves = [simulated(images()[k : k + 4]) for k in (0, 4)]
    for name in simulated.outputs:
        np.testing.assert_array_equal(both[name], np.concatenate([half[name] for half in halves]))
