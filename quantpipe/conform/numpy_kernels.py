"""One kernel of a plan in NumPy integers: from its operands to its accumulator and to what it stores.

It computes the result of a device that departs from the plan in one way (`Fault`), and of a kernel with other numbers
on the device's own operands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from quantpipe import intmath
from quantpipe.arrays import EXACT_FLOAT32, Array, Ints, along
from quantpipe.conform.faults import NONE, Fault
from quantpipe.conform.narrow import clamped, free_sum, limited, narrowed, raw_terms, total_of
from quantpipe.conform.network import Network, name_of
from quantpipe.conform.windows import convolved, spread, summed, transposed_window, window_of
from quantpipe.errors import QuantpipeError
from quantpipe.graph.execute import Session
from quantpipe.graph.extract import part_of
from quantpipe.graph.view import Node
from quantpipe.oprules import Family, OpRule, rule_of
from quantpipe.oprules.matrix import TransposedForm
from quantpipe.types import (
    Accumulate,
    Average,
    Contract,
    DType,
    Form,
    Kernel,
    KernelPlan,
    Lookup,
    Move,
    Operand,
    Product,
    Quantizer,
    Requantize,
    Sum,
)


@dataclass(frozen=True, eq=False)
class RepeatedKernel:
    """Hold one kernel of a network, to be repeated in NumPy; or what narrows its accumulator for those who read it so.

    `numbers`: the plan's, or others in their place.
    """

    net: Network
    kernel: Kernel
    numbers: KernelPlan | Requantize

    @classmethod
    def of(cls, net: Network, kernel: Kernel) -> RepeatedKernel:
        """Return a kernel with the numbers of its plan."""
        return cls(net, kernel, net.plan.kernels[kernel.node])

    @classmethod
    def making(cls, net: Network, tensor: str) -> RepeatedKernel | None:
        """Return the kernel of a tensor, as dumps name it; None where it enters the network."""
        if tensor in net.maker:
            return cls.of(net, net.maker[tensor])
        kernel = net.maker.get(name_of(tensor, Form.RAW))
        if kernel is None or tensor not in net.plan.narrowings:
            return None
        return cls(net, kernel, net.plan.narrowings[tensor])

    @property
    def narrows(self) -> bool:
        """Return whether it makes stored integers of an accumulator that another kernel also reads."""
        return isinstance(self.numbers, Requantize)

    @property
    def output(self) -> Requantize | None:
        """Return how it narrows; None where it does not."""
        if isinstance(self.numbers, Requantize):
            return self.numbers
        found: Requantize | None = getattr(self.numbers, "output", None)
        return found

    @property
    def node(self) -> Node:
        """Return the node of the float graph."""
        return self.net.graph.by_name[self.kernel.node]

    @cached_property
    def rule(self) -> OpRule:
        """Return the rule of its op for scales."""
        found = rule_of(self.node)
        assert found is not None  # noqa: S101  (an op without a rule has no kernel)
        return found

    @property
    def out(self) -> Quantizer | None:
        """Return how its result is stored; None where the result stays an accumulator."""
        stored = self.narrows or self.kernel.form is Form.QUANTIZED
        return self.net.plan.quantizers[self.kernel.output] if stored else None

    @property
    def operands(self) -> tuple[str, ...]:
        """Return the tensors that it reads, as dumps name them, without constants."""
        if self.narrows:
            return (name_of(self.kernel.output, Form.RAW),)
        names = [name_of(o.tensor, o.form) for o in self.kernel.operands]
        return tuple(n for n in names if n not in self.net.plan.constants)

    def result(self, given: Mapping[str, Array], fault: Fault = NONE) -> Ints | None:
        """Return the kernel's result for operands `[N, …]`: stored integers, or accumulators.

        It is an accumulator where another kernel reads it. None for kernels that are not repeated here (programs over
        rows, ops of packages).
        """
        numbers, axis = self.numbers, self.rule.output_axis
        if isinstance(numbers, Requantize):
            assert self.out is not None  # noqa: S101  (what narrows, stores)
            raw = np.asarray(given[self.operands[0]]).astype(np.int64)
            return narrowed(numbers, raw, axis, out=self.out, fault=fault)
        if isinstance(numbers, Lookup):
            return self._looked_up(numbers, given)
        if isinstance(numbers, Move):
            return self._moved(numbers, given, fault)
        if isinstance(numbers, Sum) and numbers.scale is None:
            assert numbers.output is not None and self.out is not None  # noqa: S101  (such a sum is stored)
            q = free_sum(numbers, self._terms(numbers, given, fault, centred=fault.no_zero_point), axis)
            return clamped(numbers.output, q, axis, out=self.out, fault=fault)
        acc = self.accumulator(given, fault)
        if acc is None:
            return None
        if self.output is None or self.out is None:
            return acc
        return narrowed(self.output, acc, axis, out=self.out, fault=fault)

    def accumulator(self, given: Mapping[str, Array], fault: Fault = NONE) -> Ints | None:
        """Return the sums before they are narrowed; None for kernels without sums, and those not repeated here."""
        numbers = self.numbers
        if isinstance(numbers, Accumulate):
            return self._products(numbers, given, fault)
        if isinstance(numbers, Sum) and numbers.scale is not None:
            terms = self._terms(numbers, given, fault, centred=True)
            limit = None if numbers.terms[0].fixed is not None else fault.limit  # those are of 32 bits by definition
            return limited(total_of(numbers, terms, self.rule.output_axis), limit)
        if isinstance(numbers, Contract | Product):
            a, b = (self._centred(o, given, fault) for o in self.kernel.operands)
            whole = a * b if isinstance(numbers, Product) else a.astype(np.float64) @ b.astype(np.float64)
            return limited(np.asarray(whole).astype(np.int64), fault.limit)
        if isinstance(numbers, Average):
            x = self._centred(self.kernel.operands[0], given, fault)
            taps = self.node.attr("kernel_shape", list(x.shape[2:]))
            made = self.net.graph.shapes[self.node.outputs[0]][2:]
            return summed(x, window_of(self.node, x.shape[2:], taps, made).moved(fault.shift))
        return None

    # --- operands -----------------------------------------------------------------------------------------------------

    def _stored(self, operand: Operand, given: Mapping[str, Array]) -> Ints:
        constant = self.net.plan.constants.get(operand.tensor)
        found = constant if constant is not None else given[name_of(operand.tensor, operand.form)]
        return np.asarray(found).astype(np.int64)

    def _centred(self, operand: Operand, given: Mapping[str, Array], fault: Fault = NONE) -> Ints:
        """Return q - z of an operand, at the scale at which it is read."""
        q = self._stored(operand, given)
        if operand.form is Form.RAW:
            return q
        source = self.net.plan.quantizers[operand.tensor]
        if operand.rescaled:
            target = self.net.plan.quantizers[self.kernel.output]
            real = intmath.dequantize(q, source.scale, source.zero_point)
            q = intmath.quantize(
                *(real, target.scale, target.zero_point), qmin=target.qmin, qmax=target.qmax, dtype=target.dtype
            ).astype(np.int64)
            return q - target.zero_point
        return q if fault.no_zero_point else q - source.zero_point

    def _terms(self, numbers: Sum, given: Mapping[str, Array], fault: Fault, *, centred: bool) -> list[Ints]:
        known = {o.tensor: o for o in self.kernel.operands}
        found = []
        for term, raw in zip(numbers.terms, raw_terms(numbers), strict=True):
            operand = known[term.tensor]
            found.append(self._centred(operand, given, fault) if centred or raw else self._stored(operand, given))
        return found

    # --- families -----------------------------------------------------------------------------------------------------

    def _products(self, numbers: Accumulate, given: Mapping[str, Array], fault: Fault) -> Ints:
        data = self.kernel.operands[0]
        x, weight = self._centred(data, given, fault), self.net.plan.weights[numbers.weight].centred().astype(np.int64)
        zero = self.net.plan.quantizers[data.tensor].zero_point
        acc = self._linear(x, weight, pad=-zero if fault.pads_zero else 0, fault=fault)
        if numbers.bias is not None and not fault.no_bias:
            acc = acc + along(numbers.bias, self.rule.output_axis, acc.ndim)
        if numbers.pairs is not None:
            q = self._linear(x, numbers.pairs.weight.astype(np.int64), pad=0, fault=fault, ungrouped=True)
            axis = self.rule.output_axis % acc.ndim
            q = q + along(zero * numbers.pairs.total, axis, q.ndim)
            excess = np.moveaxis(q - np.clip(q, DType.INT16.qmin, DType.INT16.qmax), axis, 0)
            np.subtract.at(np.moveaxis(acc, axis, 0), numbers.pairs.owner, excess)
        return limited(acc, fault.limit or numbers.limit)

    def _linear(self, x: Ints, weight: Ints, *, pad: int, fault: Fault, ungrouped: bool = False) -> Ints:
        node = self.node
        if weight.ndim == 2:
            matrix = weight.T if node.attr("transB", 0) and not ungrouped else weight
            return (x.astype(np.float64) @ matrix.astype(np.float64)).astype(np.int64)
        made, group = self.net.graph.shapes[node.outputs[0]][2:], 1 if ungrouped else int(node.attr("group", 1))
        if isinstance(self.rule.matrix, TransposedForm):
            return spread(x, weight, group, transposed_window(node, x.shape[2:], weight.shape[2:], made))
        window = window_of(node, x.shape[2:], weight.shape[2:], made).moved(fault.shift)
        return convolved(x, weight, group, window, pad=pad)

    def _looked_up(self, numbers: Lookup, given: Mapping[str, Array]) -> Ints:
        operand = self.kernel.operands[0]
        q = self._stored(operand, given)
        code = q - self.net.plan.quantizers[operand.tensor].dtype.qmin
        row: Any = 0
        if numbers.axis is not None:
            row = along(np.arange(q.shape[numbers.axis]), numbers.axis, q.ndim)
        return np.asarray(numbers.table[row, code]).astype(np.int64)

    def _moved(self, numbers: Move, given: Mapping[str, Array], fault: Fault) -> Ints | None:
        values = {o.tensor: self._centred(o, given) for o in self.kernel.operands}
        if self.rule.family is Family.CLAMP:
            found: Ints | None = values[self.kernel.operands[0].tensor]
        else:
            if max(int(np.abs(v).max(initial=0)) for v in values.values()) >= EXACT_FLOAT32:
                return None
            found = self._float_op(values)
        if found is None:
            return None
        q = found + self.net.zero(name_of(self.kernel.output, self.kernel.form))
        if not fault.no_clamp and (numbers.low is not None or numbers.high is not None):
            q = np.clip(q, numbers.low, numbers.high)
        return q

    def _float_op(self, values: Mapping[str, Ints]) -> Ints | None:
        """Return the node itself on q - z in float32, which holds them; None where it needs more than its operands."""
        if any(n in self.net.plan.constants for n in values):  # the node holds their real values
            return None
        names = list(values)
        try:
            part = part_of(self.net.graph, names, [self.node.outputs[0]])
            session = Session(part.model, where=self.kernel.node)
            found = session.run({n: values[n].astype(np.float32) for n in names})
        except (QuantpipeError, ValueError, KeyError):
            return None
        return np.asarray(found[self.node.outputs[0]], np.float64).astype(np.int64)
