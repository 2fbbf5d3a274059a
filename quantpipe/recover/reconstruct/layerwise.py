"""The walk through the network: solve a layer, run it, hand its float and its quantized result to the next.

Each segment runs once in float and once simulated, on cached inputs; so the whole walk costs about one float and one
simulated pass plus the layers' algebra, whatever the depth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil

import numpy as np
from numpy.typing import NDArray

from quantpipe.arrays import Array
from quantpipe.artifacts.checkpoint import Kept, NoCheckpoint
from quantpipe.graph.ahead import in_order
from quantpipe.graph.external_weights import beside
from quantpipe.oprules import Family, rule_of
from quantpipe.plan import Overrides, Problem, data_of, pair_limit
from quantpipe.plan.pair_safe import in_own_type
from quantpipe.recover.reconstruct.forward import Forward, dequantized
from quantpipe.recover.reconstruct.layer import FEW_BITS, LayerOptions
from quantpipe.recover.reconstruct.moments import MomentCollector, Moments
from quantpipe.recover.reconstruct.prepare import WeightLayer, layer_of
from quantpipe.recover.reconstruct.segments import Segment, segments
from quantpipe.recover.reconstruct.shrinkage import parts_of
from quantpipe.recover.reconstruct.threads import one_thread_each
from quantpipe.recover.reconstruct.walk_digest import WalkDigest
from quantpipe.types import Kernel, QuantPlan, RecoveredLayerRow, Samples, Strategy, WeightTensor

ROWS_PER_INPUT, LEAST_ROWS = 16, 2048
Progress = Callable[[int, int, str], None]
Read = tuple[Array, Array | None]
"""Rows of x̂, and of what counts of x."""


@dataclass(frozen=True, eq=False)
class Recovery:
    """Hold the better weights and biases.

    Per layer it also holds the expected squared output error before and after, and what the samples left open of its
    moments.
    """

    overrides: Overrides
    layers: tuple[RecoveredLayerRow, ...] = field(repr=False)


@dataclass(frozen=True)
class Effort:
    """Limit what a walk takes.

    `rows`: sampled rows per layer for its moments; `memory_mb`: what cached tensors may take.
    """

    rows: int
    memory_mb: int
    seed: int = 0


def recover(
    problem: Problem,
    strategy: Strategy,
    samples: Samples,
    options: LayerOptions,
    *,
    effort: Effort,
    progress: Progress = lambda done, total, note: None,
    kept: Kept = NoCheckpoint(),  # noqa: B008  (without state)
) -> Recovery:
    """Recover every layer with integer weights, in graph order.

    Layers that an interrupted walk left in `kept` are not solved again.

    `effort`: how many rows are sampled, and what may be kept in memory.
    """
    graph, topology, planner = problem.graph, problem.topology, problem.planner
    parts = segments(graph, topology)
    # A layer's data can be made anew inside its own segment (an accumulator that is also read narrowed).
    last_reader = {t: i for i, part in enumerate(parts) for t in (*part.inputs, *_layer_data(part))}
    with one_thread_each() as pool, Forward(graph, topology, samples, effort.memory_mb) as forward:
        plan = planner.plan(strategy)
        chain = WalkDigest(graph, topology, plan, options, effort.rows, effort.seed, samples.digest, forward.sizes)
        walk = _Walk(problem, plan, options, effort, forward, pool, chain, kept)
        for number, part in enumerate(parts):
            progress(number, len(parts), part.nodes[-1])
            chain.reached(part)
            real = (topology.weighted_of[n] for n in part.nodes if n in topology.weighted_of)
            for kernel in (*part.kernels, *real):
                if kernel.weight is not None:
                    walk.solve(kernel)
            forward.run(part, planner.plan(strategy, walk.overrides, part.kernels))
            forward.drop([t for t in (*part.inputs, *part.outputs) if last_reader.get(t, -1) <= number])
        return Recovery(walk.overrides, tuple(walk.layers))


@dataclass(eq=False)
class _Walk:
    """The layers solved so far."""

    problem: Problem
    plan: QuantPlan
    options: LayerOptions
    effort: Effort
    forward: Forward
    pool: ThreadPoolExecutor
    chain: WalkDigest
    kept: Kept
    overrides: Overrides = field(default_factory=lambda: Overrides({}, {}))
    layers: list[RecoveredLayerRow] = field(default_factory=list)

    def solve(self, kernel: Kernel) -> None:
        """Moments, then new weights and bias of one layer."""
        layer = layer_of(self.problem.graph, self.problem.topology, kernel)
        if layer is None or layer.site.tensor in self.overrides.weights:
            return  # a weight with several users keeps what its first user was given
        before = in_own_type(self.plan.weights[layer.site.tensor], layer.site.dtype)
        bias = np.zeros(layer.channels) if layer.bias is None and layer.takes_bias else layer.bias
        blocks = () if before.block is None else (before.block.multiplier, before.block.zero_point)
        limit = np.asarray(self._largest_pair(kernel, before) or 0)
        arrays = (layer.weight, bias, before.scale, before.zero_point, np.asarray(before.bits), limit, *blocks)
        key = self.chain.key(kernel.node, *arrays)
        found = self.kept.read(key)
        if found is None:
            found = self._solved(kernel, layer, before, bias)
            self.kept.write(key, found)
        self.chain.solved(found)
        self._keep(kernel, before, found)

    def _solved(
        self, kernel: Kernel, layer: WeightLayer, before: WeightTensor, bias: NDArray[np.float64] | None
    ) -> Mapping[str, Array]:
        """Return what a layer's solution consists of, as named arrays.

        They are `values` and `scale` of the weight (`multiplier` and `block_zero` of its blocks), `bias` (real values)
        where there is one, `errors` before and after, and the `uncertainty` of the moments.
        """
        moments = self._moments(kernel, layer)
        data = self.plan.quantizers.get(kernel.operands[0].tensor)
        input_scale = 1.0 if data is None else float(data.scale)
        floor = layer.floor(input_scale, bias)
        solve = partial(
            layer.solved,
            before,
            moments,
            schema=self.problem.schema,
            options=self.options,
            largest_pair=self._largest_pair(kernel, before),
        )
        made, solved = solve(floor)
        if bias is not None:
            # In a channel of all but zero weights, what the bias takes up may be more than it was.
            needed = layer.floor(input_scale, bias + solved.bias_shift.reshape(-1))
            if np.any(made.scale < needed):
                made, solved = solve(np.maximum(floor, needed))
        errors = np.array([solved.error_before, solved.error_after])
        unsure = np.array(moments.uncertainty)
        found = {"values": made.values, "scale": made.scale, "errors": errors, "uncertainty": unsure}
        if made.block is not None:
            found |= {"multiplier": made.block.multiplier, "block_zero": made.block.zero_point}
        return found if bias is None else found | {"bias": bias + solved.bias_shift.reshape(-1)}

    def _largest_pair(self, kernel: Kernel, weight: WeightTensor) -> int | None:
        problem, data = self.problem, data_of(kernel, self.problem.topology, self.plan)
        if data is None:
            return None
        return pair_limit(problem.spec, problem.graph, problem.topology, kernel=kernel, weight=weight, data=data)

    def _moments(self, kernel: Kernel, layer: WeightLayer) -> Moments:
        """Of rows sampled from every batch, each from its own random numbers."""
        data, sizes = kernel.operands[0].tensor, self.forward.sizes
        groups, _, width = layer.matrix.shape
        wanted = layer.matrix if self.options.wants_float else None
        shortcut = self._shortcut(kernel)
        collector = MomentCollector(groups, width, wanted, self.pool, shortcut=shortcut is not None)
        rows = min(max(ROWS_PER_INPUT * width, LEAST_ROWS), self.effort.rows)
        count = sum(sizes)
        share = rows / max(count, 1)
        quantizer = self.plan.quantizers.get(data)

        def read(batch: tuple[int, int]) -> Read:
            number, size = batch
            stored = self.forward.integers(data, number, self.plan) if quantizer else self.forward.reached(data, number)
            rng = np.random.default_rng([self.effort.seed, len(self.layers), number])
            picked = layer.form.pick(layer.node, self.problem.graph, stored.shape, ceil(share * size), rng=rng)
            if quantizer is None:
                stored = picked.read(stored)
            else:
                stored = dequantized(picked.read(stored, quantizer.zero_point), quantizer)
            if wanted is None:
                return stored, None
            x = picked.read(self.forward.real(data, number))
            if shortcut is None:
                return stored, collector.seen(x)
            tensor, sign = shortcut
            error = picked.read_output(self.forward.error(tensor, number, self.plan))
            return stored, collector.seen(x, error * np.float32(sign))

        for (_, size), coming in in_order(self.pool, read, enumerate(sizes), 2):
            stored, seen = coming.result()
            collector.add(stored, seen, parts_of(size, count))
        return collector.finish()

    def _shortcut(self, kernel: Kernel) -> tuple[str, int] | None:
        """Return what the layer's result is added to (or, sign -1, subtracted from), if it is known by now.

        Its error is then regressed together with the layer's own, for all that follows sees their sum. With many bits
        the error is the rounding of stored tensors, which nothing predicts.
        """
        graph, made = self.problem.graph, kernel.output
        wanted = self.options.propagate and self.options.shortcuts
        if not wanted or self.plan.weights[kernel.weight or ""].bits > FEW_BITS:
            return None
        consumers = graph.consumers.get(made, ())
        if kernel.fused or len(consumers) != 1 or made in graph.output_names:
            return None
        node, _ = consumers[0]
        rule = rule_of(node)
        if rule is None or rule.family is not Family.SUM:
            return None
        other = next((t for t in node.inputs if t != made), made)
        if graph.shapes[other] != graph.shapes[made] or not self.forward.knows(other):
            return None
        if not self.forward.grow_alike(other, kernel.operands[0].tensor):
            return None
        return other, rule.sign

    def _keep(self, kernel: Kernel, before: WeightTensor, found: Mapping[str, Array]) -> None:
        values = beside(found["values"], before.values)
        grid = before.block
        if grid is not None:
            grid = replace(grid, multiplier=found["multiplier"], zero_point=found["block_zero"])
        self.overrides.weights[before.tensor] = replace(before, values=values, scale=found["scale"], block=grid)
        if "bias" in found:
            self.overrides.biases[kernel.node] = found["bias"]
        nearest, recovered = (float(e) for e in found["errors"])
        self.layers.append(
            {
                "node": kernel.node,
                "bits": before.bits,
                "error_nearest": nearest,
                "error_recovered": recovered,
                "uncertainty": float(found["uncertainty"]),
            }
        )


def _layer_data(part: Segment) -> list[str]:
    return [k.operands[0].tensor for k in part.kernels if k.weight is not None]
