"""Small problems to train on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from quantpipe.graph.execute import Session
from quantpipe.graph.normalize import expose
from quantpipe.intake.rewrites.batch_norms import BatchNorm
from quantpipe.plan import NO_OVERRIDES, Overrides
from quantpipe.simulate.simulator import bind, simulate
from quantpipe.train.quantized_network import QuantizedNetwork
from quantpipe.train.train_options import TrainOptions
from quantpipe.train.trained_state import TrainedState
from quantpipe.train.training_data import KL, OutputTarget, TrainingData
from quantpipe.train.training_loop import Trained, train
from quantpipe.types import QuantPlan, Samples, Strategy
from tests.ops.line import ArraySamples, Line, Net, hardware, hardware_data, line


def residual(seed: int = 3) -> Net:
    """Two convolutions around a shortcut, an average and a dense layer."""
    net = Net(seed)
    x = net.node("Relu", net.conv(net.input(None, 3, 8, 8), 3, 8, 3, 3, name="first", pads=[1, 1, 1, 1]), name="relu1")
    y = net.node("Relu", net.conv(x, 8, 8, 3, 3, name="second", pads=[1, 1, 1, 1]), name="relu2")
    z = net.node("Relu", net.node("Add", x, y, name="add"), name="relu3")
    pooled = net.node("Flatten", net.node("GlobalAveragePool", z, name="pool"), name="flat")
    net.output(net.dense(pooled, 8, 5, name="dense"))
    return net


def made(device: str = "tensorrt", bits: int = 4, net: Net | None = None) -> Line:
    """A residual net on a device, all at few bits."""
    data = hardware_data(device)
    changes = {name: {**(data.get(name) or {}), "bits": bits} for name in ("weights", "activations")}
    return line(net or residual(), hardware(device, **changes))


def state_of(
    problem: Line,
    strategy: Strategy,
    overrides: Overrides = NO_OVERRIDES,
    norms: Mapping[str, BatchNorm] | None = None,
) -> TrainedState:
    """Where training starts."""
    plan = problem.planner.plan(strategy, overrides)
    return TrainedState(problem.problem, strategy, overrides, plan, norms or {})


def trained(
    problem: Line, strategy: Strategy, options: TrainOptions, samples: Samples | None = None, **given: Any
) -> Trained:
    """Train on the samples of the line, by KL of the first output."""
    output = problem.graph.outputs[0].name
    data = TrainingData(samples or problem.samples, (OutputTarget(output, KL),), output)
    further: dict[str, Any] = {"seed": 0, "progress": lambda done, total, note: None, "kept": Memory()}
    return train(state_of(problem, strategy, norms=given.pop("norms", None)), data, options, **(further | given))


def share_differing(network: QuantizedNetwork, plan: QuantPlan, samples: Samples) -> float:
    """The share of the stored integers of nodes in which the forward pass and the simulation of a plan differ."""
    graph, topology = network.state.graph, network.state.problem.topology
    simulation = simulate(graph, topology, plan)
    stored = {t: n for t, n in simulation.rendered.integers.items() if t in plan.quantizers and t in graph.producers}
    model = bind(simulation.rendered.model, simulation.weights)
    inputs = next(iter(samples.batches(16))).inputs
    names = tuple(stored.values())
    integers = Session(expose(model, list(names)), where="simulated").run({**inputs, **simulation.scalars}, names)
    outputs = network.eval()({name: torch.from_numpy(values) for name, values in inputs.items()}, list(stored))
    steps = {t: np.rint(outputs[t].detach().numpy() / float(plan.quantizers[t].scale)) for t in stored}
    differing = sum(int(np.sum(steps[t] != integers[n])) for t, n in stored.items())
    return differing / sum(values.size for values in steps.values())


class Memory:
    """Checkpoints in memory; `stop_after`: raises KeyboardInterrupt in that write, after it."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.found: dict[str, dict[str, Any]] = {}
        self.writes, self.stop_after = 0, stop_after

    def read(self, key: str) -> Mapping[str, Any] | None:
        return self.found.get(key)

    def write(self, key: str, layer: Mapping[str, Any]) -> None:
        self.found[key] = {name: np.array(value) for name, value in layer.items()}
        self.writes += 1
        if self.writes == self.stop_after:
            raise KeyboardInterrupt


def many(problem: Line, count: int = 64, seed: int = 11, labels: int | None = None) -> ArraySamples:
    """More samples than a line has, labelled at random where asked for."""
    rng = np.random.default_rng(seed)
    arrays = {
        info.name: rng.standard_normal((count, *[d or 1 for d in info.shape[1:]])).astype(np.float32)
        for info in problem.graph.inputs
    }
    return ArraySamples(arrays, None if labels is None else rng.integers(0, labels, count))
