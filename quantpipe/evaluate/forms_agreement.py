"""Compare every form of one plan with the simulated model on the same samples, element by element.

The form of model.onnx is compared in all kinds of sessions (`agreement.py`). The others are compared here: an ONNX form
as its file asks to be run, any other format by what executes its files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

from quantpipe.evaluate.agreement import Agreement, compare_with, session_kinds
from quantpipe.evaluate.compared_models import SimulatedModel
from quantpipe.evaluate.counting import Counter
from quantpipe.evaluate.inside_models import EvaluatedModel
from quantpipe.evaluate.progress import EvaluationProgress
from quantpipe.intake.read_model import read_model
from quantpipe.lowering import Rendered
from quantpipe.realize import FileForm, Runner
from quantpipe.realize.protocol import Feeds
from quantpipe.simulate.simulator import simulate
from quantpipe.types import FormRow, Samples

OTHERS_SAMPLES = 8
"""Samples, at least, on which a file is run by other kernels than those of its device: they decide nothing."""


@dataclass(frozen=True, eq=False)
class WrittenBeside:
    """Hold one form that is written next to model.onnx.

    `file`: The name of its model's file. `size`: Bytes of all of its files. `seconds`: The time of writing them.
    `rendered`: The model, of an ONNX form. `files`: Name -> content, of any other form. `facts`: Further facts for the
    report. `howto`: How its files are used, for SHIP.md; None where onnxruntime runs them. `writer`: The form that
    wrote them and runs them, where onnxruntime does not. `reason`: Why the files of another form do not compute the
    searched numbers; None where they do.
    """

    form: str
    file: str
    size: int
    seconds: float
    rendered: Rendered | None = None
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    facts: Mapping[str, float | int | str] = field(default_factory=dict)
    howto: str | None = None
    writer: FileForm | None = None
    reason: str | None = None

    @property
    def inexact(self) -> str | None:
        """Return why the form does not compute what was searched; None where it does."""
        return self.reason if self.rendered is None else self.rendered.inexact

    def row(self, **compared: object) -> FormRow:
        """Return its entry in the report; `compared`: what the comparison found."""
        known = {
            "form": self.form,
            "file": self.file,
            "bytes": self.size,
            "seconds": self.seconds,
            "exact": self.inexact is None,
            "inexact": self.inexact,
            "samples": None,
            "tensors": None,
            "elements": None,
            "differing": None,
            "max_lsb": None,
            "first_tensor": None,
            "latency_ms": None,
            "why_not": None,
            "facts": dict(self.facts),
        }
        return cast("FormRow", known | compared)


def compare_forms(
    model: EvaluatedModel, forms: Sequence[WrittenBeside], samples: Samples, *, folder: Path, course: EvaluationProgress
) -> list[FormRow]:
    """Return a row for each form that is written next to model.onnx, compared on the same samples.

    `course` shows progress and continues an interrupted evaluation.
    """
    course.phases += len(forms)
    return [
        course.result(f"form {form.form}", partial(_compared, model, form, folder), samples, _as_row) for form in forms
    ]


def forms_warnings(rows: Sequence[FormRow]) -> list[str]:
    """Return in sentences which forms are not what was searched, or were not compared."""
    found = []
    for row in rows:
        if row["why_not"] is not None:
            found.append(f"{row['file']} was written and not executed: {row['why_not']}")
        elif not row["exact"]:
            found.append(
                f"{row['file']} does not compute exactly what was searched ({row['inexact']}): "
                f"{row['differing']:,} of {row['elements']:,} elements differ as it is run here"
            )
    return found


def agreement_row(form: WrittenBeside, agreement: Agreement) -> FormRow:
    """Return the row of a form whose agreement is known."""
    return form.row(
        samples=agreement.samples,
        tensors=agreement.tensors,
        elements=agreement.elements,
        differing=agreement.differing,
        max_lsb=agreement.max_lsb,
        first_tensor=agreement.first_tensor,
    )


def _as_row(kept: Any) -> FormRow:
    return cast("FormRow", kept)


def _compared(model: EvaluatedModel, form: WrittenBeside, folder: Path, samples: Samples) -> FormRow:
    simulation = simulate(model.graph, model.topology, model.plan)
    if form.rendered is not None:
        read = Rendered(read_model(folder / form.file), form.rendered.integers, form.rendered.inside)
        simulated = SimulatedModel(model.graph, model.topology, model.plan, simulation, realized=read)
        kinds = [kind for kind in session_kinds(read.model) if kind.decides]
        return agreement_row(form, compare_with(simulated, read, samples, kinds))
    writer = form.writer
    why_not = "nothing here executes it" if writer is None else writer.unavailable()
    if writer is None or why_not is not None:
        return form.row(why_not=why_not)
    runner = writer.open(folder, model.graph, model.topology, model.plan)
    try:
        held = Rendered(simulation.rendered.model, {tensor: tensor for tensor in runner.tensors})
        simulated = SimulatedModel(model.graph, model.topology, model.plan, simulation, realized=held)
        return executed(form, runner, simulated, samples)
    finally:
        runner.close()


def executed(
    form: WrittenBeside, runner: Runner, simulated: SimulatedModel, samples: Samples, *, timed: bool = True
) -> FormRow:
    """Run a format's own files, a few samples at a time, and return the form's row.

    `simulated` has the tensors that the runner gives. Samples of other shapes than the files' are left out.
    """
    count, done, tried, latency = Counter(), 0, 0, None
    others: Mapping[str, Runner] = getattr(runner, "others", {})
    beside = {name: Counter() for name in others}
    size = simulated.graph.fixed_batch or 1
    for batch in samples.batches(size):
        if not runner.takes(batch.inputs):
            continue
        found = runner.run(batch.inputs)
        simulated.start(batch.inputs)
        expected = simulated.run(found)
        _count(count, simulated, expected, found)
        for name, other in others.items() if done < OTHERS_SAMPLES else ():
            apart = other.run(batch.inputs)
            simulated.start(batch.inputs)
            _count(beside[name], simulated, simulated.run(apart), apart)
        done += len(batch)
        tried = done if tried < OTHERS_SAMPLES else tried
        latency = runner.latency(batch.inputs) if timed and latency is None else latency
    if not done:
        return form.row(why_not="it is made for one shape of the inputs, and no sample compared has it")
    told = {f"differing_{name}": c.differing for name, c in beside.items()}
    told |= {f"samples_{name}": tried for name in beside}
    told |= {"behind_float": count.behind} if count.behind else {}
    told |= {"input_ties": ties} if (ties := getattr(runner, "ties", 0)) else {}
    return form.row(
        facts={**form.facts, **told},
        samples=done,
        tensors=len(simulated.names),
        elements=count.elements,
        differing=count.differing,
        max_lsb=count.max_lsb,
        first_tensor=count.first,
        latency_ms=latency,
    )


def _count(count: Counter, simulated: SimulatedModel, expected: Feeds, found: Feeds) -> None:
    for tensor in simulated.watched.integers:
        count.integers(tensor, simulated.integers(expected, tensor), simulated.centred(tensor, found[tensor]))
    for tensor in simulated.watched.entries:
        excused = partial(simulated.explained, expected, tensor, found[tensor])
        own = simulated.integers(expected, tensor)
        count.integers(tensor, own, simulated.centred(tensor, found[tensor]), excused=excused)
