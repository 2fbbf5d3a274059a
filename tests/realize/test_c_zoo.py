"""The C form of real networks: 0 elements differ from the simulated model."""

from __future__ import annotations

import numpy as np
import pytest

from quantpipe.errors import HardwareError
from quantpipe.intake.load import load_graph
from quantpipe.realize.c import runner
from tests.ops.line import ArraySamples, line
from tests.ops.test_zoo_agreement import line_of
from tests.realize.executed import islands_in, run_c
from tests.zoo import requires_zoo, zoo

pytestmark = [requires_zoo, pytest.mark.skipif(runner.compiler() is None, reason=runner.missing_compiler())]
MODELS = ("cifar10_resnet20", "cifar10_resnet8_mlperf", "kws_dscnn", "ad_autoencoder")
DEVICES = ("ort_cpu", "vta", "tflite_int8", "cmsis_nn")


@pytest.mark.grid
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", MODELS)
def test_networks_of_the_zoo(name: str, device: str) -> None:
    made = line_of(name, device)
    plan = made.plan((8, 7), seed=1)
    if islands_in(made):
        with pytest.raises(HardwareError, match="stay in float"):
            run_c(made, plan)
        return
    found = run_c(made, plan)
    assert found["differing"] == 0 and found["elements"], found


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_a_network_for_imagenet(device: str) -> None:
    def samples(raw: object) -> ArraySamples:
        rng = np.random.default_rng(1)
        return ArraySamples({raw.inputs[0].name: rng.standard_normal((2, 3, 224, 224)).astype(np.float32)})  # type: ignore[attr-defined]

    graph = load_graph(
        zoo("models/imagenet_efficientnet_lite0.onnx"),
        lambda raw: next(iter(samples(raw).batches(1))).inputs,
        isolate=False,
    )
    made = line(graph, device, samples=samples(graph))
    if islands_in(made):
        with pytest.raises(HardwareError, match="stay in float"):
            run_c(made, made.plan())
        return
    found = run_c(made, made.plan())
    assert found["differing"] == 0 and found["elements"] > 1_000_000, found
