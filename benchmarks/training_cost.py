"""What an epoch of training costs, in float passes of plain PyTorch, and the peak memory of a whole run with training.

ResNet-20 of the zoo, 512 images, 4 bits, LSQ, without labels. A float pass is forward and backward of the same layers
in `torch.nn`, in batches of the same size and without a step of an optimizer. Both in processor seconds, so that other
work on the machine counts little. Every measurement is a process of its own, and its peak memory is the kernel's figure
(`ru_maxrss`): the training's includes loading the model, calibration and search.

    python benchmarks/training_cost.py > benchmarks/results/training_cost.md
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from machine import processor

IMAGES, BATCH, WIDTHS, BLOCKS = 512, 32, (16, 32, 64), 3
Measured = tuple[list[float], float]
"""Processor seconds of each pass, and peak memory in MiB."""


def passes_of(marks: list[float]) -> Measured:
    """Return the seconds between marks but for the first, in which memory is taken up, and the peak memory."""
    seconds = [after - before for before, after in itertools.pairwise(marks)]
    return seconds[1:], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def training(passes: int) -> Measured:
    """Run quantpipe up to its plan, and train from there."""
    from deployable import device
    from recovery import CIFAR, ZOO

    import quantpipe
    from quantpipe.app import compose
    from quantpipe.artifacts.checkpoint import NoCheckpoint
    from quantpipe.data.sources.npz import NpzDataset
    from quantpipe.metrics.soft_kl import softness_of
    from quantpipe.plan import NO_OVERRIDES, Problem
    from quantpipe.train.train_options import TrainOptions
    from quantpipe.train.trained_state import TrainedState
    from quantpipe.train.training_data import KL, OutputTarget, TrainingData
    from quantpipe.train.training_loop import train

    zoo = ZOO / "data"
    samples = NpzDataset(
        calibrate={"path": str(zoo / "cifar10_lossless_calib.npz")},
        evaluate={"path": str(zoo / "cifar10_val.npz")},
        train={"path": str(zoo / "cifar10_calib.npz")},
        preprocess=CIFAR,
    )
    model = str(ZOO / "models" / "cifar10_resnet20.onnx")
    steps = quantpipe.Pipeline(model, samples, device("tensorrt"), precision="none", recover="none")._steps
    strategy, context, marks = steps.recovered.strategy, steps.context, list[float]()
    given, settings = context.inputs, context.settings
    topology = context.with_topology_of(strategy).topology
    problem = Problem(context.graph, topology, settings.spec, settings.schema)
    state = TrainedState(problem, strategy, NO_OVERRIDES, problem.plan(strategy, NO_OVERRIDES))
    data = TrainingData(given.training, (OutputTarget(given.output, KL),), given.output, {}, softness_of)
    options = TrainOptions(**(compose.option("train", "lsq") | {"epochs": passes + 1, "batch": BATCH}))

    def mark(*_: Any) -> None:
        marks.append(time.process_time())

    if len(given.training) != IMAGES:
        raise SystemExit(f"{len(given.training)} images are there to train on, and {IMAGES} are needed")
    mark()
    train(state, data, options, seed=0, progress=mark, kept=NoCheckpoint())
    return passes_of(marks)


def plain(passes: int) -> Measured:
    """Run forward and backward of ResNet-20 (normalizations folded) in plain PyTorch, on one thread as training."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, before: int, after: int) -> None:
            super().__init__()
            stride = after // before
            self.first, self.second = nn.Conv2d(before, after, 3, stride, 1), nn.Conv2d(after, after, 3, 1, 1)
            self.shortcut = nn.Conv2d(before, after, 1, stride) if stride > 1 else nn.Identity()

        def forward(self, x: Any) -> Any:
            return torch.relu(self.second(torch.relu(self.first(x))) + self.shortcut(x))

    torch.set_num_threads(1)
    torch.manual_seed(0)
    befores = (WIDTHS[0], *WIDTHS[:-1])
    blocks = [Block(b if i == 0 else a, a) for b, a in zip(befores, WIDTHS, strict=True) for i in range(BLOCKS)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTHS[-1], 10)]
    network = nn.Sequential(nn.Conv2d(3, WIDTHS[0], 3, 1, 1), nn.ReLU(), *blocks, *head)
    batches = [(torch.randn(BATCH, 3, 32, 32), torch.randint(10, (BATCH,))) for _ in range(IMAGES // BATCH)]
    marks = [time.process_time()]
    for _ in range(passes + 1):
        for images, labels in batches:
            network.zero_grad()
            nn.functional.cross_entropy(network(images), labels).backward()
        marks.append(time.process_time())
    return passes_of(marks)


def measured(of: Callable[[int], Measured], passes: int) -> Measured:
    """Return what a fresh process measures."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(of, (passes,))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--passes", type=int, default=4, help="passes of a process, after the first")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each kind, in turn")
    given = parser.parse_args()
    rounds = [(measured(plain, given.passes), measured(training, given.passes)) for _ in range(given.rounds)]
    seconds = [statistics.median(s for part in parts for s in part[0]) for parts in zip(*rounds, strict=True)]
    peaks = [max(part[1] for part in parts) for parts in zip(*rounds, strict=True)]
    ratios = sorted(statistics.median(t[0]) / statistics.median(p[0]) for p, t in rounds)
    lines = [
        "# What training costs", "",
        f"`python benchmarks/training_cost.py > benchmarks/results/training_cost.md` ({processor()}; one thread).", "",
        f"ResNet-20, {IMAGES} images, batch {BATCH}, 4 bits. Processor seconds are medians over {given.rounds}",
        f"processes of {given.passes} passes each.", "",
        "| | processor seconds | peak memory, MiB |", "|---|---:|---:|",
        f"| float pass of plain PyTorch, forward and backward | {seconds[0]:.2f} | {peaks[0]:.0f} |",
        f"| epoch of `train=lsq`; memory: with all that precedes it | {seconds[1]:.2f} | {peaks[1]:.0f} |", "",
        f"An epoch costs {seconds[1] / seconds[0]:.2f} float passes (by process {ratios[0]:.2f} to {ratios[-1]:.2f}).",
        "Float passes on two threads take at least half their processor seconds. Next to them an epoch, on one thread,",
        f"takes at most {2 * seconds[1] / seconds[0]:.1f} passes.",
    ]  # fmt: skip
    print("\n".join(lines))


if __name__ == "__main__":
    main()
