"""Write every form of one plan that a run asks for: the files next to model.onnx, and their descriptions."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from quantpipe.artifacts import digest_json
from quantpipe.data.preprocess import Preprocess, SourceLayout
from quantpipe.errors import HardwareError
from quantpipe.evaluate.evaluation import Evaluation
from quantpipe.evaluate.forms_agreement import WrittenBeside, agreement_row
from quantpipe.graph.io import model_bytes
from quantpipe.graph.session_options import carried, differs_by_threads
from quantpipe.graph.stored_ports import stored_ports
from quantpipe.lowering import Rendered
from quantpipe.pipeline import stages
from quantpipe.pipeline.context import RunContext
from quantpipe.realize import BACKENDS, EXACT, FILE_FORMS, VENDOR, Provenance, inexact_on
from quantpipe.realize.deployment import how_to_run, loading_code
from quantpipe.realize.genai import CONFIG, genai_config, read_config
from quantpipe.realize.open_lengths import length_limits
from quantpipe.realize.ship import Shipped, ship_text
from quantpipe.types import DeploymentPart, FormRow, QuantPlan, Samples, TensorInfo
from quantpipe.version import __version__

MODEL = "model.onnx"


@dataclass(frozen=True, eq=False)
class Forms:
    """Hold all written forms of one plan.

    `first`: The model in model.onnx. `backend`: Its form. `seconds`: The time of writing it. `beside`: The other forms,
    in the requested order. `made`: The provenance of all of them.
    """

    first: Rendered
    backend: str
    seconds: float
    beside: tuple[WrittenBeside, ...]
    made: Provenance
    genai: bytes | None = None
    """The configuration of onnxruntime-genai for a decoder in model.onnx."""

    @property
    def contents(self) -> dict[str, Rendered | bytes]:
        """Return name of a file -> what it holds, for all but model.onnx."""
        found: dict[str, Rendered | bytes] = {} if self.genai is None else {CONFIG: self.genai}
        for form in self.beside:
            found |= {form.file: form.rendered} if form.rendered is not None else dict(form.files)
        return found

    def row(self, evaluation: Evaluation, size: int) -> FormRow:
        """Return the entry of model.onnx among the forms of the report; `size` in bytes."""
        form = WrittenBeside(self.backend, MODEL, size, self.seconds, rendered=self.first)
        row = agreement_row(form, evaluation.agreement)
        return {**row, "latency_ms": evaluation.latency.get("realized_ms")}

    def deployment(self, context: RunContext) -> DeploymentPart:
        """Return how model.onnx is run, for the report."""
        options, settings = carried(self.first.model), context.settings
        one_thread = differs_by_threads(self.first.model)
        return {
            "file": MODEL,
            "form": self.backend,
            "options": options,
            "sentence": how_to_run(MODEL, options, settings.spec, one_thread=one_thread),
            "code": loading_code(
                MODEL,
                options,
                context.graph,
                self.made.preprocessing,
                caches=stored_ports(self.first.model),
                one_thread=one_thread,
            ),
            "command": settings.resume_command,
            "files": [
                MODEL,
                *([] if self.genai is None else [CONFIG]),
                *(name for form in self.beside for name in (tuple(form.files) or (form.file,))),
            ],
        }

    def ship(self, context: RunContext, plan: QuantPlan) -> str:
        """Return SHIP.md."""
        named = (MODEL,) if self.genai is None else (MODEL, CONFIG)
        model = self.first.model
        by_threads = differs_by_threads(model)
        rows = [Shipped(self.backend, named, carried(model), caches=stored_ports(model), one_thread=by_threads)]
        for form in self.beside:
            options = carried(form.rendered.model) if form.rendered is not None else {}
            caches = stored_ports(form.rendered.model) if form.rendered is not None else ()
            files = tuple(form.files) or (form.file,)
            by_threads = form.rendered is not None and differs_by_threads(form.rendered.model)
            rows.append(Shipped(form.form, files, options, form.inexact, form.howto, caches, by_threads))
        return ship_text(
            context.graph, plan, rows, topology=context.topology, spec=context.settings.spec, made=self.made
        )


def write_forms(context: RunContext, plan: QuantPlan, strategy: str) -> Forms:
    """Return the plan in every form that the run asks for; nothing is written to the folder yet.

    `context` has the topology of the strategy and the network of recovery; `strategy` is the digest of the strategy's
    numbers. Raises HardwareError for a plan that a form cannot hold.
    """
    settings, made = context.settings, provenance(context, strategy)
    backend, others = settings.backend, settings.forms
    start = time.perf_counter()
    try:
        first = stages.realize(context.graph, context.topology, plan, backend, made=made, here=settings.spec.runs_here)
    except HardwareError as error:
        if backend not in VENDOR:
            raise
        if settings.verify != "warn" and EXACT not in others:
            raise HardwareError(
                f"{error}; realize=[{EXACT},{backend}] writes both and counts in what the {backend} form differs as "
                "onnxruntime runs it, and so does verify=warn"
            ) from error
        others = (backend, *(form for form in others if form != EXACT))
        backend, start = EXACT, time.perf_counter()
        first = stages.realize(context.graph, context.topology, plan, backend, made=made)
    seconds = time.perf_counter() - start
    beside = tuple(_beside(context, plan, made, form) for form in others)
    limits = length_limits(context.graph, plan)
    given = read_config(settings.model)
    genai = genai_config(context.graph, MODEL, carried(first.model), given=given, limits=limits)
    return Forms(first, backend, seconds, beside, made, genai)


def _beside(context: RunContext, plan: QuantPlan, made: Provenance, form: str) -> WrittenBeside:
    start = time.perf_counter()
    if form in BACKENDS:
        rendered = _rendered(context, plan, made, form)
        size = len(model_bytes(rendered.model))
        file = f"model.{form}.onnx"
        return WrittenBeside(form, file, size, time.perf_counter() - start, rendered=rendered)
    writer = FILE_FORMS[form]()
    written = writer.write(context.graph, context.topology, plan, made)
    if written.inexact is not None and context.settings.exact_implied and context.settings.verify != "warn":
        raise HardwareError(
            f"the {form} form does not say exactly what was searched ({written.inexact}); realize=[{EXACT},{form}] "
            "writes both and counts in what they differ, and so does verify=warn",
            stage="realize",
        )
    seconds, size = time.perf_counter() - start, sum(map(len, written.files.values()))
    return WrittenBeside(
        form,
        writer.file,
        size,
        seconds,
        files=written.files,
        facts=written.facts,
        howto=written.howto,
        writer=writer,
        reason=written.inexact,
    )


def _rendered(context: RunContext, plan: QuantPlan, made: Provenance, form: str) -> Rendered:
    """Return an ONNX form as onnxruntime's kernels compute it, or as other tools load it where they cannot."""
    spec = context.settings.spec
    if form in VENDOR and inexact_on(spec, form) is not None:
        return stages.realize(context.graph, context.topology, plan, form, made=made, vendor=True)
    try:
        return stages.realize(context.graph, context.topology, plan, form, made=made, here=spec.runs_here)
    except HardwareError:
        if form not in VENDOR:
            raise
        return stages.realize(context.graph, context.topology, plan, form, made=made, vendor=True)


