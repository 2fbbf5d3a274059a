"""Look at models without running a search.

These functions report how a device would run a float model, what it would reject in an integer one, and whether a
certificate holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from os import PathLike
from pathlib import Path
from typing import Any

from quantpipe.api.model import Model, model_file
from quantpipe.api.options import Group, Hardware, given_dataset, settings_for
from quantpipe.api.progress import Listener, Listening
from quantpipe.api.result import as_html, as_text
from quantpipe.api.workspace import Workspace
from quantpipe.app.commands import findings_of, fit_of
from quantpipe.app.explain import settings_of_run, shipped
from quantpipe.app.files import asset
from quantpipe.check import Fit
from quantpipe.check.lint import Findings
from quantpipe.explain.explain import explain as explain_run
from quantpipe.explain.explain import explain_strategy as explain_decided
from quantpipe.explain.explain_file import explain_file as explain_foreign
from quantpipe.extend import Extension
from quantpipe.pipeline.explain_settings import ExplainSettings
from quantpipe.report import explained, fit_tables, lint_table
from quantpipe.verify import Verdict, verify_folder

Shapes = Mapping[str, Sequence[int]]


class CheckResult(Fit):
    """Describe how a device would run a float model; as text, the command line's table."""

    def __str__(self) -> str:
        return as_text(fit_tables(self.as_dict()))

    def _repr_html_(self) -> str:
        return as_html(fit_tables(self.as_dict()))


class LintResult(Findings):
    """Describe what a device would reject in an integer model; as text, the command line's table."""

    def __str__(self) -> str:
        return as_text(lint_table(self.as_dict()))

    def _repr_html_(self) -> str:
        return as_html(lint_table(self.as_dict()))


class ExplainResult(dict[str, Any]):
    """Explain the losses of a run, as explain.json holds them; as text, the command line's tables."""

    def __str__(self) -> str:
        return as_text(explained(self))

    def _repr_html_(self) -> str:
        return as_html(explained(self))


def check(
    model: Model,
    hardware: Hardware = "ort_cpu",
    *,
    schema: Group = "auto",
    annotate: Mapping[str, Any] | None = None,
    shapes: Shapes | None = None,
    fixed: Mapping[str, Any] | None = None,
    plugins: Sequence[str | Extension] | None = None,
) -> CheckResult:
    """Report how a device would run a model, before any sample is needed.

    Args:
        model: A float ONNX model: its path, its content as bytes, or an `onnx.ModelProto`.
        hardware: As for `quantize`.
        schema: How ranges become scales, the name of an option or a mapping of its keys.
        annotate: What runs in integers, a mapping of the keys of `annotate`.
        shapes: Shapes of inputs with free axes, batch axis included, by name: `{"input": [1, 3, 224, 224]}`.
        fixed: Values of inputs that are always the same, by name.
        plugins: Packages or extensions with ops and patterns of the device, as for `quantize`.

    Returns:
        The verdict (`fits`, `falls_back`, `cannot_run`), every rejected node with its reason, the share of the
        multiply-accumulates that runs in integers, sums and biases near their limits.

    Raises:
        ModelError: The model cannot be read or run.
        ConfigError: A shape that does not fit, or an option that means nothing.
        HardwareError: A hardware description that contradicts itself.

    Examples:
        >>> import quantpipe
        >>> fit = quantpipe.check(quantpipe.example_model(), "tensorrt")
        >>> fit.verdict.value, fit.integer_nodes == fit.nodes
        ('fits', True)
    """
    workspace = Workspace(None)
    options = {"schema": schema, "annotate": annotate, "fixed": fixed, "plugins": plugins, "check": {"shapes": shapes}}
    path = model_file(model, workspace.path)
    fit = fit_of(settings_for(path, (), hardware, workspace, options=options))
    return CheckResult(**{field.name: getattr(fit, field.name) for field in fields(Fit)})


def lint(
    model: Model,
    hardware: Hardware = "ort_cpu",
    *,
    shapes: Shapes | None = None,
    fixed: Mapping[str, Any] | None = None,
    plugins: Sequence[str | Extension] | None = None,
) -> LintResult:
    """Report what a device would reject in an integer model of any tool.

    Args:
        model: An integer ONNX model: its path, its content as bytes, or an `onnx.ModelProto`.
        hardware: As for `quantize`.
        shapes: Shapes of inputs with free axes, batch axis included, by name.
        fixed: Values of inputs that are always the same, by name.
        plugins: As for `check`.

    Returns:
        Counts of what was read, and every finding in graph order.

    Raises:
        ModelError: The model cannot be read or run.
        ConfigError: A shape that does not fit.
        HardwareError: A hardware description that contradicts itself.

    Examples:
        >>> import quantpipe
        >>> quantpipe.lint(quantpipe.example_model()).quantized_ops  # a float model has none
        0
    """
    workspace = Workspace(None)
    options = {"fixed": fixed, "plugins": plugins, "check": {"shapes": shapes}}
    path = model_file(model, workspace.path)
    found = findings_of(settings_for(path, (), hardware, workspace, options=options))
    return LintResult(**{field.name: getattr(found, field.name) for field in fields(Findings)})


