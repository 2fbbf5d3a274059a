"""The walk through the network: solve a layer, run it, hand its float and its quantized result to the next.

Each segment runs once in float and once simulated, on cached inputs; so the whole walk costs about one float and one
simulated pass plus the layers' algebra, whatever the depth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe import intmath
from quantpipe.graph.execute import available_cores
from quantpipe.graph.view import Graph, Node
from quantpipe.oprules import rule_of
from quantpipe.oprules.matrix import MatrixForm
from quantpipe.plan import MOST_BIAS_STEPS, Overrides, Planner
from quantpipe.recover.forward import Forward
from quantpipe.recover.layer import LayerOptions, Solved, solve
from quantpipe.recover.moments import MomentCollector, Moments
from quantpipe.recover.segments import Segment, segments
from quantpipe.types import Kernel, Quantizer, QuantPlan, Samples, Schema, Strategy, Topology, WeightTensor

Array = NDArray[Any]
ROWS_PER_INPUT, LEAST_ROWS = 6, 2048
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, eq=False)
class Recovery:
    """The better weights and biases, and per layer the expected squared output error before and after."""

    overrides: Overrides
    layers: tuple[Mapping[str, Any], ...] = field(repr=False)


def recover(
    graph: Graph,
    topology: Topology,
    schema: Schema,
    strategy: Strategy,
    planner: Planner,
    samples: Samples,
    options: LayerOptions,
    rows: int,
    memory_mb: int,
    seed: int,
    progress: Progress = lambda done, total, note: None,
) -> Recovery:
    """Recover every layer with integer weights, in graph order. `rows`: sampled rows per layer for its moments."""
    parts = segments(graph, topology)
    # A layer's data can be made anew inside its own segment (an accumulator that is also read narrowed).
    last_reader = {t: i for i, part in enumerate(parts) for t in (*part.inputs, *_layer_data(part))}
    with _one_thread_each() as pool, Forward(graph, topology, samples, memory_mb) as forward:
        walk = _Walk(graph, topology, schema, strategy, planner, options, rows, seed, forward, pool)
        for number, part in enumerate(parts):
            progress(number, len(parts), part.nodes[-1])
            for kernel in part.kernels:
                if kernel.weight is not None:
                    walk.solve(kernel)
            forward.run(part, planner.plan(strategy, walk.overrides, part.kernels))
            forward.drop([t for t in (*part.inputs, *part.outputs) if last_reader.get(t, -1) <= number])
        return Recovery(walk.overrides, tuple(walk.layers))


@contextmanager
def _one_thread_each() -> Iterator[ThreadPoolExecutor]:
    """Threads for the algebra, each with a linear algebra library of one thread: small products do not wait for one
    another, and sums are made in the same order on every machine."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=1, user_api="blas"), ThreadPoolExecutor(available_cores()) as pool:
        yield pool


