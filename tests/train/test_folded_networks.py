"""Networks of convolutions with their BatchNormalization, by each strategy: as the float network where statistics and
grids add nothing, from the plan, and folded into what the plan stores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantpipe.api.model import model_file
from quantpipe.intake.load import clean_graph, read_graph
from quantpipe.intake.rewrites.batch_norms import batch_norms
from quantpipe.plan import NO_OVERRIDES, Overrides
from tests.ops.line import Line, Net, hardware, line, normal_samples
from tests.zoo import requires_zoo, zoo

torch = pytest.importorskip("torch")


from quantpipe.train import (  # noqa: E402
    quantized_network,
    weight_parameters,
)
from quantpipe.train.quantized_network import QuantizedNetwork  # noqa: E402
from quantpipe.train.train_options import TrainOptions  # noqa: E402
from tests.train.nets import many, share_differing, state_of, trained  # noqa: E402
from tests.train.test_folded_convolutions import EPSILON, STRATEGIES  # noqa: E402

Array = np.ndarray[Any, Any]


def norm(net: Net, x: str, channels: int, off: int | None = None) -> str:
    """A BatchNormalization with gammas of both signs, of which one may be 0."""
    gamma = net.rng.uniform(0.5, 1.5, channels) * np.where(np.arange(channels) % 2, -1.0, 1.0)
    gamma[[] if off is None else [off]] = 0.0
    variance = net.constant(net.rng.uniform(0.5, 2.0, channels).astype(np.float32))
    constants = (net.constant(gamma.astype(np.float32)), net.floats(channels, scale=0.3), net.floats(channels))
    return net.node("BatchNormalization", x, *constants, variance, epsilon=EPSILON)


def normalized(off: int | None = None) -> Net:
    """A plain and a depthwise convolution, a pointwise one beside a shortcut, and two transposed ones."""
    net = Net(4)
    x = net.conv(net.input(None, 3, 6, 6), 3, 8, 3, 3, name="first", pads=[1, 1, 1, 1])
    x = net.node("Relu", norm(net, x, 8, off), name="clamp1")
    y = net.conv(x, 8, 8, 3, 3, group=8, name="depthwise", bias=False, pads=[1, 1, 1, 1])
    y = norm(net, net.conv(net.node("Relu", norm(net, y, 8)), 8, 8, 1, 1, name="point"), 8)
    z = net.node("Relu", net.node("Add", x, y, name="add"), name="clamp2")
    z = net.node("ConvTranspose", z, net.floats(8, 6, 2, 2, scale=0.3), name="up", strides=[2, 2])
    z = net.node("Relu", norm(net, z, 6), name="clamp3")
    z = net.node("ConvTranspose", z, net.floats(6, 2, 2, 2, scale=0.3), name="groups", group=2)
    z = net.node("Relu", norm(net, z, 4), name="clamp4")
    net.output(net.dense(net.node("Flatten", net.node("GlobalAveragePool", z)), 4, 5, name="dense"))
    return net


def made(folder: Path, device: str = "tensorrt", off: int | None = None) -> tuple[Line, dict[str, Any]]:
    """The net on a device, and its normalizations."""
    raw = read_graph(model_file(normalized(off).proto(), folder))
    feeds = next(iter(normal_samples(raw.graph).batches(2))).inputs
    graph = clean_graph(raw, feeds, isolate=False)
    norms = {name: n for name, n in batch_norms(raw.graph.model).items() if name in graph.producers}
    assert len(norms) == 5
    return line(graph, hardware(device)), norms


def network_of(
    problem: Line, norms: dict[str, Any], fold: int, overrides: Overrides = NO_OVERRIDES
) -> QuantizedNetwork:
    state = state_of(problem, problem.strategy(), overrides, norms)
    return QuantizedNetwork(state, TrainOptions("lsq", "lsq", fold=fold), torch.device("cpu"))


def float_and_fixed(network: QuantizedNetwork, problem: Line) -> tuple[Array, Array]:
    """The outputs of the float network, and of the trained one with fixed statistics."""
    name = problem.graph.outputs[0].name
    inputs = {n: torch.from_numpy(v) for n, v in problem.samples.inputs.items()}  # type: ignore[attr-defined]
    with torch.no_grad():
        return network.plain(inputs, [name])[name].numpy(), network.eval()(inputs, [name])[name].numpy()


@pytest.mark.parametrize("off", [None, 2])
def test_without_grids_and_with_fixed_statistics_every_strategy_is_the_float_network(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, off: int | None
) -> None:
    problem, norms = made(tmp_path, off=off)
    for strategy in STRATEGIES:
        network = network_of(problem, norms, strategy)
        rounded = float_and_fixed(network, problem)[1]
        with monkeypatch.context() as patch:
            for module in (quantized_network, weight_parameters):
                patch.setattr(module, "fake_quantize", lambda x, *_: x)
            patch.setattr(quantized_network, "straight_through", lambda value, real: real)
            expected, found = float_and_fixed(network, problem)
        assert np.ptp(expected) > 0.1 and np.abs(rounded - expected).max() > 1e-4
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_forward_pass_computes_the_integers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, strategy: int) -> None:
    """With fixed statistics; the folded bias is in whole steps, without which integers differ."""
    problem, norms = made(tmp_path)
    network = network_of(problem, norms, strategy)
    plan = problem.planner.plan(problem.strategy(), network.overrides())
    assert len(network.folded) == 3 and share_differing(network, plan, problem.samples) == 0.0
    monkeypatch.setattr(QuantizedNetwork, "_in_steps", lambda self, node, real, scale: real)
    assert share_differing(network, plan, problem.samples) > 0.0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_sixteen_bits_are_the_float_network(strategy: int, tmp_path: Path) -> None:
    problem, norms = made(tmp_path, "mixed_npu")
    network = QuantizedNetwork(
        state_of(problem, problem.strategy(16), norms=norms), TrainOptions("lsq", fold=strategy), torch.device("cpu")
    )
    assert len(network.folded) == 3
    expected, found = float_and_fixed(network, problem)
    np.testing.assert_allclose(found, expected, atol=5e-4 * np.ptp(expected))


@pytest.mark.parametrize(
    ("device", "strategy"), [*(("tensorrt", s) for s in STRATEGIES), ("vta", 2), ("fbgemm", 4), ("tflite_int8", -1)]
)
def test_training_begins_at_the_plan(device: str, strategy: int, tmp_path: Path) -> None:
    """Before the first step the integers are the plan's, and the biases those that recovery gave."""
    problem, norms = made(tmp_path, device)
    given = {"first": np.linspace(-1.0, 1.0, 8)}
    network = network_of(problem, norms, strategy, Overrides({}, given))
    assert len(network.folded) == (4 if device == "tflite_int8" else 3)
    found, plan = network.overrides(), network.state.plan
    for tensor, weight in found.weights.items():
        differing = np.count_nonzero(weight.centred() != plan.weights[tensor].centred())
        assert differing <= 0.01 * weight.values.size, tensor  # f · (w / f) may be beside a middle between integers
        np.testing.assert_allclose(weight.scale, plan.weights[tensor].scale, rtol=1e-6)
    np.testing.assert_allclose(found.biases["first"], given["first"], atol=1e-6)