def provenance(context: RunContext, strategy: str) -> Provenance:
    """Return the provenance of a run's files."""
    settings = context.settings
    return Provenance(
        __version__,
        context.graph.model_hash,
        strategy,
        settings.spec.name,
        digest_json(context.realized(strategy).config["hardware"]),
        _preprocessing(settings.dataset, context.graph.inputs),
        class_names(context.inputs.evaluate),
    )


def _preprocessing(dataset: Any, inputs: Sequence[TensorInfo]) -> Mapping[str, Any]:
    """Return the preprocessing of a data set's raw samples, if it declares any."""
    given = getattr(dataset, "preprocess", None)
    if not isinstance(given, Mapping | Preprocess):
        return {}
    made = Preprocess.of(given)
    pictures = [i.shape for i in inputs if len(i.shape) == 4]
    if len(pictures) == 1:
        made = made.for_input(pictures[0], SourceLayout(str(getattr(dataset, "source_layout", SourceLayout.AUTO))))
    return {k: str(v) if k == "layout" else v for k, v in asdict(made).items()}


def class_names(samples: Samples) -> tuple[str, ...]:
    """Return the names of the classes that the samples' source knows, by index."""
    inner: Any = samples
    while hasattr(inner, "samples"):  # a part of other samples
        inner = inner.samples
    return tuple(getattr(getattr(inner, "source", None), "class_names", ()))
