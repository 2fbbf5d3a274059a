"""Train the numbers of a plan: weights, biases and ranges, by gradients through the rounding.

Takes what a plan is made from, and samples; gives overrides, as every step of recovery does. The loss is what the
outputs lose against the float model's, or the cross entropy of labels, or both. Equal inputs give equal numbers: every
epoch has a seed of its own, and a checkpoint holds everything that the next epoch depends on.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quantpipe.errors import ConfigError
from quantpipe.plan import Overrides
from quantpipe.train.network import NotTrainable
from quantpipe.train.output_losses import OutputLosses, are_probabilities, label_loss
from quantpipe.train.quantized_network import QuantizedNetwork
from quantpipe.train.train_options import TrainOptions
from quantpipe.train.trained_state import TrainedState
from quantpipe.train.training_blocks import TrainingBlock, blocks_of
from quantpipe.train.training_data import MSE, OutputTarget, TrainingData
from quantpipe.train.training_pieces import TrainingPiece, Values, joined, pieces_of

Progress = Callable[[int, int, str], None]
Arrays = Mapping[str, NDArray[Any]]

MOMENTUM = 0.9
"""Of `optimizer: sgd`."""


class NotConverged(Exception):
    """A loss or a learned number that is not finite; the text gives the epoch."""


class TrainingCheckpoint(Protocol):
    """Keep arrays between two runs of the program."""

    def read(self, key: str) -> Arrays | None:
        """Return the arrays kept under a key, or None."""

    def write(self, key: str, layer: Arrays) -> None:
        """Keep arrays under a key."""


@dataclass(frozen=True, eq=False)
class Trained:
    """Hold the learned numbers, the mean loss of each epoch, and a sentence for the report."""

    overrides: Overrides
    curve: tuple[float, ...]
    note: str


def train(
    state: TrainedState,
    data: TrainingData,
    options: TrainOptions,
    *,
    seed: int,
    progress: Progress,
    kept: TrainingCheckpoint,
) -> Trained:
    """Return the numbers that training gives a plan.

    `options`: what is learned, and how. `progress`: called with (epochs done, epochs in all, a text). Raises
    NotTrainable for a node without gradients, or where nothing is learned. Raises NotConverged where the loss or a
    learned number is not finite. Raises ConfigError for a device that is absent.
    """
    device = device_of(options)
    with _arithmetic(options):
        return _trained(state, data, options, device, seed=seed, progress=progress, kept=kept)


def _trained(
    state: TrainedState,
    data: TrainingData,
    options: TrainOptions,
    device: torch.device,
    *,
    seed: int,
    progress: Progress,
    kept: TrainingCheckpoint,
) -> Trained:
    network = QuantizedNetwork(state, options, device)
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise NotTrainable(f"nothing of this model is learned on this device: {network.summary}")
    compared = tuple(dict.fromkeys((*(target.output for target in data.targets), data.output)))
    size = state.graph.fixed_batch or options.batch
    pieces = pieces_of(data.samples, size, lambda inputs: network.plain(inputs, compared), device)
    run = _Training(network, pieces, data, options, seed=seed, progress=progress)
    run.resume(kept, _key(state, data, options, seed))
    curve = run.all()
    network.eval()
    first, last = (f"{curve[0]:.3g}", f"{curve[-1]:.3g}") if curve else ("", "")
    losses = f", loss of the epochs {first} to {last}" if curve else ""
    return Trained(network.overrides(), curve, f"{network.summary}, {options.epochs} epochs{losses}")


@contextmanager
def _arithmetic(options: TrainOptions) -> Iterator[None]:
    """Let torch use a number of threads, and on CUDA whole float32 products and convolutions that repeat their results.

    More threads than one wait for each other in every op. Convolutions on CUDA would round operands to 10 bits (TF32),
    which moves results across the roundings of the device.
    """
    threads, cudnn = torch.get_num_threads(), torch.backends.cudnn
    before = cudnn.allow_tf32, cudnn.deterministic
    torch.set_num_threads(options.threads)
    if options.device == "cuda":
        cudnn.allow_tf32, cudnn.deterministic = False, True
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        cudnn.allow_tf32, cudnn.deterministic = before


class _Training:
    """The loop over blocks and epochs."""

    def __init__(
        self,
        network: QuantizedNetwork,
        pieces: Sequence[TrainingPiece],
        data: TrainingData,
        options: TrainOptions,
        *,
        seed: int,
        progress: Progress,
    ) -> None:
        self.network, self.pieces, self.data, self.options = network, pieces, data, options
        self.seed, self.progress = seed, progress
        graph = network.state.graph
        outputs = tuple(o.name for o in graph.outputs)
        whole = TrainingBlock(tuple(graph.nodes), tuple(graph.input_names), outputs)
        blocks = options.scope == "blocks"
        self.blocks = blocks_of(graph, network.learned_nodes, network.fused_nodes) if blocks else (whole,)
        self.probable = all(are_probabilities(piece.references[data.output]) for piece in pieces)
        """Whether the float network's scores are probabilities; those of the quantized one need not add up to 1."""
        self.curve: list[float] = []
        self.done = (0, 0)  # (blocks, epochs of the next one)
        self.optimizer_state: dict[str, NDArray[Any]] = {}
        self.start: float | None = None
        """The first loss of a block, which penalties are relative to."""
        self.kept: TrainingCheckpoint | None = None
        self.key = ""

    def resume(self, kept: TrainingCheckpoint, key: str) -> None:
        """Go on from the last checkpoint, if there is one."""
        self.kept, self.key = kept, key
        found = kept.read(key)
        if found is None:
            return
        parts = {name.removeprefix("network/"): v for name, v in found.items() if name.startswith("network/")}
        self.network.load_state_dict({name: torch.from_numpy(np.array(v)) for name, v in parts.items()})
        self.curve = found["curve"].tolist()
        self.done = (int(found["done"][0]), int(found["done"][1]))
        self.start = float(found["start"])
        self.optimizer_state = {name: v for name, v in found.items() if name.startswith("optimizer/")}

    def all(self) -> tuple[float, ...]:
        """Train every block; return the mean loss of each epoch."""
        first, epochs = self.done
        for number in range(first, len(self.blocks)):
            self._train_block(number, epochs if number == first else 0)
        return tuple(self.curve)

    def _train_block(self, number: int, begun: int) -> None:
        block, options = self.blocks[number], self.options
        inner = options.scope == "blocks"
        pieces = self._inner_pieces(block) if inner else list(self.pieces)
        targets = [OutputTarget(name, MSE) for name in block.targets] if inner else self.data.targets
        soften = None if self.data.soften is None else partial(self.data.soften, temperature=options.temperature)
        losses = OutputLosses(targets, [piece.references for piece in pieces], soften)
        optimizer = self._optimizer(block)
        if begun:
            _restore(optimizer, self.optimizer_state)
        steps = sum(1 if p.whole else math.ceil(len(p) / self.batch) for p in pieces)
        if not begun:
            self.start = None
        for epoch in range(begun, options.epochs):
            self.network.train()
            self.network.generator.manual_seed(_seed(self.seed, number, epoch))
            total = seen = 0.0
            for step, batch in enumerate(self._batches(pieces, _seed(self.seed, number, epoch))):
                place, places = epoch * steps + step, options.epochs * steps
                _set_rates(optimizer, rate_factor(place, places, options.rise))
                value, loss = self._loss(batch, block, losses, done=place / places)
                if not math.isfinite(value):
                    raise NotConverged(f"not converged: the loss is {value} in epoch {epoch + 1}")
                self.start = value if self.start is None else self.start
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if epoch:  # every sample was seen once
                    self.network.ranges.bound()
                total, seen = total + value, seen + 1
            if not all(bool(torch.isfinite(value).all()) for value in self.network.state_dict().values()):
                raise NotConverged(f"not converged: a learned number is not finite after epoch {epoch + 1}")
            self.curve.append(total / max(seen, 1))
            self._tell(number, epoch + 1)
            self._write(number, epoch + 1, optimizer)

    @property
    def batch(self) -> int:
        """Return the samples of a training step."""
        return self.network.state.graph.fixed_batch or self.options.batch

    def _loss(
        self, batch: TrainingPiece, block: TrainingBlock, losses: OutputLosses, *, done: float
    ) -> tuple[float, Tensor]:
        """Return the loss of a batch as a number, and with the penalties of the algorithms."""
        network, options = self.network, self.options
        outputs = network(self._mixed(batch), block.targets, block.nodes)
        parts = []
        if options.loss != "labels":
            parts.append(losses(batch.references, outputs))
        if options.needs_labels and batch.labels is not None:
            parts.append(label_loss(outputs[self.data.output], batch.labels, probable=self.probable))
        loss = torch.stack(parts).sum()
        value = float(loss.detach())
        penalty = network.penalty(block.nodes, done)
        if penalty is not None:  # in proportion to what there is to lose
            loss = loss + (value if self.start is None else self.start) * penalty
        if options.range_decay:
            loss = loss + options.range_decay * network.ranges.decay().to(loss)
        return value, loss

    def _batches(self, pieces: Sequence[TrainingPiece], seed: int) -> Iterator[TrainingPiece]:
        """Yield batches in a random order: samples of one piece are mixed, pieces of other shapes follow."""
        generator = torch.Generator().manual_seed(seed)
        for place in torch.randperm(len(pieces), generator=generator).tolist():
            yield from pieces[place].batches(self.batch, generator)

    def _mixed(self, piece: TrainingPiece) -> Values:
        """Return what a block reads: elements of the quantized network, and some of the float one (QDrop)."""
        if self.options.drop == 0 or piece.read is piece.inputs:
            return piece.read
        found = {}
        for name, value in piece.read.items():
            if not value.is_floating_point():
                found[name] = value
                continue
            random = torch.rand(value.shape, generator=self.network.generator, device=value.device)
            found[name] = torch.where(random < self.options.drop, piece.inputs[name], value)
        return found

    def _inner_pieces(self, block: TrainingBlock) -> list[TrainingPiece]:
        """Return the tensors at both ends of a block: of the float network, and those that the quantized one reads."""
        self.network.eval()
        before = list(self.network.state.graph.nodes)
        before = before[: before.index(block.nodes[0])]
        found = []
        for batch in (batch for piece in self.pieces for batch in piece.batches(self.batch)):
            real = self.network.plain(batch.inputs, block.sources, before)
            with torch.no_grad():
                read = self.network(batch.inputs, block.sources, before)
            found.append(TrainingPiece(real, self.network.plain(real, block.targets, block.nodes), None, read))
        return joined(found)

    def _optimizer(self, block: TrainingBlock) -> torch.optim.Optimizer:
        options = self.options
        values, scales = self.network.parameters_of(block.nodes)
        groups = [
            {"params": values, "lr": options.learning_rate, "rate": options.learning_rate,
             "weight_decay": options.weight_decay},
            {"params": scales, "lr": options.scale_rate, "rate": options.scale_rate, "weight_decay": 0.0},
        ]  # fmt: skip
        groups = [group for group in groups if group["params"]]
        if not groups:
            groups = [{"params": [torch.nn.Parameter(torch.zeros(()))], "lr": 0.0, "rate": 0.0}]
        if options.optimizer == "sgd":
            return torch.optim.SGD(groups, momentum=MOMENTUM)
        return torch.optim.Adam(groups)

    def _tell(self, number: int, epoch: int) -> None:
        total = len(self.blocks) * self.options.epochs
        block = f"block {number + 1} of {len(self.blocks)}, " if len(self.blocks) > 1 else ""
        note = f"{block}epoch {epoch} of {self.options.epochs}, loss {self.curve[-1]:.3g}"
        self.progress(number * self.options.epochs + epoch, total, note)

    def _write(self, number: int, epoch: int, optimizer: torch.optim.Optimizer) -> None:
        if self.kept is None:
            return
        ended = epoch >= self.options.epochs
        arrays: dict[str, NDArray[Any]] = {
            "curve": np.asarray(self.curve, np.float64),
            "start": np.asarray(math.nan if self.start is None else self.start),
            "done": np.asarray((number + 1, 0) if ended else (number, epoch)),
        }
        arrays |= {f"network/{name}": value.cpu().numpy() for name, value in self.network.state_dict().items()}
        if not ended:
            for index, entries in optimizer.state_dict()["state"].items():
                for name, value in entries.items():
                    if value is not None:
                        arrays[f"optimizer/{index}/{name}"] = torch.as_tensor(value).cpu().numpy()
        self.kept.write(self.key, arrays)


