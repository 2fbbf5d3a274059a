"""The float model trained by the recipe of `training.py`, which is what the quantized ones are compared with."""

from __future__ import annotations

import math
import time
from typing import Any

import torch

from quantpipe.train.network import FloatNetwork
from quantpipe.train.output_losses import label_loss
from quantpipe.train.training_pieces import pieces_of

FLOAT = "float"


class FloatWeights:
    """The hooks of a float network whose weights and biases are learned."""

    def __init__(self, work: Any, place: Any) -> None:
        topology, graph = work.problem.topology, work.problem.graph
        kernels = (*topology.kernels, *topology.weighted)
        names = dict.fromkeys(t for k in kernels for t in (k.weight, k.bias) if t is not None)
        self.learned = {t: torch.nn.Parameter(torch.from_numpy(graph.constant(t).copy()).to(place)) for t in names}

    def made(self, tensor: str, value: Any) -> Any:
        return value

    def read(self, node: Any, port: int, value: Any) -> Any:
        return value

    def constant(self, node: Any, port: int, value: Any) -> Any:
        return self.learned.get(node.inputs[port], value)

    def call(self, node: Any, operands: list[Any]) -> None:
        return None


def float_trained(work: Any) -> None:
    """Train the weights and biases of a `Work`, and write the share of right answers."""
    started, job, output = time.time(), work.job, work.inputs.output
    place = torch.device(job.device)
    torch.set_num_threads(1)
    network, hooks = FloatNetwork.of(work.problem.graph, place), FloatWeights(work, place)
    pieces = pieces_of(work.inputs.training, 512, lambda inputs: {}, place)
    optimizer = torch.optim.Adam(hooks.learned.values(), job.rate)
    generator = torch.Generator().manual_seed(work.line.seed)
    steps = sum(math.ceil(len(piece) / job.batch) for piece in pieces) * job.epochs
    done = 0
    for _ in range(job.epochs):
        for piece in pieces:
            for batch in piece.batches(job.batch, generator):
                optimizer.param_groups[0]["lr"] = job.rate * 0.5 * (1 + math.cos(math.pi * done / steps))
                scores = network.run(batch.inputs, (output,), hooks)[output]
                optimizer.zero_grad()
                label_loss(scores, batch.labels, probable=False).backward()
                optimizer.step()
                done += 1
    right = total = 0
    with torch.no_grad():
        for piece in pieces_of(work.inputs.evaluate, 500, lambda inputs: {}, place):
            found = network.run(piece.inputs, (output,), hooks)[output].argmax(1)
            right, total = right + int((found == piece.labels).sum()), total + len(piece)
    work.write(FLOAT, {"top1": right / total, "differing": 0}, time.time() - started)
