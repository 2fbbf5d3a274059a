"""Run the stages in order over a run folder: skip, resume, reject.

A stage whose artifact is in the run folder with the same origin is skipped. An artifact of another model or
configuration is rejected by name before anything is written. Everything is written atomically. An interrupted search
leaves its best strategy so far.
"""

from __future__ import annotations

from quantpipe.check.decision_text import decisions
from quantpipe.pipeline.context import RunContext
from quantpipe.pipeline.inputs import load
from quantpipe.pipeline.settings import Console, Settings
from quantpipe.pipeline.steps import Diagnose, Steps
from quantpipe.pipeline.timeline import Timed
from quantpipe.types import RunReport


def open_run(settings: Settings, console: Console, diagnose: Diagnose) -> Steps:
    """Read the model and the data, and say what is to be known of them; the stages are still to be done.

    `diagnose` finds the faults of a result that misses its objective.
    """
    console = Timed(console)
    console.stage("model", str(settings.model))
    inputs = load(settings)
    for note in (*inputs.doubts, *inputs.notes, *inputs.graph.notes, *decisions(inputs.graph, settings.spec)):
        console.warn(note)
    return Steps(RunContext.of(settings, inputs, console), diagnose)


def run(steps: Steps) -> RunReport | None:
    """Execute the stages and return the report; None where evaluate is not among them.

    Raises AgreementError when simulation and realization differ and `verify=fail`, Interrupted after Ctrl-C.
    """
    with steps.context.files.lock():
        return steps.all()
