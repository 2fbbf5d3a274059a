"""Results of a run from Python."""

from __future__ import annotations

import io
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx
from rich.console import Console, RenderableType

from quantpipe.api.workspace import Workspace
from quantpipe.artifacts import RunLock
from quantpipe.artifacts.unit import TEMP_SUFFIX
from quantpipe.errors import ArtifactError, StorageError
from quantpipe.passwords import printable
from quantpipe.pipeline.run_folder import RunFolder
from quantpipe.report import summary_table
from quantpipe.types import ChoiceSpace, QuantPlan, RunReport, Strategy, Topology

HTML_FORMAT = '<pre style="line-height: 1.2; font-family: monospace; overflow-x: auto">{code}</pre>'
"""Of a table in a notebook; {code} is escaped."""
WIDTH = 110
"""Columns of a table as text."""


@dataclass(frozen=True)
class Annotation:
    """Hold the result of the stage annotate.

    Attributes:
        topology: Which nodes and tensors are integers, kernels, scale groups, weights.
        space: What a search may choose.
    """

    topology: Topology = field(repr=False)
    space: ChoiceSpace = field(repr=False)

    @property
    def float_nodes(self) -> Mapping[str, str]:
        """Return a mapping: node -> why it stays in float."""
        return {node: reason.text for node, reason in self.topology.float_nodes.items()}


@dataclass(frozen=True, eq=False)
class SearchOutcome:
    """Hold the result of a search, or of recovery after it.

    Attributes:
        strategy: Bits per tensor, range per scale group, thresholds per weight.
        report: How it was found (the part `search` of the report).
        recovery: Which steps of recovery were kept, with the KL divergence before and after each.
    """

    strategy: Strategy = field(repr=False)
    report: Mapping[str, Any] = field(repr=False)
    recovery: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, eq=False)
class Realization:
    """Hold the result of the stage realize.

    Attributes:
        plan: Every number of the integer model.
        workspace: The run folder that holds its file.
    """

    plan: QuantPlan = field(repr=False)
    workspace: Workspace = field(repr=False)

    @property
    def model_path(self) -> Path:
        """Return the integer model as a file."""
        return RunFolder(self.workspace.path).model

    @cached_property
    def model(self) -> onnx.ModelProto:
        """Return the integer model; for one with a data file, the graph without the weights."""
        return onnx.load(self.model_path, load_external_data=False)


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """A finished run.

    Attributes:
        strategy: What was searched: bits per tensor, range per scale group, thresholds per weight.
        report: All results as plain data (report.json, docs/artifacts.md).
        warnings: What should be known of the run, in sentences.
        realization: The integer model and its file.
    """

    strategy: Strategy
    report: RunReport
    warnings: tuple[str, ...]
    realization: Realization

    @property
    def folder(self) -> Path:
        """Return the run folder with every file of docs/artifacts.md.

        A temporary one vanishes with the last object that refers to it: this result, its pipeline, or its realization.
        """
        return self.realization.workspace.path

    @property
    def plan(self) -> QuantPlan:
        """Return every number of the integer model."""
        return self.realization.plan

    @property
    def model_path(self) -> Path:
        """Return the integer model as a file."""
        return self.realization.model_path

    @property
    def model(self) -> onnx.ModelProto:
        """Return the integer model; for one with a data file, the graph without the weights."""
        return self.realization.model

    @property
    def session_options(self) -> dict[str, str]:
        """Return the session options of onnxruntime that the integer model needs, by name; empty where it needs none.

        The text of `report["deployment"]["sentence"]` has the reasons.
        """
        return dict(self.report["deployment"]["options"])

    def save(self, folder: Any) -> Path:
        """Copy the run folder, whole or not at all.

        Args:
            folder: A path that does not exist yet, or an empty folder.

        Returns:
            The folder as an absolute path. `folder / "realize" / "model.onnx"` is the integer model.

        Raises:
            ArtifactError: Where the folder holds something already.
            StorageError: Where it cannot be written.
        """
        target = Path(folder).expanduser().absolute()
        if target == self.folder:
            return target
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise ArtifactError("there is something already; give a new folder, or an empty one", where=str(target))
        part = target.with_name(f".{target.name}{TEMP_SUFFIX}")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(part, ignore_errors=True)
            with RunLock(self.folder):
                shutil.copytree(self.folder, part, ignore=shutil.ignore_patterns(".lock", f"*{TEMP_SUFFIX}"))
            part.rename(target)
        except OSError as error:
            shutil.rmtree(part, ignore_errors=True)
            raise StorageError(f"the run cannot be copied there ({error})", where=str(target)) from error
        return target

    def __str__(self) -> str:
        """Return the table that the command line shows."""
        return as_text(summary_table(self.report))

    def _repr_html_(self) -> str:
        """Return the table for a notebook."""
        return as_html(summary_table(self.report))

    def __repr__(self) -> str:
        agreement = self.report["agreement"]
        return f"Result({self.model_path}, {agreement['differing']} of {agreement['elements']} integers differ)"


def as_html(shown: RenderableType) -> str:
    """Return a table as HTML for a notebook: escaped, with its own styles, and no script."""
    console = Console(file=io.StringIO(), width=WIDTH, record=True, force_terminal=False, force_jupyter=False)
    console.print(shown)
    return console.export_html(inline_styles=True, code_format=HTML_FORMAT)


def as_text(shown: RenderableType) -> str:
    """Return a table as plain text, wherever this runs."""
    stream = io.StringIO()
    Console(file=stream, width=WIDTH, color_system=None, force_terminal=False, force_jupyter=False).print(shown)
    return printable(stream.getvalue().rstrip())
