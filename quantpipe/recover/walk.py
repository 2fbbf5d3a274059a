"""The walk through the network: solve a layer, run it, hand its float and its quantized result to the next.

Each segment runs once in float and once simulated, on cached inputs; so the whole walk costs about one float and one
simulated pass plus the layers' algebra, whatever the depth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe import intmath
from quantpipe.graph.execute import Session
from quantpipe.graph.extract import part_of
from quantpipe.graph.view import Graph
from quantpipe.oprules import rule_of
from quantpipe.plan import MOST_BIAS_STEPS, Overrides, Planner
from quantpipe.recover.layer import LayerOptions, Solved, solve
from quantpipe.recover.moments import MomentCollector
from quantpipe.recover.segments import Segment, segments
from quantpipe.recover.spool import Spool
from quantpipe.simulate.simulator import bind, simulate
from quantpipe.types import Batch, Form, Kernel, QuantPlan, Samples, Schema, Strategy, Topology, WeightTensor

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
    rng = np.random.default_rng(seed)
    with Spool(memory_mb << 19) as real, Spool(memory_mb << 19) as stored:
        walk = _Walk(graph, topology, schema, strategy, planner, options, rows, rng, real, stored)
        walk.enter(samples)
        for number, part in enumerate(parts):
            progress(number, len(parts), part.nodes[-1])
            for kernel in part.kernels:
                if kernel.weight is not None:
                    walk.solve(kernel)
            walk.run(part)
            dead = [t for t in (*part.inputs, *part.outputs) if last_reader.get(t, -1) <= number]
            real.drop(dead)
            stored.drop(dead)
        return Recovery(walk.overrides, tuple(walk.layers))


class _Walk:
    def __init__(
        self,
        graph: Graph,
        topology: Topology,
        schema: Schema,
        strategy: Strategy,
        planner: Planner,
        options: LayerOptions,
        rows: int,
        rng: np.random.Generator,
        real: Spool,
        stored: Spool,
    ) -> None:
        self._graph, self._topology, self._schema, self._strategy = graph, topology, schema, strategy
        self._planner, self._options, self._rows, self._rng = planner, options, rows, rng
        self._real, self._stored = real, stored
        self._plan: QuantPlan = planner.plan(strategy)
        self._made = frozenset(k.output for k in topology.kernels if k.form is Form.QUANTIZED)
        self._batches: list[int] = []
        self.overrides = Overrides({}, {})
        self.layers: list[Mapping[str, Any]] = []

    def enter(self, samples: Samples) -> None:
        """Cache the model's inputs."""
        for number, batch in enumerate(_batches(samples, self._graph.batch_size)):
            self._batches.append(len(batch))
            for name, array in batch.inputs.items():
                self._real.put(name, number, array)
                self._stored.put(name, number, array)

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
        data = kernel.operands[0].tensor
        collector = MomentCollector(matrix.shape[0], matrix.shape[2])
        rows = min(max(ROWS_PER_INPUT * matrix.shape[2], LEAST_ROWS), self._rows)
        share = rows / max(sum(self._batches), 1)
        for number, size in enumerate(self._batches):
            arrays = [self._real.get(data, number), self._quantized(data, number)]
            collector.add(*form.rows(node, self._graph, arrays, ceil(share * size), self._rng))
        start = np.broadcast_to(before.scale.reshape(-1), (matrix.shape[0] * matrix.shape[1],))
        bits = before.bits
        zero = np.broadcast_to(before.zero_point.reshape(-1), start.shape).reshape(matrix.shape[:2])
        _, _, qmin, qmax = intmath.scales_zero_points([-1.0], [1.0], bits, site.dtype, self._schema.weights)
        solved = solve(
            matrix,
            collector.finish(),
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

    def _floor(self, kernel: Kernel, per_channel: bool) -> NDArray[np.float64]:
        """The least weight scale per output channel at which the bias still fits, `[C]`."""
        channels = self._graph.shapes[kernel.weight or ""][self._topology.weight_of[kernel.weight or ""].channel_axis]
        if kernel.bias is None:
            return np.zeros(channels)
        bias = np.abs(self._graph.constant(kernel.bias).astype(np.float64).reshape(-1))
        steps = MOST_BIAS_STEPS if per_channel else MOST_BIAS_STEPS * 2**8
        floor = bias / (steps * float(self._plan.quantizers[kernel.operands[0].tensor].scale))
        return floor if per_channel else np.full(channels, floor.max())

    def run(self, part: Segment) -> None:
        """Both results of a segment, for all batches."""
        self._plan = self._planner.plan(self._strategy, self.overrides)
        piece = part_of(self._graph, part.inputs, part.outputs)
        kernels = tuple(k for k in self._topology.kernels if k.node in part.nodes)
        topology = self._topology.restricted(kernels)
        simulation = simulate(piece, topology, self._plan)
        simulated = Session(bind(simulation.rendered.model, simulation.weights), spin=False, where="simulated layer")
        plain = Session(piece.model, spin=False, where=part.nodes[-1])
        wanted = [t for t in part.outputs if t in self._graph.consumers]
        for number in range(len(self._batches)):
            if not wanted:
                return
            x = plain.run({t: self._real.get(t, number) for t in part.inputs}, wanted)
            feeds = {t: self._entering(t, number) for t in part.inputs}
            y = simulated.run({**feeds, **simulation.scalars}, wanted)
            for tensor in wanted:
                self._real.put(tensor, number, x[tensor])
                self._stored.put(tensor, number, self._compact(tensor, y[tensor]))

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

    def _quantized(self, tensor: str, number: int) -> Array:
        """The real values that the integers of a tensor stand for."""
        quantizer = self._plan.quantizers[tensor]
        array = self._stored.get(tensor, number)
        if array.dtype.kind == "f":
            array = intmath.quantize(
                array, quantizer.scale, quantizer.zero_point, quantizer.qmin, quantizer.qmax, quantizer.dtype
            )
        return intmath.dequantize(array, quantizer.scale, quantizer.zero_point)

    def _entering(self, tensor: str, number: int) -> Array:
        array = self._stored.get(tensor, number)
        return (
            array if array.dtype.kind == "f" or tensor not in self._plan.quantizers else self._quantized(tensor, number)
        )

    def _compact(self, tensor: str, real: Array) -> Array:
        """A stored tensor as its integers (a quarter of the memory), anything else as it is."""
        made = tensor in self._plan.quantizers and tensor in self._made
        if not made:
            return real
        q = self._plan.quantizers[tensor]
        return intmath.quantize(real, q.scale, q.zero_point, q.qmin, q.qmax, q.dtype)


def _layer_data(part: Segment) -> list[str]:
    return [k.operands[0].tensor for k in part.kernels if k.weight is not None]


def _batches(samples: Samples, size: int) -> list[Batch]:
    return list(samples.batches(size))
