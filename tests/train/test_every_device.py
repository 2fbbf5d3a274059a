"""What one epoch learns on each shipped device: the plan holds it, and the realized model computes as simulated."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from quantpipe.errors import ConfigError
from quantpipe.graph.view import Graph
from quantpipe.intake.load import load_graph
from quantpipe.plan import NO_OVERRIDES
from tests.ops.line import ArraySamples, line, normal_samples
from tests.verify.folders import DIGITS, hardware_files

torch = pytest.importorskip("torch")

from quantpipe.train.network import NotTrainable  # noqa: E402
from quantpipe.train.quantized_network import QuantizedNetwork  # noqa: E402
from quantpipe.train.train_options import TrainOptions  # noqa: E402
from quantpipe.train.trained_state import TrainedState  # noqa: E402
from tests.train.nets import share_differing, trained  # noqa: E402
from tests.train.test_training_loop import numbers  # noqa: E402

LSQ = TrainOptions("lsq", "lsq", epochs=1, batch=8, learning_rate=1e-3, scale_rate=1e-2)
RANGES_ALONE = {"hago_sample": replace(LSQ, scale_rate=0.5)}
"""Powers of two, of a network of which no weight is learned: only half an octave changes a number."""
IN_BLOCKS = {"npu_w4_blocks"}
"""Devices whose weights have blocks, whose integers stay."""
ALL_IN_FLOAT = {("hago_int16_acc", "digits_vit")}
IN_FLOAT_BLOCKS = {"ort_matmul_nbits"}
"""Devices whose weights have a float scale per block, and which store nothing else: nothing is learned there."""
NOT_EXACT = {
    # fixed-point products, rounded twice or by a multiplier of 31 bits
    "cmsis_nn": 0.01, "ethos_u": 0.15, "hexagon": 0.15, "stm32n6": 0.15, "tflite_16x8": 0.05, "tflite_int8": 0.15,
    # accumulators of few bits
    "hago_int16_acc": 0.5, "hago_sample": 0.4,
    # float32 sums in another order
    "academic": 0.01, "ascend_acl": 0.01, "int4_weights": 0.01,
}  # fmt: skip
"""Devices whose integers are not all those of the training's forward pass, with the largest share that may differ."""


@cache
def graph_of(model: str) -> Graph:
    path = DIGITS.with_name(f"{model}.onnx")
    return load_graph(path, lambda raw: next(iter(normal_samples(raw).batches(2))).inputs)


def images(graph: Graph, count: int) -> ArraySamples:
    rng = np.random.default_rng(5)
    return ArraySamples({graph.inputs[0].name: rng.random((count, 1, 8, 8)).astype(np.float32)})


@pytest.mark.sliced(7)
@pytest.mark.parametrize("device", [d for d in hardware_files() if d not in IN_FLOAT_BLOCKS])
def test_the_forward_pass_computes_the_integers(device: str) -> None:
    """Biases in whole steps and ties as on the device; without either, integers differ on most devices."""
    graph = graph_of("digits")
    found = line(graph, device, samples=images(graph, 8))
    strategy = found.strategy()
    plan = found.planner.plan(strategy)
    network = QuantizedNetwork(TrainedState(found.problem, strategy, NO_OVERRIDES, plan), LSQ, torch.device("cpu"))
    assert share_differing(network, plan, images(graph, 16)) <= NOT_EXACT.get(device, 0.0)


@pytest.mark.sliced(29)
@pytest.mark.parametrize("model", ["digits", "digits_vit"])
@pytest.mark.parametrize("device", hardware_files())
def test_what_is_learned_agrees(device: str, model: str) -> None:
    graph = graph_of(model)
    problem = line(graph, device, samples=images(graph, 8))
    if (device, model) in ALL_IN_FLOAT:
        with pytest.raises(ConfigError, match="no node of this model runs in integers on this hardware"):
            problem.strategy()
        return
    strategy = problem.strategy()
    if device in IN_FLOAT_BLOCKS:
        with pytest.raises(NotTrainable, match="nothing of this model is learned on this device: 0 of"):
            trained(problem, strategy, LSQ, images(graph, 16))
        return
    found = trained(problem, strategy, RANGES_ALONE.get(device, LSQ), images(graph, 16))
    plan = problem.planner.plan(strategy, found.overrides)
    assert numbers(plan) != numbers(problem.planner.plan(strategy))
    for tensor, weight in found.overrides.weights.items():
        np.testing.assert_array_equal(weight.centred(), plan.weights[tensor].centred())
    assert len(found.overrides.weights) == len(problem.topology.weights) or device in IN_BLOCKS
    form = problem.spec.realize if problem.spec.realize in ("integer", "qdq") else "integer"
    agreed = problem.agree(plan, form)
    assert agreed.differing == 0 and agreed.elements > 0
