"""The stages from Python, one by one or all at once, through the same steps as the command line."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cached_property
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from quantpipe.api.model import Model, model_file
from quantpipe.api.options import Hardware, Options, settings_for
from quantpipe.api.progress import Listener, Listening
from quantpipe.api.result import Annotation, Realization, Result, SearchOutcome
from quantpipe.api.simulation import SimulatedNetwork
from quantpipe.api.workspace import Workspace
from quantpipe.app.explain import diagnosis
from quantpipe.errors import TargetError
from quantpipe.pipeline import SearchDecision, Steps, open_run
from quantpipe.pipeline.log_run import start_tracking
from quantpipe.pipeline.run_folder import RunFolder
from quantpipe.pipeline.settings import Settings
from quantpipe.types import Profile, RunReport

Value = TypeVar("Value")


class Pipeline:
    """One run, whose stages are called one by one: annotate, calibrate, search, recover, realize, evaluate.

    A stage first does those before it that are still to be done, and each is done once: called again, it answers with
    the same value. Everything that a stage finds is in the run folder before it returns, so that another pipeline of
    the same folder goes on where this one ended.

    Args:
        model: An ONNX model: its path, its content as bytes, or an `onnx.ModelProto`.
        samples: The samples that ranges are taken from and results are judged by. They are an array `[N, …]` with a row
            per sample, or a mapping with such an array for each input of the model. They may also be an iterable of
            samples, a tuple (any of these, labels `[N]`), a `SampleSets` where you have divided them already, or a data
            set of `quantpipe.data`.
        hardware: What the device can run: the name of a shipped file, the path of a YAML file, its content as a
            mapping, or a `HardwareSpec`. A mapping with the key `option` changes fields of a shipped file.
        folder: The run folder, made where it is not there; None: a temporary one.
        progress: None: quiet; True: lines on standard error, in terminals and notebooks; or a function that is called
            with a `ProgressEvent`. What it raises stops the run.
        **options: Everything else, see `Options`.

    Raises:
        ConfigError: An option or a value that means nothing.
        HardwareError: A hardware description that contradicts itself.

    Examples:
        >>> import quantpipe
        >>> from quantpipe.data import DigitsDataset
        >>> pipeline = quantpipe.Pipeline(quantpipe.example_model(), DigitsDataset(), "vta")
        >>> len(pipeline.annotate().space)
        42
        >>> pipeline.calibrate().samples
        128
    """

    def __init__(
        self,
        model: Model,
        samples: Any,
        hardware: Hardware = "ort_cpu",
        *,
        folder: Any = None,
        progress: Listener | bool | None = None,
        **options: Unpack[Options],
    ) -> None:
        self._workspace = Workspace(folder)
        self._guard = threading.RLock()
        self._console = Listening(progress)
        path = model_file(model, self._workspace.path / "input", samples)
        self._settings = settings_for(path, samples, hardware, self._workspace, options=options)
        self._tracks = False

    @property
    def settings(self) -> Settings:
        """Return everything that the run was asked for, as typed values."""
        return self._settings

    def annotate(self) -> Annotation:
        """Decide what runs in integers, and what there is to choose.

        Raises:
            ModelError: The model cannot be read or run.
            DataError: The samples do not fit the model.
        """
        return Annotation(*self._do(lambda steps: steps.annotated))

    def calibrate(self) -> Profile | None:
        """Measure the ranges of all tensors that may be integers; None where statistics are not needed."""
        return self._do(lambda steps: steps.profile)

    def search(self) -> SearchOutcome:
        """Choose bits and ranges.

        Raises:
            Interrupted: After Ctrl-C; the best strategy so far is in the folder, and the call can be repeated.
        """
        return _outcome(self._do(lambda steps: steps.found))

    def recover(self) -> SearchOutcome:
        """Return better weights and biases for the strategy.

        The strategy is returned as it is where `recover` names no step.
        """
        return _outcome(self._do(lambda steps: steps.recovered))

    def realize(self) -> Realization:
        """Write the integer model, after recovery."""
        return Realization(self._do(lambda steps: steps.realized).plan, self._workspace)

    def simulate(self) -> SimulatedNetwork:
        """Return the simulated model, after recovery, as an object that runs on inputs of yours."""
        return SimulatedNetwork(self._do(lambda steps: steps.realized))

    def evaluate(self) -> RunReport:
        """Run the float, the simulated and the integer model on the samples that are kept for it, and compare them.

        Returns:
            The report as plain data (report.json, docs/artifacts.md).

        Raises:
            AgreementError: The integer model does not hold the integers that were searched, and `verify` is `fail`.
            TargetError: `strict` is true, and the objective is missed.
        """
        report = self._do(lambda steps: steps.report)
        self._end("FINISHED")
        missed = report["search"].get("shortfall")
        if missed and self._settings.annotate.strict:
            raise TargetError(f"strict=True, and {missed}", stage="search")
        return report

    def run(self) -> Result:
        """Return all stages that are still to be done.

        Raises what they raise.
        """
        with self:
            self._do(lambda steps: steps.all())
            report = self.evaluate()
            return Result(self.recover().strategy, report, tuple(self._console.warnings), self.realize())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end("FINISHED" if kind is None else "FAILED" if issubclass(kind, Exception) else "KILLED")

    def _do(self, ask: Callable[[Steps], Value]) -> Value:
        """Ask the steps, with the folder for this process alone."""
        with self._guard, RunFolder(self._workspace.path).lock():
            if not self._tracks:
                self._settings.tracker.check()
                start_tracking(self._settings, self._steps.context.inputs, self._steps.context.console)
                self._tracks = True
            return ask(self._steps)

    @cached_property
    def _steps(self) -> Steps:
        return open_run(self._settings, self._console, diagnosis)

    def _end(self, status: str) -> None:
        if self._tracks:
            self._settings.tracker.end(status)


def quantize(
    model: Model,
    samples: Any,
    hardware: Hardware = "ort_cpu",
    *,
    folder: Any = None,
    progress: Listener | bool | None = None,
    **options: Unpack[Options],
) -> Result:
    """Quantize a model: annotate, calibrate, search, recover, realize and evaluate it.

    The defaults are the command line's (conf/), but nothing is written outside the run folder: tracking and the cache
    of statistics are off unless requested.

    Args:
        model: An ONNX model: its path, its content as bytes, or an `onnx.ModelProto`; or a `torch.nn.Module`, which
            torch's own exporter writes.
        samples: Samples of the model's inputs, in any form that `Pipeline` takes. Calibration, search and evaluation
            never share one.
        hardware: What the device can run: the name of a shipped file, the path of a YAML file, its content, or a
            `HardwareSpec`.
        folder: The run folder. With the same arguments and the same folder, an interrupted run goes on, and a finished
            one is answered from its files. None: a temporary folder that lives as long as the result.
        progress: None: quiet; True: lines on standard error; or a function that is called with a `ProgressEvent`.
        **options: Everything else by the names of the configuration, see `Options`: `search="greedy"`,
            `recover="default"`, `objective={"tolerance": 0.005}`, `evaluate={"latency_runs": 10}`, ….

    Returns:
        The integer model, the strategy, the plan and the report.

    Raises:
        QuantpipeError: One of its classes (`quantpipe.errors`), with one paragraph that names the problem, its place,
            and the legal values.

    Examples:
        >>> import quantpipe
        >>> from quantpipe.data import DigitsDataset
        >>> result = quantpipe.quantize(quantpipe.example_model(), DigitsDataset(), evaluate={"latency_runs": 1})
        >>> result.report["agreement"]["differing"]
        0
        >>> "QuantizeLinear" in {node.op_type for node in result.model.graph.node}
        True
    """
    return Pipeline(model, samples, hardware, folder=folder, progress=progress, **options).run()


def _outcome(decision: SearchDecision) -> SearchOutcome:
    return SearchOutcome(decision.strategy, dict(decision.report), dict(decision.recovery))
