"""Write QONNX's own nodes: Quant, BipolarQuant and Trunc."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantpipe.arrays import along
from quantpipe.graph.build import GraphBuilder
from quantpipe.realize.qonnx.arithmetic import NEAREST, QonnxNarrowing
from quantpipe.types import Quantizer, Rounding, WeightTensor

DOMAIN = "qonnx.custom_op.general"
VERSION = 2
"""The version of its ops at which Trunc has a scale of its result."""
ROUNDING = {Rounding.HALF_EVEN: "ROUND", Rounding.HALF_AWAY: "HALF_UP", Rounding.FLOOR: "FLOOR"}
"""QONNX's words; its HALF_UP goes away from zero."""

Constants = Callable[[str, NDArray[Any] | np.generic], ir.Value]


@dataclass(frozen=True, eq=False)
class QuantParameters:
    """Hold the parameters of Quant: `scale` and `zero` broadcast to the tensor."""

    scale: NDArray[Any]
    zero: NDArray[Any]
    bits: int
    signed: bool
    narrow: bool

    @property
    def ends(self) -> tuple[int, int]:
        """Return the smallest and the largest integer."""
        if not self.signed:
            return 0, (1 << self.bits) - 1 - self.narrow
        return -(1 << (self.bits - 1)) + self.narrow, (1 << (self.bits - 1)) - 1

    @classmethod
    def of(cls, q: Quantizer) -> QuantParameters:
        """Return the narrowest grid of whole bits that holds the integers of a tensor."""
        signed, bits = q.qmin < 0, q.bits
        while not cls._holds(q, bits, signed):
            bits += 1
        narrow = signed and q.qmin > -(1 << (bits - 1))
        return cls(np.float32(q.scale), np.float32(q.zero_point), bits, signed, narrow)  # type: ignore[arg-type]

    @staticmethod
    def _holds(q: Quantizer, bits: int, signed: bool) -> bool:
        most = (1 << (bits - signed)) - 1
        return q.qmax <= most and (not signed or q.qmin >= -most - 1)

    @classmethod
    def of_weight(cls, weight: WeightTensor) -> QuantParameters:
        """Return the grid of a weight, narrow where it does not have the most negative integer."""
        rank, signed = weight.values.ndim, weight.dtype.signed
        least = -(1 << (weight.bits - 1))
        narrow = signed and (not weight.values.size or int(weight.values.min()) > least)
        return cls(_shaped(weight.scale, weight, rank), _shaped(weight.zero, weight, rank), weight.bits, signed, narrow)


class Nodes:
    """Write nodes into a graph in the making."""

    def __init__(self, builder: GraphBuilder, constants: Constants) -> None:
        self._builder, self._constants = builder, constants

    def quant(
        self, value: ir.Value, grid: QuantParameters, output: str, *, how: QonnxNarrowing = NEAREST, claim: bool = False
    ) -> ir.Value:
        """Write Quant, whose result is the real values on a grid.

        `claim`: the result is the graph's tensor of that name.
        """
        return self._builder.op(
            "Quant", value, *self._parameters(output, grid, grid.scale), self._single(f"{output}_bits", grid.bits),
            name=f"{output}/quant", output=output, domain=DOMAIN, claim=claim,
            signed=int(grid.signed), narrow=int(grid.narrow), rounding_mode=ROUNDING[how.rounding],
        )  # fmt: skip

    def trunc(
        self, value: ir.Value, grid: QuantParameters, output: str, *, shift: int, claim: bool = False
    ) -> ir.Value:
        """Write Trunc: integral steps of 2^-shift times the grid's step, cut to integral ones.

        `claim`: the result is the graph's tensor of that name.
        """
        fine = QuantParameters(
            grid.scale / np.float32(2**shift), grid.zero * np.float32(2**shift), 32, grid.signed, grid.narrow
        )
        return self._builder.op(
            "Trunc", value, *self._parameters(f"{output}_fine", fine, fine.scale),
            self._single(f"{output}_fine_bits", min(grid.bits + shift, 32)),
            self._constants(f"{output}_scale", np.asarray(grid.scale, np.float32)),
            self._single(f"{output}_bits", grid.bits),
            name=f"{output}/trunc", output=output, domain=DOMAIN, claim=claim,
            signed=int(grid.signed), narrow=int(grid.narrow), rounding_mode=ROUNDING[Rounding.FLOOR],
        )  # fmt: skip

    def weight(self, weight: WeightTensor) -> ir.Value:
        """Write a weight: integral steps after BipolarQuant if all are -1 or 1, else after Quant."""
        grid = QuantParameters.of_weight(weight)
        real = weight.centred().astype(np.float32) * grid.scale
        constant = self._constants(f"{weight.tensor}_on_grid", np.asarray(real, np.float32))
        output = f"{weight.tensor}_quant"
        if weight.has_zero_point or not np.all(np.abs(weight.values.astype(np.int32)) == 1):
            return self.quant(constant, grid, output)
        scale = self._constants(f"{output}_scale", np.asarray(grid.scale, np.float32))
        return self._builder.op("BipolarQuant", constant, scale, name=f"{output}/bipolar", output=output, domain=DOMAIN)

    def _parameters(self, output: str, grid: QuantParameters, scale: NDArray[Any]) -> tuple[ir.Value, ir.Value]:
        return (
            self._constants(f"{output}_scale", np.asarray(scale, np.float32)),
            self._constants(f"{output}_zero", np.asarray(grid.zero, np.float32)),
        )

    def _single(self, name: str, value: int) -> ir.Value:
        return self._constants(name, np.float32(value))


def _shaped(values: NDArray[Any], weight: WeightTensor, rank: int) -> NDArray[Any]:
    return np.asarray(along(values, weight.axis, rank), np.float32)
