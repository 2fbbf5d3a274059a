"""Rules that give single tensors another estimator than the threshold option (`threshold.rules`).

A rule selects tensors by their names, by the nodes that make or read them, or by their role in the model, and gives the
estimator of their range. This module defines a rule, and the tensors of a graph that it fits.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from quantpipe.calibrate.estimators import Estimator
from quantpipe.graph.view import Graph, Node
from quantpipe.types import Topology

WHERE = "threshold.rules"


class Side(StrEnum):
    """Name which tensors of a node are meant: those that it makes, those that it reads, or all of them."""

    MADE = "made"
    READ = "read"
    BOTH = "both"


class Role(StrEnum):
    """Name what a tensor is in the model."""

    INPUT = "input"
    OUTPUT = "output"
    ACTIVATION = "activation"
    CONSTANT = "constant"
    WEIGHT = "weight"


def matches(patterns: Iterable[str], name: str) -> bool:
    """Return whether a pattern fits a name as in a shell; a name with brackets in it fits itself."""
    return any(pattern == name or fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


@dataclass(frozen=True)
class Rule:
    """Hold one entry of `threshold.rules`; a tensor fits if it meets all of the rule's conditions.

    `estimator`: Gives the range of the tensors that the rule fits. `use`: The estimator as the configuration names it.
    `tensors`: Patterns of names of tensors. `ops`: Op types of nodes, or patterns of them; `side` selects which of
    their tensors are meant. `nodes`: Patterns of names of nodes, likewise. `side`: Which tensors of the nodes are
    meant. `roles`: Roles of a tensor in the model.
    """

    estimator: Estimator
    use: str
    tensors: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    side: Side = Side.MADE
    roles: tuple[Role, ...] = ()

    @property
    def text(self) -> str:
        """Return the rule as it would be written."""
        said = {"tensors": self.tensors, "ops": self.ops, "nodes": self.nodes, "roles": self.roles}
        parts = [f"{key}: {_listed(values)}" for key, values in said.items() if values]
        side = [f"side: {self.side}"] if self.side is not Side.MADE else []
        return f"{{{', '.join([*parts, *side, f'use: {self.use}'])}}}"


def _listed(values: tuple[str, ...]) -> str:
    return values[0] if len(values) == 1 else f"[{', '.join(values)}]"


class Surroundings:
    """Hold facts of rules about the tensors of a graph: their makers and readers, and their roles.

    Args:
        graph: The clean model.
        topology: Which nodes are one kernel: a kernel's results are made by its node and by the clamps after it.
    """

    def __init__(self, graph: Graph, topology: Topology) -> None:
        self._graph, self._topology = graph, topology

    def fits(self, rule: Rule, tensor: str) -> bool:
        """Return whether a tensor meets all conditions of a rule."""
        if rule.tensors and not matches(rule.tensors, tensor):
            return False
        if rule.roles and not self._roles(tensor).intersection(rule.roles):
            return False
        if not rule.ops and not rule.nodes:
            return True
        made = self._makers.get(tensor, ()) if rule.side is not Side.READ else ()
        read = self._readers.get(tensor, ()) if rule.side is not Side.MADE else ()
        return any(
            (not rule.ops or matches(rule.ops, node.op)) and (not rule.nodes or matches(rule.nodes, node.name))
            for node in (*made, *read)
        )

    def _roles(self, tensor: str) -> set[Role]:
        if tensor in self._topology.weight_of:
            return {Role.WEIGHT}
        if self._graph.is_constant(tensor):
            return {Role.CONSTANT}
        found = {Role.ACTIVATION}
        if tensor in {value.name for value in self._graph.inputs}:
            found.add(Role.INPUT)
        if tensor in {value.name for value in self._graph.outputs}:
            found.add(Role.OUTPUT)
        return found

    @cached_property
    def _makers(self) -> Mapping[str, list[Node]]:
        by_name = self._graph.by_name
        found = {tensor: [node] for node in self._graph.nodes for tensor in node.outputs if tensor}
        for kernel in self._topology.kernels:
            found[kernel.output] = [by_name[kernel.node], *(by_name[name] for name in kernel.fused)]
        return found

    @cached_property
    def _readers(self) -> Mapping[str, list[Node]]:
        found: dict[str, list[Node]] = {}
        for node in self._graph.nodes:
            for tensor in dict.fromkeys(node.inputs):
                found.setdefault(tensor, []).append(node)
        return found

    @property
    def tensors(self) -> list[str]:
        """Return every tensor that a node makes or reads."""
        return list(dict.fromkeys((*self._readers, *self._makers)))

    def known(self, condition: str) -> list[str]:
        """Return the legal values of a rule's condition, for hints: names of tensors, op types, names of nodes."""
        if condition == "tensors":
            return self.tensors
        return list(dict.fromkeys(n.op if condition == "ops" else n.name for n in self._graph.nodes))
