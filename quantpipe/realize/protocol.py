"""The protocol of a format that is not ONNX: files written from the plan, and a `Runner` that executes them.

So every form is compared with the simulated model by the same integers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from quantpipe.graph.view import Graph
from quantpipe.realize.provenance import Provenance
from quantpipe.types import QuantPlan, Topology

Feeds = Mapping[str, NDArray[Any]]
"""One batch of a model's inputs, by name, as the float model takes them."""


@dataclass(frozen=True, eq=False)
class WrittenForm:
    """Hold the files of one form.

    `files`: Name in the folder `realize` -> content; the first one is the model. `facts`: Entries for the report, such
    as bytes of memory. `howto`: How the files are used: Markdown, for SHIP.md. `inexact`: Why they do not compute the
    plan's integers; None where they do.
    """

    files: Mapping[str, bytes] = field(repr=False)
    facts: Mapping[str, float | int | str] = field(default_factory=dict)
    howto: str = ""
    inexact: str | None = None


class Runner(Protocol):
    """Execute the files of a form."""

    @property
    def tensors(self) -> Collection[str]:
        """Return the tensors whose integers `run` gives; accumulators are named `TENSOR (accumulator)`."""

    def takes(self, inputs: Feeds) -> bool:
        """Return whether samples of these shapes can be run (a file may be made for one shape)."""

    def run(self, inputs: Feeds) -> Mapping[str, NDArray[Any]]:
        """Return the stored integers of every tensor, by name, for the model's real inputs."""

    def latency(self, inputs: Feeds) -> float | None:
        """Return the milliseconds of one run at batch 1; None where that is not measured."""

    def close(self) -> None:
        """Remove what was made to run the files."""


class FileForm(Protocol):
    """A format that is not ONNX."""

    name: str
    file: str
    """The name of its model's file."""

    def unavailable(self) -> str | None:
        """Return why its files cannot be executed on this machine; None where they can."""

    def write(self, graph: Graph, topology: Topology, plan: QuantPlan, made: Provenance) -> WrittenForm:
        """Write the files.

        Raises:
            HardwareError: for a plan that the format cannot hold, with the nodes and what would be legal.
        """

    def open(self, folder: Path, graph: Graph, topology: Topology, plan: QuantPlan) -> Runner:
        """Return a runner of the files in a folder."""
