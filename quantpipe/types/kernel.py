"""A kernel of a device that is a pattern of ops, as frozen data: what it looks like and which types its values have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from quantpipe.types.hardware_fields import Cost, OpSignature


@dataclass(frozen=True)
class PatternCall:
    """Describe one op of a pattern.

    `arguments`: names of values, or numbers that a constant operand must have. Inputs of the node that are not named
    must be constants, but where `open` says that they may be anything. `attributes`: what the node must say.
    """

    op: str
    arguments: tuple[str | float, ...]
    attributes: tuple[tuple[str, object], ...] = ()
    open: bool = False


@dataclass(frozen=True)
class PatternStep:
    """Describe how a value of a pattern is made: by one of some ops. `when`: conditions on the node."""

    value: str
    calls: tuple[PatternCall, ...]
    when: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class LogicalKernel:
    """Describe a kernel that runs a pattern of ops as one.

    `steps` are in the order of the file, and the last one makes the result. `results`: every value that may be read
    outside. `signatures`: value -> op -> the ways to run the node that makes it. `bits`: value -> its highest bits.
    `cost`: the cost of its nodes where it differs from the device's other nodes. Without signatures its nodes run as
    `ops` of the file defines, and the file only states which of them are one (`chain`: the pair of `fuse` that it
    represents).
    """

    name: str
    steps: tuple[PatternStep, ...]
    results: tuple[str, ...]
    signatures: Mapping[str, Mapping[str, tuple[OpSignature, ...]]]
    bits: Mapping[str, int] = field(default_factory=dict)
    cost: Cost | None = None
    chain: tuple[str, ...] = ()
    place: str = field(default="", compare=False, repr=False)
    """`FILE, line N` of its pattern, where that is known."""

    @property
    def is_typed(self) -> bool:
        """Return whether it runs its nodes in ways of its own, and not by those that the device has for their ops."""
        return bool(self.signatures)

    @property
    def joins(self) -> frozenset[tuple[str, str]]:
        """Return each pair of ops, one of which reads what the other makes inside of the kernel."""
        makers = {step.value: {call.op for call in step.calls} for step in self.steps}
        return frozenset(
            (first, call.op)
            for step in self.steps
            for call in step.calls
            for value in call.arguments
            if isinstance(value, str)
            for first in makers.get(value, ())
        )

    @property
    def inputs(self) -> tuple[str, ...]:
        """Return the names of the values that no step makes."""
        made = {step.value for step in self.steps}
        names = (a for s in self.steps for c in s.calls for a in c.arguments if isinstance(a, str))
        return tuple(dict.fromkeys(name for name in names if name not in made))


@dataclass(frozen=True)
class KernelSite:
    """State where a kernel's pattern matches in a model: its nodes in execution order, and the tensor of each value."""

    kernel: str
    nodes: tuple[str, ...]
    tensors: tuple[tuple[str, str], ...]
    makers: tuple[tuple[str, str], ...]
    """Node -> the value that it makes."""