@pytest.mark.parametrize(
    ("device", "strategy"), [*(("tensorrt", s) for s in STRATEGIES), ("vta", 3), ("fbgemm", 2), ("tflite_int8", 4)]
)
def test_what_is_learned_is_stored_as_it_was_evaluated(device: str, strategy: int, tmp_path: Path) -> None:
    problem, norms = made(tmp_path, device)
    options = TrainOptions("lsq", "lsq", fold=strategy, epochs=2, batch=16, learning_rate=1e-3)
    found = trained(problem, problem.strategy(), options, many(problem), norms=norms)
    plan = problem.planner.plan(problem.strategy(), found.overrides)
    for tensor, weight in found.overrides.weights.items():
        np.testing.assert_array_equal(weight.centred(), plan.weights[tensor].centred())
    assert problem.agree(plan, "integer").differing == 0


def test_no_factor_of_any_size_on_a_device_with_one_scale(tmp_path: Path) -> None:
    """Strategy -1 puts a factor on each channel's scale; a weight with one scale is folded."""
    problem, norms = made(tmp_path, "vta")
    assert not network_of(problem, norms, -1).folded


# --- a real model -----------------------------------------------------------------------------------------------------


@requires_zoo
@pytest.mark.grid
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_resnet20_agrees_after_a_short_epoch(strategy: int, tmp_path: Path) -> None:
    raw = read_graph(zoo("models/cifar10_resnet20_bn.onnx"))
    samples = normal_samples(raw.graph, 48)
    graph = clean_graph(raw, next(iter(samples.batches(2))).inputs, isolate=False)
    norms = {name: n for name, n in batch_norms(raw.graph.model).items() if name in graph.producers}
    problem = line(graph, "tensorrt", samples=samples)
    options = TrainOptions("lsq", "lsq", fold=strategy, epochs=1, batch=16)
    found = trained(problem, problem.strategy(), options, norms=norms)
    assert f"{len(norms)} with their BatchNormalization" in found.note and len(norms) == 19
    plan = problem.planner.plan(problem.strategy(), found.overrides)
    agreed = replace(problem, samples=normal_samples(graph, 4)).agree(plan, "integer")
    assert agreed.differing == 0 and agreed.elements > 0
