"""The line from a model file to its realized form, on small nets made in the test: no runner, no data set.

`Net` writes an ONNX model node by node; `Line` takes it through load, annotate, calibrate, plan, simulate and realize.
Hardware, schemas and models in memory are read as `quantpipe.quantize` reads them; the stages are called as functions,
without the run folder that a `Pipeline` keeps.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from quantpipe.annotate.choices import choice_space
from quantpipe.annotate.conditions import AnnotateOptions
from quantpipe.annotate.topology import analyze
from quantpipe.api.model import model_file
from quantpipe.app import compose
from quantpipe.calibrate.estimators import MaxRange
from quantpipe.calibrate.measure import measure
from quantpipe.calibrate.threshold_table import ThresholdTable
from quantpipe.evaluate.agreement import Agreement, compare_with, session_kinds
from quantpipe.evaluate.compared_models import SimulatedModel
from quantpipe.graph.execute import Session
from quantpipe.graph.view import Graph
from quantpipe.hardware.legality import reachable
from quantpipe.hardware.load import load_hardware
from quantpipe.hardware.schemas import resolve_schema
from quantpipe.intake.load import load_graph
from quantpipe.lowering import Rendered, render
from quantpipe.plan import Planner, Problem
from quantpipe.realize import BACKENDS
from quantpipe.realize.cache_ends import stored_ends
from quantpipe.simulate.simulator import Simulation, simulate
from quantpipe.types import Batch, HardwareSpec, QuantPlan, Range, Samples, Schema, Strategy, Topology

CONF = Path(__file__).resolve().parents[2] / "conf"
Array = np.ndarray[Any, Any]


class Net:
    """A small model in the making. Methods return tensor names; weights come from `rng`."""

    def __init__(self, seed: int = 0, opset: int = 17, name: str = "net") -> None:
        self.rng = np.random.default_rng(seed)
        self._opset, self._name = opset, name
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, Array] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[str] = []
        self._counts: dict[str, int] = {}
        self.shapes: dict[str, tuple[int | None, ...]] = {}

    def input(self, *shape: int | None, name: str = "x") -> str:
        dims = [("N" if d is None else d) for d in shape]
        self._inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, dims))
        self.shapes[name] = shape
        return name

    def constant(self, array: Any, name: str | None = None) -> str:
        name = name or self._fresh("c")
        self._constants[name] = np.asarray(array)
        return name

    def floats(self, *shape: int, scale: float = 1.0, name: str | None = None) -> str:
        return self.constant((self.rng.standard_normal(shape) * scale).astype(np.float32), name)

    def node(
        self, op: str, *inputs: str, name: str | None = None, output: str | None = None, domain: str = "", **attrs: Any
    ) -> str:
        name = name or self._fresh(op.lower())
        output = output or f"{name}_out"
        self._nodes.append(helper.make_node(op, list(inputs), [output], name=name, domain=domain, **attrs))
        return output

    def split(self, x: str, outputs: Sequence[str], sizes: Sequence[int], axis: int) -> None:
        """A node with several outputs."""
        more = [self.constant(np.asarray(sizes, np.int64))]
        self._nodes.append(helper.make_node("Split", [x, *more], list(outputs), name=self._fresh("split"), axis=axis))

    def top(self, x: str, count: int, *, read: bool = False, **attrs: Any) -> str:
        """The largest or smallest elements along an axis; `read`: their positions are an output, too."""
        name = self._fresh("top")
        outputs = [f"{name}_out", f"{name}_positions"]
        inputs = [x, self.constant(np.int64([count]))]
        self._nodes.append(helper.make_node("TopK", inputs, outputs, name=name, **attrs))
        if read:
            self.output(outputs[1])
        return outputs[0]

    def conv(
        self,
        x: str,
        into: int,
        out: int,
        *kernel: int,
        bias: bool = True,
        group: int = 1,
        name: str | None = None,
        **attrs: Any,
    ) -> str:
        kernel = kernel or (1, 1)
        fan = into // group * int(np.prod(kernel))
        weight = self.floats(out, into // group, *kernel, scale=1.2 / np.sqrt(fan))
        # One channel with far smaller weights than the others: per-channel scales must differ.
        self._constants[weight][0] *= 0.25
        inputs = [x, weight, *([self.floats(out, scale=0.3)] if bias else [])]
        return self.node("Conv", *inputs, name=name, kernel_shape=list(kernel), group=group, **attrs)

    def signs(self, *shape: int, scale: float, name: str | None = None) -> str:
        """Weights of one magnitude: the sums they make are the largest there are."""
        return self.constant((np.where(self.rng.random(shape) < 0.5, -scale, scale)).astype(np.float32), name)

    def dense(self, x: str, into: int, out: int, bias: bool = True, trans: int = 1, name: str | None = None) -> str:
        shape = (out, into) if trans else (into, out)
        inputs = [x, self.floats(*shape, scale=1.2 / np.sqrt(into)), *([self.floats(out, scale=0.3)] if bias else [])]
        return self.node("Gemm", *inputs, name=name, transB=trans)

    def output(self, *names: str) -> None:
        self._outputs += names

    def fix_batch(self, size: int) -> None:
        """Give the inputs a fixed batch axis."""
        for value in self._inputs:
            value.type.tensor_type.shape.dim[0].dim_value = size

    def proto(self) -> onnx.ModelProto:
        graph = helper.make_graph(
            self._nodes,
            self._name,
            self._inputs,
            [helper.make_empty_tensor_value_info(n) for n in self._outputs],
            [numpy_helper.from_array(a, n) for n, a in self._constants.items()],
        )
        domains = {n.domain for n in self._nodes if n.domain}
        opsets = [helper.make_opsetid("", self._opset), *(helper.make_opsetid(d, 1) for d in sorted(domains))]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        # Outputs need a type: ask onnxruntime, which infers every op, its own included.
        options = ort.SessionOptions()
        options.log_severity_level = 4
        types = {v.name: v.type.tensor_type.elem_type for v in onnx.shape_inference.infer_shapes(model).graph.output}
        for value in model.graph.output:
            value.CopyFrom(helper.make_tensor_value_info(value.name, types[value.name] or TensorProto.FLOAT, None))
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        for value, found in zip(model.graph.output, session.get_outputs(), strict=True):
            type_ = value.type.tensor_type.elem_type
            value.CopyFrom(helper.make_tensor_value_info(value.name, type_, found.shape))
        return model

    def _fresh(self, base: str) -> str:
        self._counts[base] = self._counts.get(base, 0) + 1
        return f"{base}{self._counts[base]}"


@dataclass(frozen=True, eq=False)
class ArraySamples:
    """Samples in memory."""

    inputs: Mapping[str, Array]
    labels: Array | None = None
    digest: str = "arrays"

    @property
    def labelled(self) -> bool:
        return self.labels is not None

    def __len__(self) -> int:
        return len(next(iter(self.inputs.values())))

    def batches(self, size: int) -> Iterator[Batch]:
        for start in range(0, len(self), size):
            part = {k: v[start : start + size] for k, v in self.inputs.items()}
            indices = np.arange(start, min(start + size, len(self)))
            yield Batch(part, None if self.labels is None else self.labels[indices], indices)


def normal_samples(graph: Graph, count: int = 12, seed: int = 7) -> ArraySamples:
    """Skewed normal values, so that zero points are not in the middle."""
    rng = np.random.default_rng(seed)
    arrays = {}
    for info in graph.inputs:
        values = rng.standard_normal((count, *[d or 1 for d in info.shape[1:]]))
        arrays[info.name] = np.where(values > 0, 1.7 * values, values).astype(np.float32)
    return ArraySamples(arrays)


def hardware_data(name: str) -> dict[str, Any]:
    """A shipped hardware file as plain data, to be changed by a test."""
    return compose.option("hardware", name)


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {"tensorrt_both": ("tensorrt", {"add_inputs": "both"})}
"""Shipped files with changes that tests ask for by name: int8 activations that Q/DQ can hold."""


def hardware(shipped: str, /, **changes: Any) -> HardwareSpec:
    """A shipped hardware file (or a variant of one), with some of its top-level fields replaced."""
    name, own = VARIANTS.get(shipped, (shipped, {}))
    return load_hardware(hardware_data(name) | own | changes)


def with_products() -> HardwareSpec:
    """The shipped ort_cpu with products of two activations in integers, which it can and does not prefer."""
    ops = hardware_data("ort_cpu")["ops"]
    rows = [s for s in ops["MatMul"] if "float32" not in s["in"] or not s.get("when")]
    return hardware("ort_cpu", ops={**ops, "MatMul": rows})


def schemas() -> dict[str, dict[str, Any]]:
    """The shipped schemas by name, without `auto`."""
    return {name: dict(content) for name, content in compose.schemas().items()}


def schema_for(spec: HardwareSpec, name: str = "auto") -> Schema:
    known = schemas()
    return resolve_schema(spec, known.get(name, {"name": name}), known)


def load(
    net: Net | onnx.ModelProto,
    samples: Callable[[Graph], ArraySamples] = normal_samples,
    declared: Collection[str] = (),
) -> Graph:
    """The clean graph of a net, by way of a file, as the program reads it (in this process: it is known to run)."""
    proto = net.proto() if isinstance(net, Net) else net

    def example(raw: Graph) -> Mapping[str, Array]:
        return next(iter(samples(raw).batches(raw.inputs[0].shape[0] or 4))).inputs

    with tempfile.TemporaryDirectory() as folder:
        return load_graph(model_file(proto, Path(folder)), example, isolate=False, declared=declared)


def set_threshold(strategy: Strategy, key: str, range_: Range) -> Strategy:
    return Strategy(strategy.bits, {**strategy.ranges, key: range_}, strategy.weights)


@dataclass(frozen=True, eq=False)
class Line:
    """One graph on one hardware: topology, statistics, plans, simulated and realized forms."""

    graph: Graph
    spec: HardwareSpec
    schema: Schema
    samples: Samples
    options: AnnotateOptions = field(default_factory=AnnotateOptions)

    @cached_property
    def topology(self) -> Topology:
        return analyze(self.graph, self.spec, self.schema, self.options)

    @cached_property
    def table(self) -> ThresholdTable:
        profile = measure(self.graph, self.topology.measured, self.samples, 1024)
        return ThresholdTable(
            self.graph, self.topology, self.schema, profile, estimator=MaxRange(), weight_method="max_range"
        )

    @cached_property
    def problem(self) -> Problem:
        return Problem(self.graph, self.topology, self.spec, self.schema)

    @property
    def planner(self) -> Planner:
        return self.problem.planner

    def strategy(self, bits: int | Sequence[int] = 8, seed: int = 0) -> Strategy:
        """Every choice at `bits`, or each at a random one of several."""
        rng = np.random.default_rng(seed)
        offered = [bits] if isinstance(bits, int) else list(bits)
        space = choice_space(self.topology, self.options)
        wanted = {c.key: int(rng.choice(offered)) for c in space}
        return self.table.strategy({c.key: min(max(wanted[c.key], c.options[-1]), c.options[0]) for c in space})

    def plan(self, bits: int | Sequence[int] = 8, seed: int = 0) -> QuantPlan:
        return self.planner.plan(self.strategy(bits, seed))

    def ties(self, bits: int | Sequence[int] = 8, seed: int = 0) -> QuantPlan:
        """Scales that are powers of two, and odd zero points where there are any: most accumulators then requantize
        to a half now and then."""
        found = self.strategy(bits, seed)
        asymmetric = not self.spec.activations.symmetric and self.schema.activations.symmetry == "asymmetric"
        ranges = {}
        for group in self.topology.groups:
            r, steps = found.ranges[group.key], (1 << found.bits[group.key]) - 1
            if asymmetric:
                scale = 2.0 ** np.ceil(np.log2(max(r.high - r.low, 1e-6) / steps))
                zero = min(int(-r.low / scale) | 1, steps)
                ranges[group.key] = Range(-zero * scale, (steps - zero) * scale)
            else:
                top = (1 << (found.bits[group.key] - 1)) - (self.schema.activations.denominator == "max")
                ranges[group.key] = Range(0.0, top * 2.0 ** np.ceil(np.log2(max(r.threshold, 1e-6) / top)))
                if r.low < 0:
                    ranges[group.key] = Range(-ranges[group.key].high, ranges[group.key].high)
        weights = {}
        for site in self.topology.weights:
            top = (1 << (found.bits[site.tensor] - 1)) - (self.schema.weights.denominator == "max")
            if found.weights[site.tensor].ndim == 2:
                low, high = found.weights[site.tensor].T
                steps = (1 << found.bits[site.tensor]) - 1
                scale = 2.0 ** np.ceil(np.log2(np.maximum(high - low, 1e-6) / steps))
                zero = np.minimum((-low / scale).astype(int) | 1, steps)
                weights[site.tensor] = np.stack([-zero * scale, (steps - zero) * scale], axis=1)
                continue
            limits = np.maximum(found.weights[site.tensor], 1e-6)
            weights[site.tensor] = np.asarray(top * 2.0 ** np.ceil(np.log2(limits / top)))
        return self.planner.plan(Strategy(found.bits, ranges, weights))

    def simulate(self, plan: QuantPlan) -> Simulation:
        return simulate(self.graph, self.topology, plan)

    def realize(self, plan: QuantPlan, backend: str) -> Rendered:
        return stored_ends(render(self.graph, self.topology, plan, BACKENDS[backend]()), self.topology, plan)

    def agree(self, plan: QuantPlan, backend: str, everywhere: bool = False) -> Agreement:
        """The comparison in the sessions that decide, or in all of them."""
        realized, simulation = self.realize(plan, backend), self.simulate(plan)
        simulated = SimulatedModel(self.graph, self.topology, plan, simulation, realized=realized)
        kinds = [kind for kind in session_kinds(realized.model) if kind.decides or everywhere]
        return compare_with(simulated, realized, self.samples, kinds)

    def outputs(self, model: Any = None) -> dict[str, Array]:
        """All outputs of a model (of the float model when none is given) over all samples."""
        session = Session(model if model is not None else self.graph.model)
        size = self.graph.batch_size
        parts = [session.run(b.inputs) for b in self.samples.batches(size)]
        return {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}


def line(
    net: Net | onnx.ModelProto | Graph,
    spec: HardwareSpec | str = "ort_cpu",
    schema: str = "auto",
    samples: Samples | None = None,
    **options: Any,
) -> Line:
    """A line over a net; `options` are those of AnnotateOptions."""
    spec = hardware(spec) if isinstance(spec, str) else spec
    graph = net if isinstance(net, Graph) else load(net, declared=reachable(spec))
    return Line(graph, spec, schema_for(spec, schema), samples or normal_samples(graph), AnnotateOptions(**options))
