"""What a row of the table of float ops is, and what it computes a node from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from quantpipe.graph.view import Node

Results: TypeAlias = Tensor | tuple[Tensor, ...]
Numbers = tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Call:
    """Hold one computation of a node: its operands as tensors, None for an absent one."""

    node: Node
    operands: Sequence[Tensor | None]
    dtype: torch.dtype
    """Type of all floats of the run."""
    known: Mapping[int, Numbers]
    """Port -> the elements of a constant that the row reads as numbers."""

    def attr(self, name: str, default: Any = None) -> Any:
        """Return an attribute of the node, or `default` where the node does not set it."""
        return self.node.attr(name, default)

    def has(self, port: int) -> bool:
        """Return whether the node has an operand at a port."""
        return port < len(self.operands) and self.operands[port] is not None

    def __getitem__(self, port: int) -> Tensor:
        return self.operands[port]

    def get(self, port: int) -> Tensor | None:
        """Return the operand at a port, or None."""
        return self.operands[port] if port < len(self.operands) else None

    def numbers(self, port: int) -> Numbers | None:
        """Return the elements of an operand, or None where it is absent; no gradient passes."""
        if port in self.known:
            return self.known[port]
        value = self.get(port)
        return None if value is None else tuple(value.detach().flatten().tolist())

    def integers(self, port: int) -> list[int] | None:
        """Return the elements of an operand of integers, or None where it is absent."""
        found = self.numbers(port)
        return None if found is None else [int(number) for number in found]


Compute = Callable[[Call], Results]


@dataclass(frozen=True)
class FloatOp:
    """Describe how torch computes an op, and which of its forms are supported."""

    compute: Compute
    attributes: frozenset[str] = frozenset()
    """Attributes that `compute` reads, or that it may ignore; a node with another one is rejected."""
    refuse: Callable[[Node], str | None] = lambda node: None
    """Return why a node with legal attributes is not supported, else None."""
    numbers: frozenset[int] = frozenset()
    """Ports whose operand is read as numbers: shapes, axes, sizes, limits."""
    outputs: int = 1
    """The most outputs that `compute` returns."""
    inputs: int = 1
    """The most operands that `compute` reads."""

    def reason(self, node: Node) -> str | None:
        """Return why a node is not supported, or None where it is."""
        for name in node.attributes:
            if name not in self.attributes:
                return f"its attribute {name} is not supported"
        more = [port for port, tensor in enumerate(node.inputs) if tensor and port >= self.inputs]
        if more:
            return f"its operand {more[0]} is not supported"
        if any(node.outputs[self.outputs :]):
            return f"its output {self.outputs} is not supported"
        return self.refuse(node)
