"""Plan each recipe for a device's hardware file, with scales, biases and inputs that reveal its fields.

The scales are chosen here, not calibrated. A result fills its type (or passes it), multipliers are general numbers or
powers of two, and biases are accumulators for which legal ways to narrow differ.
"""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from quantpipe import intmath
from quantpipe.annotate.conditions import AnnotateOptions
from quantpipe.annotate.topology import analyze
from quantpipe.arrays import Array
from quantpipe.conform.alternatives import narrowings
from quantpipe.conform.describe import Described
from quantpipe.conform.faults import NONE
from quantpipe.conform.narrow import narrowed
from quantpipe.conform.numpy_kernels import RepeatedKernel
from quantpipe.conform.recipes import NODE, RECIPES, RESULT, TIES, ProbeDraft, Recipe
from quantpipe.conform.vectors import VectorSet
from quantpipe.errors import QuantpipeError
from quantpipe.graph.execute import Session
from quantpipe.graph.normalize import expose
from quantpipe.graph.view import Graph
from quantpipe.hardware.load import load_hardware
from quantpipe.intake.load import load_graph
from quantpipe.lowering.context import opset_for
from quantpipe.types import (
    BiasScale,
    FixedPoint,
    Form,
    HardwareSpec,
    Kernel,
    Quantizer,
    Range,
    Requantize,
    RequantizeKind,
    ScaleGroup,
    Scales,
    Schema,
    Strategy,
    Symmetry,
    Topology,
    WeightSite,
)

SAMPLES = 6
SEED = 20
ACCUMULATOR_BITS = 21
"""Accumulators of separating probes are below 2^21: a float32 bias holds them."""
BIAS = 2000
"""Biases of other probes, in steps of their sums."""
COPIED = 2.0**-6
"""The scale of weights of one, which any device has: copies of the inputs are then exact."""
EACH = 3
"""So many accumulators for each pair of ways to narrow."""
SEARCHED = 1 << 19
"""Of so many accumulators those are taken that tell ways to narrow apart."""


@dataclass(frozen=True, eq=False)
class Probe:
    """Hold a probe: its network on a device, its model, its golden integers.

    `described`: The network, whose hardware file can be changed.
    """

    recipe: Recipe
    described: Described
    vectors: VectorSet
    model: onnx.ModelProto = field(repr=False)

    @property
    def kernel(self) -> Kernel:
        """Return the kernel that it is about."""
        return self.described.topology.kernel_of[NODE]


class _Unfit(Exception):
    """Report a device that a probe does not fit; its text is the reason."""


def probes_of(
    hardware: Mapping[str, Any], schema: Schema, names: Collection[str] | None = None
) -> tuple[list[Probe], dict[str, str]]:
    """Return the probes of a device (`names=None`: all), and why others are left out."""
    spec, found, left_out = load_hardware(hardware), [], {}
    for recipe in RECIPES if names is None else [r for r in RECIPES if r.name in names]:
        try:
            found.append(_probe(recipe, hardware, spec, schema))
        except _Unfit as why:
            left_out[recipe.name] = str(why)
        except QuantpipeError as why:
            left_out[recipe.name] = str(why)
    return found, left_out