def _restore(optimizer: torch.optim.Optimizer, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Give an optimizer the state that a checkpoint holds."""
    state = optimizer.state_dict()
    found: dict[int, dict[str, Any]] = {}
    for key, value in arrays.items():
        _, index, name = key.split("/")
        found.setdefault(int(index), {})[name] = torch.from_numpy(np.array(value))
    optimizer.load_state_dict({**state, "state": found})


def rate_factor(step: int, steps: int, rise: float) -> float:
    """Return the factor on the rates in a step (from 0): a cosine, times a line that reaches 1 after a share `rise`.

    Adam's moments are empty at first, so its first steps move every number by the whole rate.
    """
    line = min(1.0, (step + 1) / (rise * steps)) if rise else 1.0
    return line * 0.5 * (1 + math.cos(math.pi * step / steps))


def _set_rates(optimizer: torch.optim.Optimizer, factor: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = group["rate"] * factor


def device_of(options: TrainOptions) -> torch.device:
    """Return the device to train on. Raises ConfigError for one that is absent."""
    if options.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("is cuda, and torch finds no such device; legal here is cpu", where="train.device")
    return torch.device(options.device)


def _seed(seed: int, block: int, epoch: int) -> int:
    return int(np.random.SeedSequence([seed, block, epoch]).generate_state(1, np.uint64)[0] >> 1)


def _key(state: TrainedState, data: TrainingData, options: TrainOptions, seed: int) -> str:
    """Return a digest of everything that the learned numbers follow from."""
    known = (options, seed, data.samples.digest, data.targets, data.output)
    digest = hashlib.blake2b(repr(known).encode(), digest_size=16)
    digest.update(state.graph.model_hash.encode())
    for name, q in state.plan.quantizers.items():
        digest.update(repr((name, float(q.scale), q.zero_point, q.qmin, q.qmax)).encode())
    for weight in state.plan.weights.values():
        digest.update(weight.digest)
    for node, bias in state.overrides.biases.items():
        digest.update(node.encode())
        digest.update(np.ascontiguousarray(bias).data)
    for name, norm in (state.norms if options.fold else {}).items():
        digest.update(repr((name, norm.epsilon)).encode())
        for values in (norm.gamma, norm.beta, norm.mean, norm.variance, norm.bias):
            digest.update(np.ascontiguousarray(values).data)
    return f"train-{digest.hexdigest()}"
