"""`command=explain explain.file=FILE`: the losses of a quantized file of any tool, against its float original."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from quantpipe.calibrate.measure import measure
from quantpipe.data.subset import First
from quantpipe.errors import ConfigError, some_of
from quantpipe.evaluate.inside_models import whole_batches
from quantpipe.explain.advice_order import SPLIT, ordered
from quantpipe.explain.advice_row import MeasuredLoss
from quantpipe.explain.error_attribution import per_channel_names
from quantpipe.explain.faults import name_faults, name_reasons
from quantpipe.explain.foreign import Foreign, ForeignRun, accumulators, foreign, refuse_other_ports, saturating
from quantpipe.explain.foreign_advice import FakeQuantized, ForeignProposals, culprits_of
from quantpipe.explain.foreign_rows import foreign_rows, sums_of
from quantpipe.explain.sensitivity import AloneMeasure
from quantpipe.graph.execute import joined, lifted
from quantpipe.graph.view import Graph
from quantpipe.intake.load import clean_graph, read_graph
from quantpipe.lowering import opset_for
from quantpipe.metrics.outputs import top1
from quantpipe.pipeline.context import RunContext
from quantpipe.pipeline.explain_settings import ExplainSettings
from quantpipe.pipeline.inputs import CHECK_SAMPLES, Inputs, load
from quantpipe.pipeline.settings import Console, Settings
from quantpipe.types import AdviceRow, ExplainReport, Keep, Samples
from quantpipe.version import __version__

BY_ARITHMETIC = 0.2
"""Of the loss: where the file loses so much more than its scales and integers do, it is its arithmetic."""


LEAST_LOSS = 1e-6


@dataclass(frozen=True, eq=False)
class _Read:
    """Hold the original with its samples, and the quantized file."""

    inputs: Inputs
    other: Graph
    found: Foreign


def explain_file(settings: Settings, file: Path, console: Console, options: ExplainSettings) -> ExplainReport:
    """Return the losses of a quantized file; the settings have the float model and its samples.

    Raises ModelError where the file holds no integers, or is of another float model.
    """
    console.stage("model", f"{file} compared with {settings.model}")
    read = _read(settings, file)
    context = RunContext.of(settings, read.inputs, console)
    with context.files.lock():
        report = _explained(settings, read, file, console, options=options)
        context.files.write_explained(report, context.origin("explain", {"file": read.other.model_hash}, ()))
    return report


def _explained(
    settings: Settings, read: _Read, file: Path, console: Console, *, options: ExplainSettings
) -> ExplainReport:
    began = time.perf_counter()
    inputs, graph, found = read.inputs, read.inputs.graph, read.found
    few = First(inputs.search, whole_batches(graph, options.samples))
    console.stage("alone", f"every tensor, weight and bias, on {len(few)} samples")
    alone = AloneMeasure(graph, found.numbers, few, compared=inputs.compared)
    run = ForeignRun(graph, read.other, found, {**found.stored, **found.real})
    by_channel = per_channel_names((*alone.tensors, *alone.constants), options.per_channel)
    sums, passing = sums_of(graph, found, run, few, by_channel=by_channel)
    rows = foreign_rows(
        graph, found, alone, SPLIT * options.culprits, sums=sums, by_channel=by_channel, show=console.progress("alone")
    )
    judge = FakeQuantized(graph, inputs.search, inputs.compared)
    now, before = _as_it_runs(judge, run, inputs.search, graph), judge.measured(found.numbers)
    culprits = culprits_of(rows)[: options.culprits]
    wanted = [t for one in culprits if not one.is_weight for t in one.members]
    statistics = measure(graph, wanted, inputs.calibrate, settings.calibrate.memory_mb).tensors if wanted else {}
    proposals = ForeignProposals(graph, found, statistics, settings.schema.activations)
    changes = [change for one in culprits for change in proposals.of(one)]
    console.stage("advice", f"{len(changes)} changes, each on {len(inputs.search)} samples")
    show, advice = console.progress("advice"), list[AdviceRow]()
    for number, change in enumerate(changes):
        advice.append(judge.row(change, before))
        show(number + 1, len(changes), change.words)
    name_faults(rows, statistics=statistics)
    best = ordered(advice)
    name_reasons(best, rows)
    return {
        "version": __version__,
        "model": graph.source,
        "file": str(file),
        "hardware": ", ".join(found.given.forms),
        "shortfall": None,
        "loss": now.loss,
        "loss_before_recovery": None,
        "loss_by_scales": before.loss,
        "accuracy": {"float": top1(judge.reference.outputs, judge.reference.labels), "run": now.accuracy},
        "samples": len(few),
        "doubts": [*inputs.doubts, *_doubts(read, judge, now, before)],
        "causes": [*rows, *passing],
        "accumulators": accumulators(graph, found),
        "advice": best,
        "evaluations": alone.evaluations + judge.evaluations,
        "passes": alone.passes,
        "seconds": time.perf_counter() - began,
    }


def _read(settings: Settings, file: Path) -> _Read:
    inputs = load(settings)
    if inputs.graph.imported is not None:
        raise ConfigError(
            f"{settings.model} is quantized itself; give the float model that {file.name} was made from",
            where="model.path",
        )
    raw = read_graph(file, settings.resident_mb, settings.fixed, Keep.ALL, random=settings.random)
    refuse_other_ports(inputs.graph, raw.graph)
    first = next(iter(inputs.calibrate.batches(inputs.graph.fixed_batch or CHECK_SAMPLES))).inputs
    names = zip([i.name for i in raw.graph.inputs], [i.name for i in inputs.graph.inputs], strict=True)
    other = clean_graph(
        raw,
        {theirs: first[own] for theirs, own in names},
        least_opset=opset_for(settings.spec),
        isolate=settings.isolate,
        declared=settings.spec.ops,
        cells=settings.cells,
    )
    return _Read(inputs, other, foreign(inputs.graph, other, raw.real.given))


def _as_it_runs(judge: FakeQuantized, run: ForeignRun, samples: Samples, graph: Graph) -> MeasuredLoss:
    """Return the loss of the file as onnxruntime runs it."""
    parts = [lifted(run.run(batch.inputs)[0], graph.selected) for batch in samples.batches(graph.batch_size)]
    names = judge.reference.names
    outputs = {name: joined([part[name] for part in parts]) for name in names}
    return judge.of(outputs if len(names) > 1 else outputs[names[0]])


def _more(one: MeasuredLoss, other: MeasuredLoss) -> bool:
    """Return whether one loses more than the other by a share that rounding does not explain."""
    return one.loss - other.loss > BY_ARITHMETIC * one.loss and one.loss > LEAST_LOSS


def _doubts(read: _Read, judge: FakeQuantized, now: MeasuredLoss, before: MeasuredLoss) -> list[str]:
    """Return reasons not to evaluate the file by its scales and integers alone."""
    found, said = read.found, []
    if _more(now, before):
        graph = read.inputs.graph
        plain = ForeignRun(graph, read.other, found, {}, as_written=True)
        written = _as_it_runs(judge, plain, read.inputs.search, graph)
        why = (
            "its arithmetic (accumulators that overflow, kernels that saturate, or another op than in the float model)"
            if _more(written, before)
            else f"onnxruntime's optimizations, without which it loses {written.loss:.4g}"
        )
        said.append(
            f"as onnxruntime runs the file it loses {now.loss:.4g}, and its scales and integers alone lose "
            f"{before.loss:.4g}. The rest comes from {why}, and other scales do not fix it"
        )
    if rows := saturating(read.inputs.graph, found):
        more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
        said.append(
            f"on x86 processors without VNNI, pairs of products of {rows[0][0]}{more} can saturate in int16 "
            f"({sum(channels for _, channels in rows)} channels): a default session loses more there. All losses here "
            "are measured with exact sums"
        )
    if found.unread:
        said.append(
            f"{len(found.unread)} scales of the file are not measured: they belong to no tensor of the float model, or "
            f"to single channels of an activation with their own zero points. They are {some_of(found.unread, 3)}"
        )
    return said