def _probe(recipe: Recipe, hardware: Mapping[str, Any], spec: HardwareSpec, schema: Schema) -> Probe:
    draft = recipe.draft(np.random.default_rng(SEED))
    if not any(s.is_integer for s in spec.ops.get(draft.op, ())):
        raise _Unfit(f"{spec.name} does not run {draft.op} in integers")
    scales = _Scales(recipe, spec, schema)
    if recipe.separating and spec.bias_scale is BiasScale.OWN:
        raise _Unfit(f"biases of {spec.name} have scales of their own, so that no accumulator can be chosen by them")
    if recipe.scales != TIES and scales.powers and recipe.twin:
        raise _Unfit(f"the scales of {spec.name} are powers of two, so that {recipe.twin} is the same probe")
    made = _Made(draft, hardware, spec, schema, scales=scales)
    bias, result = None, None
    if draft.bias:
        steps = np.random.default_rng(SEED + 1).integers(-BIAS, BIAS + 1, draft.channels)
        if recipe.separating:
            most = min(1 << ACCUMULATOR_BITS, spec.bias.qmax, spec.accumulator.dtype.qmax // 2)
            full = np.full(draft.channels, most * scales.product)
            result = _result_scale(recipe, made, full)
            steps = separating(made.described(full, result)[0], most)
        bias = steps * scales.product
    result = result or _result_scale(recipe, made, bias)
    described, model = made.described(bias, result)
    vectors = VectorSet.of(recipe.name, recipe.purpose, described.network, made.inputs(described))
    return Probe(recipe, described, vectors, model)


def _result_scale(recipe: Recipe, made: _Made, bias: Array | None) -> float:
    """Return the scale at which the result fills what is stored, or passes it as far as the recipe says."""
    described, _ = made.described(bias, None)
    model = expose(described.graph.model, [RESULT])
    greatest = float(np.abs(Session(model, where=recipe.name).run(made.inputs(described))[RESULT]).max())
    q = described.network.plan.quantizers.get(described.topology.kernel_of[NODE].output)
    scale = greatest / (min(-q.low, q.high) if q is not None else 127) / recipe.fill
    return 2.0 ** math.ceil(math.log2(scale)) if made.scales.powers else scale


def separating(described: Described, most: int) -> Array:
    """Return accumulators, one a channel, for which any two legal ways to narrow differ, if they ever do.

    `most` is the largest magnitude of an accumulator.
    """
    kernel = described.topology.kernel_of[NODE]
    rng = np.random.default_rng(SEED + 3)
    pool = rng.integers(-most, most + 1, SEARCHED)
    ways = [_scalar(site) for site in _ways(described, kernel)]
    found = [narrowed(how, pool, 0, out=out, fault=NONE) for how, out in ways]
    count = described.graph.shapes[described.graph.by_name[NODE].outputs[0]][1]
    taken: list[int] = [0, most, -most]
    for a, b in itertools.combinations(range(len(found)), 2):
        places = np.flatnonzero(found[a] != found[b])
        taken += [int(pool[n]) for n in rng.permutation(places)[:EACH]]
    taken = list(dict.fromkeys(taken))[:count]
    return np.asarray([*taken, *(int(v) for v in rng.choice(pool, count - len(taken)))], np.int64)


def _ways(described: Described, kernel: Kernel) -> Iterator[RepeatedKernel]:
    """Yield the kernel with every legal way to narrow, and with multipliers of fewer bits."""
    for how in narrowings():
        free = {"unify": "free"} if how["kind"] != RequantizeKind.SHIFT else {}
        site = described.site(kernel, {"requantize": how, **free}, narrows=kernel.form is Form.RAW)
        if site is not None:
            yield site


def _scalar(site: RepeatedKernel) -> tuple[Requantize, Quantizer]:
    """Return how the first channel narrows."""
    output = site.output
    assert output is not None and site.out is not None  # noqa: S101  (its result is stored)
    fixed = output.fixed
    if fixed is not None:
        first, shift = (part.reshape(-1)[:1].reshape(()) for part in (fixed.multiplier, fixed.shift))
        fixed = FixedPoint(first, shift, fixed.bits)
    multiplier = np.asarray(output.multiplier).reshape(-1)[0]
    return replace(output, multiplier=np.asarray(multiplier), fixed=fixed, by_channel=None), site.out


@dataclass(frozen=True)
class _Scales:
    """Hold the scales of operands and weights, and whether the results' scales are powers of two."""

    recipe: Recipe
    spec: HardwareSpec
    schema: Schema

    @property
    def powers(self) -> bool:
        return self.recipe.scales == TIES or self.spec.scales is Scales.POWER_OF_TWO

    @property
    def data(self) -> float:
        return 2.0**-5 if self.powers else 0.03717

    @property
    def other(self) -> float:
        """Return the scale of the second operand."""
        return 2.0**-7 if self.powers else 0.00871

    @property
    def weight(self) -> float:
        return 2.0**-6 if self.powers else 0.01337

    @property
    def product(self) -> float:
        """Return the scale of the sums of a kernel with a weight."""
        return float(np.float32(self.data)) * float(np.float32(self.weight))


@dataclass(frozen=True, eq=False)
class _Made:
    """Makes networks of a draft, at scales that are given."""

    draft: ProbeDraft
    hardware: Mapping[str, Any]
    spec: HardwareSpec
    schema: Schema
    scales: _Scales

    def described(self, bias: Array | None, result: float | None) -> tuple[Described, onnx.ModelProto]:
        """Return the network with real biases and the scale of its result (None: a guess)."""
        reason = ""
        for tail in (False, True):
            model = self.draft.model(self._weight(), bias, tail=tail)
            graph = _loaded(model, self.spec, self.draft)
            topology = analyze(graph, self.spec, self.schema, AnnotateOptions())
            kernel = topology.kernel_of.get(NODE)
            if kernel is None:
                reason = str(topology.float_nodes.get(NODE, "it is not run in integers"))
            elif kernel.form is Form.QUANTIZED or (tail and kernel.output in topology.group_of):
                strategy = self._strategy(graph, topology, result)
                return Described(graph, topology, self.schema, strategy, self.hardware), model
        raise _Unfit(reason or f"{self.spec.name} does not store its result")

    def _weight(self) -> Array | None:
        draft = self.draft
        if draft.weight is None:
            return None
        top = (1 << (min(self.spec.weights.bits, 8) - 1)) - 1
        steps = np.maximum(np.abs(intmath.round_real(draft.weight * top)), draft.weight != 0)
        return np.asarray(np.sign(draft.weight) * steps * self.scales.weight)

    def _strategy(self, graph: Graph, topology: Topology, result: float | None) -> Strategy:
        bits, ranges, weights = {}, {}, {}
        given = dict(zip(self.draft.inputs, (self.scales.data, self.scales.other), strict=False))
        given |= {f"{name}_copy": scale for name, scale in given.items()}
        for group in topology.groups:
            own = next((given[t] for t in group.tensors if t in given), result or 1.0)
            bits[group.key] = group.max_bits
            ranges[group.key] = group.fixed or range_at(group, own, self.schema)
        for site in topology.weights:
            bits[site.tensor] = site.max_bits
            scale = self.scales.weight if site.tensor == "w" else COPIED
            channels = graph.shapes[site.tensor][site.channel_axis]
            weights[site.tensor] = _thresholds(site, scale, self.schema, channels)
        return Strategy(bits, ranges, weights)

    def inputs(self, described: Described) -> dict[str, Array]:
        """Return float inputs that are integral steps: the first sample is 0, then the ends, then anything."""
        rng, found = np.random.default_rng(SEED + 2), {}
        for name, shape in self.draft.inputs.items():
            q = described.network.plan.quantizers[name]
            found[name] = (_codes(q, shape, rng, self.draft.extreme) * np.float64(q.scale)).astype(np.float32)
        return found


def _codes(q: Quantizer, shape: tuple[int, ...], rng: np.random.Generator, extreme: bool) -> Array:
    """Return centred codes `[N, …]`."""
    if extreme:
        ends = rng.choice([q.low, q.high], (SAMPLES, *shape))
        ends[0], ends[1] = q.high, q.low
        return ends
    codes = rng.integers(q.low, q.high + 1, (SAMPLES, *shape))
    codes[0] = 0
    codes[1] = rng.choice([q.low, q.high], shape)
    return codes


def range_at(group: ScaleGroup, scale: float, schema: Schema) -> Range:
    """Return the range at which a group, at its highest bits, has a scale; with an odd zero point if it has one."""
    steps = (1 << group.max_bits) - 1
    if schema.activations.symmetry is Symmetry.ASYMMETRIC:
        zero = (steps * 2 // 5) | 1
        exact = steps + (schema.activations.denominator == "range")
        return Range(-zero * scale, (exact - zero) * scale)
    top = (1 << (group.max_bits - 1)) - (schema.activations.denominator == "max")
    return Range(-top * scale, top * scale)


def _thresholds(site: WeightSite, scale: float, schema: Schema, channels: int) -> Array:
    """Return thresholds at which a weight has one scale, per channel where it has one each."""
    shape = () if site.axis is None else (channels,)
    if schema.weights.symmetry is Symmetry.ASYMMETRIC:
        steps = (1 << site.max_bits) - (schema.weights.denominator == "max")
        zero = steps // 2 + 1
        return np.broadcast_to(np.asarray([-zero * scale, (steps - zero) * scale]), (*(shape or (1,)), 2)).copy()
    top = (1 << (site.max_bits - 1)) - (schema.weights.denominator == "max")
    return np.full(shape, top * scale)


def _loaded(model: onnx.ModelProto, spec: HardwareSpec, draft: ProbeDraft) -> Graph:
    def example(raw: Graph) -> dict[str, Array]:
        rng = np.random.default_rng(SEED)
        return {n: rng.standard_normal((2, *s)).astype(np.float32) for n, s in draft.inputs.items()}

    with tempfile.TemporaryDirectory(prefix="quantpipe-probe-") as folder:
        path = Path(folder) / "probe.onnx"
        onnx.save(model, path)
        return load_graph(path, example, least_opset=opset_for(spec), isolate=False, declared=spec.ops)
