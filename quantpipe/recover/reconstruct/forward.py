"""Running a model segment by segment, in float and simulated, on cached tensors.

Between segments a tensor that kernels store is kept as its integers, anything else as it is, in memory up to a limit
and on disk beyond it.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import prod
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from quantpipe import intmath
from quantpipe.arrays import Array
from quantpipe.graph.execute import Session, concurrency, release_memory
from quantpipe.graph.extract import part_of
from quantpipe.graph.view import Graph
from quantpipe.recover.reconstruct.activation_store import ActivationStore
from quantpipe.recover.reconstruct.segments import Segment
from quantpipe.simulate.simulator import bind_in_place, simulate
from quantpipe.types import Form, Quantizer, QuantPlan, Samples, TensorInfo, Topology

WORTH_RELEASING = 32 << 20
"""Bytes let go after which memory is given back: to ask the allocator after every layer takes small networks time, and
what stays with it until then is little beside what a layer needs."""


class Forward:
    """Compute both models' tensors at the cut that has been reached, for all batches of `samples`.

    A quarter of `memory_mb` is what they may take in memory together: the rest is for what runs on them, and files cost
    little (the system caches them). Batches run side by side, with the cores divided among them: layers are too short
    for threads to share each.
    """

    def __init__(self, graph: Graph, topology: Topology, samples: Samples, memory_mb: int) -> None:
        self._graph, self._topology = graph, topology
        self._made = frozenset(k.output for k in topology.kernels if k.form is Form.QUANTIZED)
        self._real, self._stored = ActivationStore(memory_mb << 17), ActivationStore(memory_mb << 17)
        self._freed = 0
        self.sizes: list[int] = []
        for number, batch in enumerate(samples.batches(graph.batch_size)):
            self.sizes.append(len(batch))
            for name, array in batch.inputs.items():
                self._real.put(name, number, array)
                self._stored.put(name, number, array)
        concurrent, self._threads = concurrency(len(self.sizes))
        self._pool = ThreadPoolExecutor(concurrent)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._real.close()
        self._stored.close()

    def real(self, tensor: str, batch: int) -> Array:
        """Return a tensor of the float model."""
        return self._real.get(tensor, batch)

    def integers(self, tensor: str, batch: int, plan: QuantPlan) -> Array:
        """Return a tensor's integers in the quantized model."""
        array, q = self._stored.get(tensor, batch), plan.quantizers[tensor]
        if tensor in self._made:
            return array
        return intmath.quantize(array, q.scale, q.zero_point, qmin=q.qmin, qmax=q.qmax, dtype=q.dtype)

    def reached(self, tensor: str, batch: int) -> Array:
        """Return a tensor of the quantized model that is real there, too."""
        return self._stored.get(tensor, batch)

    def error(self, tensor: str, batch: int, plan: QuantPlan) -> Array:
        """Return the float model's values less the quantized model's."""
        quantizer = plan.quantizers.get(tensor)
        if quantizer is None:
            return np.asarray(self.real(tensor, batch) - self._stored.get(tensor, batch))
        return np.asarray(self.real(tensor, batch) - dequantized(self.integers(tensor, batch, plan), quantizer))

    def knows(self, tensor: str) -> bool:
        """Return whether the cut that has been reached holds a tensor."""
        return tensor in self._real

    def grow_alike(self, first: str, second: str) -> bool:
        """Return whether the sizes of two tensors have the same ratio in every batch as in the graph's one sample.

        A table that serves all samples of a batch does not grow with them.
        """
        one, other = (max(1, prod(self._graph.shapes[t])) for t in (first, second))
        return all(
            self._real.elements(first, batch) * other == self._real.elements(second, batch) * one
            for batch in range(len(self.sizes))
        )

    def run(self, part: Segment, plan: QuantPlan) -> None:
        """Take both models through one segment."""
        wanted = [t for t in part.outputs if t in self._graph.consumers]
        if not wanted:
            return
        piece = part_of(self._graph, part.inputs, part.outputs)
        stored = self._made.intersection((*part.inputs, *wanted))
        ports = replace(
            piece,
            inputs=tuple(_port(i, plan) if i.name in stored else i for i in piece.inputs),
            outputs=tuple(_port(i, plan) if i.name in stored else i for i in piece.outputs if i.name in wanted),
        )
        kernels = tuple(k for k in self._topology.kernels if k.node in part.nodes)
        simulation = simulate(ports, self._topology.restricted(kernels), plan, stored)
        model = bind_in_place(simulation.rendered.model, simulation.weights)
        simulated = Session(model, threads=self._threads, spin=False, where="simulated layer")
        plain = Session(piece.model, threads=self._threads, spin=False, where=part.nodes[-1])
        inputs = {t: f"{t}_stored" if t in stored else t for t in part.inputs}

        def advance(number: int) -> None:
            x = plain.run({t: self._real.get(t, number) for t in part.inputs}, wanted)
            feeds = {port: self._stored.get(t, number) for t, port in inputs.items()}
            y = simulated.run({**feeds, **simulation.scalars})
            for tensor, made in zip((i.name for i in ports.outputs), y.values(), strict=True):
                self._real.put(tensor, number, x[tensor])
                self._stored.put(tensor, number, made)

        list(self._pool.map(advance, range(len(self.sizes))))

    def drop(self, tensors: Sequence[str]) -> None:
        """Forget tensors that nobody reads any more, and give their memory back, once it is worth the time."""
        self._freed += self._real.drop(tensors) + self._stored.drop(tensors)
        if self._freed >= WORTH_RELEASING:
            self._freed = 0
            release_memory()


def _port(info: TensorInfo, plan: QuantPlan) -> TensorInfo:
    return replace(info, dtype=np.dtype(plan.quantizers[info.name].dtype.numpy).name)


def dequantized(rows: Array, quantizer: Quantizer) -> NDArray[np.float32]:
    """Return the real values of stored integers: f32(q - z) · f32(s), as `intmath.dequantize`, for at most 16 bits.

    `rows`: integers of any shape, of at most 16 bits. Returns the real values, float32 in the same shape.
    """
    real = rows.astype(np.float32)
    real -= np.float32(quantizer.zero_point)
    real *= np.float32(quantizer.scale)
    return real