class _Walk:
    """The layers solved so far."""

    def __init__(
        self,
        graph: Graph,
        topology: Topology,
        schema: Schema,
        strategy: Strategy,
        planner: Planner,
        options: LayerOptions,
        rows: int,
        seed: int,
        forward: Forward,
        pool: ThreadPoolExecutor,
    ) -> None:
        self._graph, self._topology, self._schema, self._strategy = graph, topology, schema, strategy
        self._options, self._rows, self._seed = options, rows, seed
        self._forward, self._pool = forward, pool
        self._plan: QuantPlan = planner.plan(strategy)
        self.overrides = Overrides({}, {})
        self.layers: list[Mapping[str, Any]] = []

    def solve(self, kernel: Kernel) -> None:
        """Moments, then new weights and bias of one layer."""
        node = self._graph.by_name[kernel.node]
        rule = rule_of(node)
        tensor = kernel.weight or ""
        if rule is None or rule.matrix is None or tensor in self.overrides.weights:
            return  # a weight with several users keeps what its first user was given
        form = rule.matrix
        site = self._topology.weight_of[tensor]
        before = self._plan.weights[tensor]
        weight = self._graph.constant(tensor)
        matrix = form.matrix(node, weight.astype(np.float64))
        start = np.broadcast_to(before.scale.reshape(-1), (matrix.shape[0] * matrix.shape[1],))
        bits = before.bits
        zero = np.broadcast_to(before.zero_point.reshape(-1), start.shape).reshape(matrix.shape[:2])
        _, _, qmin, qmax = intmath.scales_zero_points([-1.0], [1.0], bits, site.dtype, self._schema.weights)
        solved = solve(
            matrix,
            self._moments(kernel, node, form, matrix.shape[0], matrix.shape[2]),
            start.reshape(matrix.shape[:2]),
            self._floor(kernel, site.axis is not None).reshape(matrix.shape[:2]),
            bits,
            (qmin - zero, qmax - zero),
            self._schema.weights,
            site.axis is not None,
            self._options,
        )
        integers = solved.integers + zero[..., np.newaxis]
        self._keep(kernel, before, form.weight(node, integers, weight.shape), solved)

    def _moments(self, kernel: Kernel, node: Node, form: MatrixForm, groups: int, width: int) -> Moments:
        """Of rows sampled from every batch, each from its own random numbers."""
        data, sizes = kernel.operands[0].tensor, self._forward.sizes
        collector = MomentCollector(groups, width, self._options.propagate, self._pool)
        rows = min(max(ROWS_PER_INPUT * width, LEAST_ROWS), self._rows)
        share = rows / max(sum(sizes), 1)
        quantizer = self._plan.quantizers[data]
        for number, size in enumerate(sizes):
            x, q = self._forward.real(data, number), self._forward.integers(data, number, self._plan)
            rng = np.random.default_rng([self._seed, len(self.layers), number])
            picked = form.pick(node, self._graph, x.shape, ceil(share * size), rng)
            real = self._pool.submit(picked.read, x)
            stored = _dequantized(picked.read(q, quantizer.zero_point), quantizer)
            collector.add(real.result(), stored)
        return collector.finish()

    def _floor(self, kernel: Kernel, per_channel: bool) -> NDArray[np.float64]:
        """The least weight scale per output channel at which the bias still fits, `[C]`."""
        channels = self._graph.shapes[kernel.weight or ""][self._topology.weight_of[kernel.weight or ""].channel_axis]
        if kernel.bias is None:
            return np.zeros(channels)
        bias = np.abs(self._graph.constant(kernel.bias).astype(np.float64).reshape(-1))
        steps = MOST_BIAS_STEPS if per_channel else MOST_BIAS_STEPS * 2**8
        floor = bias / (steps * float(self._plan.quantizers[kernel.operands[0].tensor].scale))
        return floor if per_channel else np.full(channels, floor.max())

    def _keep(self, kernel: Kernel, before: WeightTensor, values: Array, solved: Solved) -> None:
        per_channel = before.axis is not None
        scale = solved.scale.reshape(-1) if per_channel else solved.scale.reshape(-1)[0]
        found = WeightTensor(
            before.tensor,
            values.astype(before.values.dtype),
            np.asarray(scale, np.float32),
            before.axis,
            before.dtype,
            before.bits,
            before.zero_point,
        )
        self.overrides.weights[before.tensor] = found
        if kernel.bias is not None:
            bias = self._graph.constant(kernel.bias).astype(np.float64).reshape(-1)
            self.overrides.biases[kernel.node] = bias + solved.bias_shift.reshape(-1)
        self.layers.append(
            {
                "node": kernel.node,
                "bits": before.bits,
                "error_nearest": solved.error_before,
                "error_recovered": solved.error_after,
            }
        )


def _dequantized(rows: Array, quantizer: Quantizer) -> NDArray[np.float32]:
    """The real values of stored integers: f32(q - z) · f32(s), as `intmath.dequantize`, for at most 16 bits."""
    return (rows.astype(np.float32) - np.float32(quantizer.zero_point)) * np.float32(quantizer.scale)


def _layer_data(part: Segment) -> list[str]:
    return [k.operands[0].tensor for k in part.kernels if k.weight is not None]
