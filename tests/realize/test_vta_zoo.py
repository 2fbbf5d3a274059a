"""VTA's instruction streams of real networks: 0 elements differ from the simulated model, nor from the integer ONNX."""

from __future__ import annotations

import numpy as np
import pytest

from quantpipe.intake.load import load_graph
from tests.ops.line import ArraySamples, line
from tests.ops.test_zoo_agreement import line_of
from tests.realize.test_vta_form import run_vta, unpriced
from tests.zoo import requires_zoo, zoo

pytestmark = requires_zoo
MODELS = ("cifar10_resnet20", "kws_dscnn", "vww_mobilenet_v1_025", "ad_autoencoder")


@pytest.mark.grid
@pytest.mark.parametrize("name", MODELS)
def test_networks_of_the_zoo(name: str) -> None:
    made = line_of(name, "vta")
    plan = made.plan((8, 7), seed=1)
    found = run_vta(made, plan)
    assert found["differing"] == 0 and found["elements"], found
    assert unpriced(made, plan) == {}, "the cost of a layer is what is written"


@pytest.mark.slow
def test_a_network_for_imagenet() -> None:
    def samples(raw: object) -> ArraySamples:
        rng = np.random.default_rng(1)
        return ArraySamples({raw.inputs[0].name: rng.standard_normal((2, 3, 224, 224)).astype(np.float32)})  # type: ignore[attr-defined]

    graph = load_graph(
        zoo("models/imagenet_efficientnet_lite0.onnx"),
        lambda raw: next(iter(samples(raw).batches(2))).inputs,
        isolate=False,
    )
    made = line(graph, "vta", samples=samples(graph))
    plan = made.plan()
    assert run_vta(made, plan)["differing"] == 0
    assert made.agree(plan, "integer").differing == 0
