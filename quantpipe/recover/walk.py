"""The walk through the network: solve a layer, run it, hand its float and its quantized result to the next.

Each segment runs once in float and once simulated, on cached inputs; so the whole walk costs about one float and one
simulated pass plus the layers' algebra, whatever the depth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe import intmath
from quantpipe.graph.execute import available_cores
from quantpipe.graph.view import Graph, Node
from quantpipe.oprules import OpRule, rule_of
from quantpipe.oprules.matrix import MatrixForm
from quantpipe.plan import MOST_BIAS_STEPS, Overrides, Planner
from quantpipe.recover.forward import Forward
from quantpipe.recover.layer import LayerOptions, solve
from quantpipe.recover.moments import MomentCollector, Moments
from quantpipe.recover.partial import Chain, Kept, NothingKept
from quantpipe.recover.segments import Segment, segments
from quantpipe.types import Kernel, Quantizer, QuantPlan, Samples, Schema, Strategy, Topology, WeightTensor

Array = NDArray[Any]
ROWS_PER_INPUT, LEAST_ROWS = 16, 2048
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
    kept: Kept = NothingKept(),  # noqa: B008  (without state)
) -> Recovery:
    """Recover every layer with integer weights, in graph order. `rows`: sampled rows per layer for its moments. Layers
    that an interrupted walk left in `kept` are not solved again."""
    parts = segments(graph, topology)
    # A layer's data can be made anew inside its own segment (an accumulator that is also read narrowed).
    last_reader = {t: i for i, part in enumerate(parts) for t in (*part.inputs, *_layer_data(part))}
    with _one_thread_each() as pool, Forward(graph, topology, samples, memory_mb) as forward:
        plan = planner.plan(strategy)
        chain = Chain(plan, options, rows, seed, samples.digest, forward.sizes)
        walk = _Walk(graph, topology, schema, plan, options, rows, seed, forward, pool, chain, kept)
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
        plan: QuantPlan,
        options: LayerOptions,
        rows: int,
        seed: int,
        forward: Forward,
        pool: ThreadPoolExecutor,
        chain: Chain,
        kept: Kept,
    ) -> None:
        self._graph, self._topology, self._schema, self._plan = graph, topology, schema, plan
        self._options, self._rows, self._seed = options, rows, seed
        self._forward, self._pool, self._chain, self._kept = forward, pool, chain, kept
        self.overrides = Overrides({}, {})
        self.layers: list[Mapping[str, Any]] = []

    def solve(self, kernel: Kernel) -> None:
        """Moments, then new weights and bias of one layer."""
        node = self._graph.by_name[kernel.node]
        rule = rule_of(node)
        tensor = kernel.weight or ""
        if rule is None or rule.matrix is None or tensor in self.overrides.weights:
            return  # a weight with several users keeps what its first user was given
        before, weight = self._plan.weights[tensor], self._graph.constant(tensor)
        bias = self._bias(kernel, rule)
        key = self._chain.key(kernel.node, weight, bias, before.scale, before.zero_point, np.asarray(before.bits))
        found = self._kept.read(key)
        if found is None:
            found = self._solved(kernel, node, rule.matrix, before, weight, bias)
            self._kept.write(key, found)
        self._chain.solved(found)
        self._keep(kernel, before, found)

    def _solved(
        self,
        kernel: Kernel,
        node: Node,
        form: MatrixForm,
        before: WeightTensor,
        weight: Array,
        bias: NDArray[np.float64] | None,
    ) -> Mapping[str, Array]:
        """`values` and `scale` of the weight, `bias` (real values) where there is one, `errors` before and after."""
        site = self._topology.weight_of[before.tensor]
        matrix = form.matrix(node, weight.astype(np.float64))
        shape = matrix.shape[:2]
        start = np.broadcast_to(before.scale.reshape(-1), (shape[0] * shape[1],)).reshape(shape)
        zero = np.broadcast_to(before.zero_point.reshape(-1), (shape[0] * shape[1],)).reshape(shape)
        _, _, qmin, qmax = intmath.scales_zero_points([-1.0], [1.0], before.bits, site.dtype, self._schema.weights)
        solved = solve(
            matrix,
            self._moments(kernel, node, form, matrix.shape[0], matrix.shape[2]),
            start,
            self._floor(kernel, site.axis is not None).reshape(shape),
            before.bits,
            (qmin - zero, qmax - zero),
            self._schema.weights,
            site.axis is not None,
            self._options,
        )
        values = form.weight(node, solved.integers + zero[..., np.newaxis], weight.shape).astype(before.values.dtype)
        scale = solved.scale.reshape(-1) if site.axis is not None else solved.scale.reshape(-1)[0]
        found = {
            "values": values,
            "scale": np.asarray(scale, np.float32),
            "errors": np.array([solved.error_before, solved.error_after]),
        }
        return found if bias is None else found | {"bias": bias + solved.bias_shift.reshape(-1)}

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

    def _bias(self, kernel: Kernel, rule: OpRule) -> NDArray[np.float64] | None:
        """The layer's bias `[C]`; zeros where it has none and its op takes one; None where it does not."""
        if kernel.bias is not None:
            return self._graph.constant(kernel.bias).astype(np.float64).reshape(-1)
        tensor = kernel.weight or ""
        channels = self._graph.shapes[tensor][self._topology.weight_of[tensor].channel_axis]
        return np.zeros(channels) if rule.bias is not None else None

    def _floor(self, kernel: Kernel, per_channel: bool) -> NDArray[np.float64]:
        """The least weight scale per output channel at which the bias still fits, `[C]`."""
        channels = self._graph.shapes[kernel.weight or ""][self._topology.weight_of[kernel.weight or ""].channel_axis]
        if kernel.bias is None:
            return np.zeros(channels)
        bias = np.abs(self._graph.constant(kernel.bias).astype(np.float64).reshape(-1))
        steps = MOST_BIAS_STEPS if per_channel else MOST_BIAS_STEPS * 2**8
        floor = bias / (steps * float(self._plan.quantizers[kernel.operands[0].tensor].scale))
        return floor if per_channel else np.full(channels, floor.max())

    def _keep(self, kernel: Kernel, before: WeightTensor, found: Mapping[str, Array]) -> None:
        self.overrides.weights[before.tensor] = replace(before, values=found["values"], scale=found["scale"])
        if "bias" in found:
            self.overrides.biases[kernel.node] = found["bias"]
        nearest, recovered = (float(e) for e in found["errors"])
        self.layers.append(
            {"node": kernel.node, "bits": before.bits, "error_nearest": nearest, "error_recovered": recovered}
        )


def _dequantized(rows: Array, quantizer: Quantizer) -> NDArray[np.float32]:
    """The real values of stored integers: f32(q - z) · f32(s), as `intmath.dequantize`, for at most 16 bits."""
    return (rows.astype(np.float32) - np.float32(quantizer.zero_point)) * np.float32(quantizer.scale)


def _layer_data(part: Segment) -> list[str]:
    return [k.operands[0].tensor for k in part.kernels if k.weight is not None]
