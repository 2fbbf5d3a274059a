"""The test kit for plug-in packages: the tests of quantpipe's own ops and forms, for other packages.

    from my_npu.quantpipe import EXTENSION
    from quantpipe.testing import check_extension, check_model

    def test_tables():
        check_extension(EXTENSION, package="my_npu")

    def test_op():
        check_model(model, hardware, EXTENSION, package="my_npu")

All errors name the package, the node and the first element that differs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from quantpipe import extend
from quantpipe.annotate.choices import choice_space
from quantpipe.annotate.conditions import AnnotateOptions
from quantpipe.annotate.topology import analyze
from quantpipe.api.model import Model, model_file
from quantpipe.app import compose
from quantpipe.calibrate.decided import with_decisions
from quantpipe.calibrate.estimators import MaxRange
from quantpipe.calibrate.measure import measure
from quantpipe.calibrate.threshold_table import ThresholdTable
from quantpipe.errors import AgreementError
from quantpipe.evaluate.agreement import compare
from quantpipe.evaluate.plugin_op import check_plug_ins
from quantpipe.extend import Array, Extension
from quantpipe.graph.view import Graph
from quantpipe.hardware.legality import reachable
from quantpipe.hardware.load import load_hardware
from quantpipe.hardware.schemas import resolve_schema
from quantpipe.intake.load import load_graph
from quantpipe.lowering.context import opset_for
from quantpipe.oprules import OP_RULES
from quantpipe.plan import Problem
from quantpipe.realize import BACKENDS, OWN, refuse_clashes, write
from quantpipe.recover.layer_units import Choosing
from quantpipe.recover.layer_views import calibrate_layers
from quantpipe.simulate.simulator import simulate
from quantpipe.types import Batch, HardwareSpec, TensorInfo

__all__ = ["Checked", "check_extension", "check_model", "installed"]

SAMPLES = 12
BEYOND = 1.5
"""Samples are compared beyond what ranges were taken from, so that clamps act."""
WIDTHS = (8, 5)


@dataclass(frozen=True)
class Checked:
    """State what was compared: kernels of the package, elements, and the forms that were written.

    `absent` are ops of the package that the model does not contain, for example patterns that were not found in it.
    """

    kernels: tuple[str, ...]
    elements: int
    forms: tuple[str, ...] = field(default=())
    absent: tuple[str, ...] = field(default=())


@contextmanager
def installed(extension: Extension, package: str = "plug_in", source: str = "") -> Iterator[None]:
    """Have an extension installed inside a `with` block, as `plugins=[PACKAGE]` does for an installed package.

    Args:
        extension: The extension.
        package: The name that errors give.
        source: `module:attribute` of the extension, which other processes need.

    Raises:
        ConfigError: Naming the package, where one of its ops or forms cannot be used.
    """
    extend.install_object(package, source, extension)
    try:
        refuse_clashes()
        yield
    finally:
        extend.forget(package)


def check_extension(extension: Extension, package: str = "plug_in") -> None:
    """Join the tables: every op has a rule, and every form has a way to write it; no name is taken.

    Args:
        extension: The extension.
        package: The name that errors give.

    Raises:
        ConfigError: Naming the package and what cannot be used.
    """
    with installed(extension, package):
        for op in extension.ops:
            name = extend.qualified(op.domain, op.name)
            lacking = [form for form in BACKENDS if name not in BACKENDS[form]().ops]
            if name not in OP_RULES or lacking:
                raise extend.refused(
                    package,
                    f"its op {name} is written by no lowering of {', '.join(lacking)}; legal is a form whose `ops` "
                    "include the ops of its base class (such as quantpipe.realize.Integer)",
                )


def check_model(
    model: Model,
    hardware: Mapping[str, Any] | str,
    extension: Extension,
    *,
    package: str = "plug_in",
    samples: Mapping[str, Array] | None = None,
    forms: Sequence[str] | None = None,
) -> Checked:
    """Take a model with ops of the package through every stage, and compare element by element.

    The simulated and the realized integers of each kernel are held against the package's interpreter and float
    reference, and against each other in every session and form. Bits are 8, then 5. Calibrators of the package decide
    on the kernels that they are for, before that.

    Args:
        model: An ONNX model: path, bytes or `ModelProto`. Small: the interpreter runs in NumPy.
        hardware: The content of a hardware file that declares the ops, or the name of a shipped one.
        extension: The extension.
        package: The name that errors give.
        samples: Inputs `[N, …]` by name; None: skewed normal values.
        forms: Output forms; None: all that the hardware can run.

    Returns:
        What was compared.

    Raises:
        ConfigError: Naming the package, the node and the first element where its arithmetic departs.
        AgreementError: Where simulated and realized integers differ.
    """
    with installed(extension, package), tempfile.TemporaryDirectory() as folder:
        spec = load_hardware(
            compose.option("hardware", hardware) if isinstance(hardware, str) else compose.whole_hardware(hardware)
        )
        made: list[_Samples] = []

        def example(raw: Graph) -> Mapping[str, Array]:
            given = samples or {i.name: _values(i, SAMPLES) for i in raw.inputs}
            made.append(_Samples({name: np.asarray(array) for name, array in given.items()}))
            return next(iter(made[0].batches(raw.fixed_batch or 4))).inputs

        path = model_file(model, Path(folder))
        graph = load_graph(path, example, least_opset=opset_for(spec), isolate=False, declared=reachable(spec))
        return _checked(graph, spec, made[0], package=package, forms=tuple(forms or _forms(spec)))


def _checked(graph: Graph, spec: HardwareSpec, samples: _Samples, *, package: str, forms: tuple[str, ...]) -> Checked:
    schema = resolve_schema(spec, {"name": "auto"}, compose.schemas())
    topology = analyze(graph, spec, schema, AnnotateOptions())
    own = [n for n in graph.nodes if extend.op_of(n.op) is not None]
    for node in own:
        if node.name not in topology.kernel_of:
            raise extend.refused(
                package, f"its op {node.op} at node {node.name} stays in float: {topology.float_nodes[node.name]}"
            )
    own += [n for n in graph.nodes if n.name in topology.kernel_of and extend.calibrator_of(n.op) is not None]
    if not own and extend.has_calibrators():
        raise extend.refused(package, "the model has no kernel of an op that its calibrators are for")
    if not own and extend.ops():
        raise extend.refused(package, f"the model does not have any of its ops: {', '.join(extend.ops())}")
    profile = measure(graph, topology.measured, samples, 1024)
    estimator = with_decisions(MaxRange(), MaxRange())
    table = ThresholdTable(graph, topology, schema, profile, estimator=estimator, weight_method="max_range")
    problem = Problem(graph, topology, spec, schema)
    if extend.has_calibrators():
        start = table.strategy({c.key: c.options[0] for c in choice_space(topology, AnnotateOptions())})
        calibrate_layers(problem, table, start, samples, choosing=Choosing(None), memory_mb=64)
    beyond, elements = samples.scaled(BEYOND), 0
    for bits in WIDTHS:
        space = choice_space(topology, AnnotateOptions())
        chosen = {c.key: min(max(bits, int(c.options[-1])), int(c.options[0])) for c in space}
        plan = problem.planner.plan(table.strategy(chosen))
        simulation = simulate(graph, topology, plan)
        for form in forms:
            realized = write(form, graph, topology, plan)
            check_plug_ins(graph, topology, plan, simulation, realized=realized, samples=beyond)
            found = compare(graph, topology, plan, simulation, realized=realized, samples=beyond)
            elements += found.elements
            if found.differing:
                raise AgreementError(
                    f"{found.differing} of {found.elements} elements differ between the simulated model and the form "
                    f"{form} at {bits} bits, the first in {found.first_tensor}",
                    where=f"the plug-in package {package}",
                )
    absent = tuple(name for name in extend.ops() if all(n.op != name for n in graph.nodes))
    return Checked(tuple(dict.fromkeys(n.name for n in own)), elements, forms, absent)


def _forms(spec: HardwareSpec) -> list[str]:
    """Return the forms whose arithmetic the hardware has: onnxruntime's kernels narrow in one way."""
    kernels = all(how.is_kernel_arithmetic for how in spec.requantizations)
    return [form for form in BACKENDS if kernels or form == "integer" or form not in OWN]


def _values(info: TensorInfo, count: int) -> Array:
    rng = np.random.default_rng(7)
    values = rng.standard_normal((info.shape[0] or count, *[d or 1 for d in info.shape[1:]]))
    return np.where(values > 0, 1.7 * values, values).astype(info.dtype)


@dataclass(frozen=True, eq=False)
class _Samples:
    """Samples in memory."""

    inputs: Mapping[str, Array]
    labels: Array | None = None
    digest: str = "arrays"

    @property
    def labelled(self) -> bool:
        return False

    def __len__(self) -> int:
        return len(next(iter(self.inputs.values())))

    def batches(self, size: int) -> Iterator[Batch]:
        for start in range(0, len(self), size):
            part = {name: array[start : start + size] for name, array in self.inputs.items()}
            yield Batch(part, None, np.arange(start, min(start + size, len(self))))

    def scaled(self, factor: float) -> _Samples:
        real = {n: (a * np.asarray(factor, a.dtype) if a.dtype.kind == "f" else a) for n, a in self.inputs.items()}
        return _Samples(real)
