"""Split the error of a stored tensor in the integer model itself, by the steps of its kernel.

The kernel's operands are taken as the simulated model holds them. From them the kernel is computed in float three
times: with the float weights, with the integer ones, and with the integer bias as well. The further loss of the result
is clipping and rounding to its own scale. The remaining difference of the integers is the arithmetic between: sums that
overflowed, else multipliers, shifts and tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from quantpipe.arrays import Array
from quantpipe.calibrate.passes import run_size
from quantpipe.conform.network import ACCUMULATOR
from quantpipe.evaluate.in_cache import in_cache
from quantpipe.explain.sensitivity import Exchanged
from quantpipe.graph.execute import Session, available_cores
from quantpipe.graph.extract import part_of
from quantpipe.graph.normalize import expose
from quantpipe.graph.switches import with_constants
from quantpipe.graph.view import Graph
from quantpipe.intmath import round_real
from quantpipe.lowering.fragments import along_channels
from quantpipe.simulate.simulator import Simulation, bind
from quantpipe.types import Accumulate, Contract, Form, Kernel, Quantizer, QuantPlan, Samples, SplitRow, Topology


def local_splits(
    graph: Graph, topology: Topology, plan: QuantPlan, simulation: Simulation, *, samples: Samples,
    tensors: Sequence[str], constants: Mapping[str, Exchanged],
) -> dict[str, SplitRow]:  # fmt: skip
    """Return the parts of the error of stored tensors, as shares of their mean square.

    Tensors that no kernel makes of known operands are left out. `constants` are weights and biases of the kernels, real
    and as integers hold them.
    """
    kernels = {k.output: k for k in topology.kernels}
    made = [_Made.of(graph, plan, simulation, kernels[t], constants=constants) for t in tensors if t in kernels]
    known = [one for one in made if one is not None]
    if not known:
        return {}
    model = bind(simulation.rendered.model, simulation.weights)
    inner = list(dict.fromkeys(name for one in known for name in one.names))
    simulated = Session(expose(model, inner), spin=False, where="simulated model")
    ends = [one.kernel.output for one in known]
    real = Session(expose(graph.model, ends), spin=False, where=graph.source)
    signal = dict.fromkeys(ends, 0.0)
    with ThreadPoolExecutor(available_cores()) as pool:
        for batch in samples.batches(run_size(graph, [*ends, *ends])):
            values = simulated.run({**batch.inputs, **simulation.scalars}, inner)
            wanted = real.run(batch.inputs, ends)
            list(pool.map(lambda one: one.add(values, wanted[one.kernel.output]), known))  # noqa: B023
            for end, array in wanted.items():
                signal[end] += sum(float(np.sum(array[rows].astype(np.float64) ** 2)) for rows in in_cache(array.shape))
    return {one.kernel.output: one.row(signal[one.kernel.output] or 1.0) for one in known}


@dataclass(eq=False)
class _Made:
    """One kernel with its operands, and its three real forms."""

    kernel: Kernel
    quantizer: Quantizer | None
    """None for an accumulator that is handed on."""
    scale: Array
    operands: Mapping[str, tuple[str, Array]]
    """Operand -> the value that holds its integers, less their zero point, and their scale."""
    stored: str
    limits: tuple[str, str] | None
    forms: Sequence[Session]
    sums: dict[str, float]

    @classmethod
    def of(
        cls,
        graph: Graph,
        plan: QuantPlan,
        simulation: Simulation,
        kernel: Kernel,
        *,
        constants: Mapping[str, Exchanged],
    ) -> _Made | None:
        """Return the kernel; None if its operands are floats, or have no known name."""
        held, output = simulation.rendered.integers, kernel.output
        narrowed = output in held and output in plan.quantizers  # of an accumulator, too
        stored = _operand(graph, plan, held, output, form=Form.QUANTIZED if narrowed else kernel.form)
        if stored is None:
            return None
        operands = {}
        for operand in kernel.operands:
            found = _operand(graph, plan, held, operand.tensor, form=operand.form)
            if found is None:
                return None
            operands[operand.tensor] = found
        members = [graph.by_name[name] for name in (kernel.node, *kernel.fused)]
        inner = {t for node in members for t in node.outputs}
        read = {t for node in members for t in (*node.inputs, *node.captured) if t and not graph.is_constant(t)}
        if read - inner - operands.keys():
            return None  # a shape, or another number that is computed
        part = part_of(graph, list(operands), [output]).model
        here = [t for t in (kernel.weight, kernel.bias) if t and t in constants and t in part.graph.initializers]
        models = [part]
        for count in range(1, len(here) + 1):
            models.append(with_constants(part, {t: constants[t].held for t in here[:count]}))
        forms = [Session(model, where=f"kernel {kernel.node}", threads=1) for model in models]
        if kernel.weight not in here and len(forms) > 1:
            forms.insert(1, forms[0])  # its weight is as it was
        limits = simulation.limits.get(output)
        quantizer = plan.quantizers[output] if narrowed else None
        return cls(
            kernel,
            quantizer,
            stored[1],
            operands,
            stored[0],
            limits,
            forms,
            dict.fromkeys(SplitRow.__annotations__, 0.0),
        )

    @property
    def names(self) -> list[str]:
        """Return the names of the values to read from the simulated model."""
        return [self.stored, *(name for name, _ in self.operands.values()), *(self.limits or ())]

    def add(self, values: Mapping[str, Array], wanted: Array) -> None:
        """Include one batch: what the simulated model holds, and the float model's result, float32."""
        feeds = {t: (values[name] * scale).astype(np.float32) for t, (name, scale) in self.operands.items()}
        made = [one.run(feeds)[self.kernel.output] for one in self.forms]
        made += [made[-1]] * (3 - len(made))
        held, wrong = values[self.stored], self._wrong(values)
        for rows in in_cache(held.shape):
            real = [one[rows].astype(np.float64) for one in made]
            self._add(real, wanted[rows].astype(np.float64), held[rows], wrong[rows] if wrong is not None else None)

    def _wrong(self, values: Mapping[str, Array]) -> NDArray[np.bool_] | None:
        """Return where a sum overflowed; None without overflows."""
        if self.limits is None:
            return None
        before, after = (values[name] for name in self.limits)
        shape = values[self.stored].shape
        wrong = before != after if before.shape == shape else np.full(shape, bool(np.any(before != after)))
        return np.asarray(wrong) if np.any(wrong) else None

    def _add(self, made: Sequence[Array], wanted: Array, held: Array, wrong: NDArray[np.bool_] | None) -> None:
        """Include some rows of the three float results, float64, and of the held integers."""
        scale, rounded = self.scale, made[2]
        self._add_to("inherited", made[0], wanted)
        self._add_to("weight", made[1], made[0])
        self._add_to("bias", made[2], made[1])
        if self.quantizer is not None:
            clipped = np.clip(made[2], self.quantizer.low * scale, self.quantizer.high * scale)
            rounded = round_real(clipped / scale) * scale
            self._add_to("clipping", clipped, made[2])
            self._add_to("rounding", rounded, clipped)
        real = held.astype(np.float64) * scale
        if wrong is None:
            self._add_to("rescale", real, rounded)
        else:
            self._add_to("overflow", real[wrong], rounded[wrong])
            self._add_to("rescale", real[~wrong], rounded[~wrong])

    def _add_to(self, part: str, one: Array, other: Array) -> None:
        difference = (one - other).reshape(-1)
        total = float(np.dot(difference, difference))
        if not np.isfinite(total):
            difference = difference[np.isfinite(difference)]
            total = float(np.dot(difference, difference))
        self.sums[part] += total

    def row(self, signal: float) -> SplitRow:
        return cast("SplitRow", {part: total / signal for part, total in self.sums.items()})


def _operand(
    graph: Graph, plan: QuantPlan, held: Mapping[str, str], tensor: str, *, form: Form
) -> tuple[str, Array] | None:
    if form is Form.QUANTIZED and tensor in held and tensor in plan.quantizers:
        return held[tensor], np.asarray(plan.quantizers[tensor].scale, np.float64)
    scale = raw_scale(graph, plan, tensor)
    if form is Form.RAW and scale is not None and f"{tensor}{ACCUMULATOR}" in held:
        return held[f"{tensor}{ACCUMULATOR}"], scale
    return None


def raw_scale(graph: Graph, plan: QuantPlan, tensor: str) -> Array | None:
    """Return the scale of an accumulator that another kernel reads, shaped to broadcast; None if no kernel has one."""
    maker = graph.producers.get(tensor)
    numbers = plan.kernels.get(maker.name) if maker is not None else None
    if not isinstance(numbers, Accumulate | Contract):
        return None
    return along_channels(np.asarray(numbers.acc_scale, np.float64), graph, tensor)