def verify(folder: str | PathLike[str]) -> Verdict:
    """Check the certificate of a run folder, as `command=verify` does.

    Args:
        folder: A run folder (`Result.folder`), or a copy of one; only `realize/` in it is read, nothing is written.

    Returns:
        The verdict: `wrong` is the first thing that is not as claimed, or None; `proved` of `kernels` hold for all
        inputs.

    Raises:
        ArtifactError: A file is missing or cannot be read.

    Examples:
        >>> import numpy as np, quantpipe
        >>> images = np.random.default_rng(0).random((64, 1, 8, 8), dtype=np.float32)
        >>> result = quantpipe.quantize(quantpipe.example_model(), images)
        >>> verdict = quantpipe.verify(result.folder)
        >>> verdict.wrong, verdict.proved > 0
        (None, True)
    """
    return verify_folder(Path(folder))


def explain(
    folder: str | PathLike[str],
    samples: Any = None,
    *,
    culprits: int = 10,
    plugins: Sequence[str] = (),
    progress: Listener | bool | None = None,
) -> ExplainResult:
    """Report where a finished run loses accuracy, and which measured changes would improve it.

    The answer is written into the folder, too (`explain.json`, docs/artifacts.md).

    Args:
        folder: The run folder.
        samples: The samples of the run, in any form that `quantize` takes, where they were given from Python; None:
            those that the configuration in the folder names.
        culprits: For how many of the places that cost most changes are measured.
        plugins: Packages of your own that the run's configuration names.
        progress: As for `quantize`.

    Returns:
        What explain.json holds. As text, the table of the command line.

    Raises:
        ArtifactError: The folder holds no finished run of this version, or a damaged one.
        ConfigError: The samples were given from Python, and are not given here.

    Examples:
        >>> import quantpipe
        >>> from quantpipe.data import DigitsDataset
        >>> result = quantpipe.quantize(quantpipe.example_model(), DigitsDataset(), evaluate={"latency_runs": 1})
        >>> answer = quantpipe.explain(result.folder, DigitsDataset(), culprits=1)
        >>> answer["shortfall"] is None, answer["causes"][0]["alone"] > 0
        (True, True)
    """
    path = Path(folder).expanduser().absolute()
    given = {} if samples is None else {"dataset": given_dataset(path, samples)}
    settings = settings_of_run(path, plugins=list(plugins), given=given)
    options = ExplainSettings(run=path, culprits=culprits)
    return ExplainResult(explain_run(settings, Listening(progress), shipped(), options))


def explain_file(
    file: str | PathLike[str],
    model: Model,
    samples: Any,
    *,
    culprits: int = 10,
    folder: str | PathLike[str] | None = None,
    progress: Listener | bool | None = None,
    **options: Any,
) -> ExplainResult:
    """Report where a quantized file of any tool loses accuracy, compared with its float model.

    Args:
        file: The quantized ONNX file: QDQ, QOperator, dynamically quantized, or QONNX.
        model: The float model: its path, its content as bytes, or an `onnx.ModelProto`.
        samples: Samples, in any form that `quantize` takes.
        culprits: For how many of the places that cost most changes are measured.
        folder: Where explain.json is written; None: nowhere that stays.
        progress: As for `quantize`.
        options: The options of `quantize` that control how samples are divided and what is compared, such as
            `objective`.

    Returns:
        What explain.json holds. As text, the table of the command line.

    Raises:
        ModelError: The file holds no integers, or is of another float model.

    Examples:
        >>> import quantpipe
        >>> from quantpipe.data import DigitsDataset
        >>> model, samples = quantpipe.example_model(), DigitsDataset()
        >>> result = quantpipe.quantize(model, samples, evaluate={"latency_runs": 1})
        >>> answer = quantpipe.explain_file(result.model_path, model, samples, culprits=1)
        >>> answer["hardware"], answer["causes"][0]["alone"] > 0
        ('QDQ', True)
    """
    workspace = Workspace(folder)
    settings = settings_for(model_file(model, workspace.path, samples), samples, "ort_cpu", workspace, options=options)
    found = explain_foreign(settings, Path(file).expanduser().absolute(), Listening(progress), ExplainSettings(
        culprits=culprits
    ))  # fmt: skip
    return ExplainResult(found)


def explain_strategy(
    strategy: str | PathLike[str],
    model: Model,
    samples: Any,
    hardware: Hardware = "ort_cpu",
    *,
    culprits: int = 10,
    folder: str | PathLike[str] | None = None,
    **options: Any,
) -> ExplainResult:
    """Report where a strategy without a run folder loses accuracy, and which measured changes would improve it.

    Args:
        strategy: The strategy.json.
        model: The float model: its path, its content as bytes, or an `onnx.ModelProto`.
        samples: Samples, in any form that `quantize` takes.
        hardware: The device: its name, its file, or its fields.
        culprits: For how many of the places that cost most changes are measured.
        folder: Where explain.json is written; None: nowhere that stays.
        options: The options of `quantize`.

    Returns:
        What explain.json holds. As text, the tables of the command line.

    Raises:
        ArtifactError: The file holds no strategy, or one of another model.
    """
    workspace = Workspace(folder)
    settings = settings_for(model_file(model, workspace.path, samples), samples, hardware, workspace, options=options)
    given = replace(settings, command="explain", strategy=Path(strategy).expanduser().absolute())
    return ExplainResult(explain_decided(given, Listening(None), shipped(), ExplainSettings(culprits=culprits)))


def example_model() -> Path:
    """Return the path of the model that comes with the package: a small convolutional net for scikit-learn's digits."""
    return Path(asset("digits.onnx"))
