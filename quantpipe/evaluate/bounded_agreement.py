"""The comparison of integers within the time that an evaluation has for it."""

from __future__ import annotations

from collections.abc import Iterator

from quantpipe.evaluate.agreement import Agreement, compare_with, session_kinds
from quantpipe.evaluate.compared_models import SimulatedModel
from quantpipe.evaluate.progress import EvaluationProgress
from quantpipe.evaluate.spending import Spending
from quantpipe.lowering import Rendered
from quantpipe.types import Samples

SESSIONS = "sessions"
"""The part that compares integers in several sessions, for `EvaluationProgress.allowed`."""


def bounded_agreement(
    simulated: SimulatedModel, realized: Rendered, samples: Samples, course: EvaluationProgress, *, others: bool
) -> Agreement:
    """Return the comparison on as many samples as there is time for, at least one batch.

    Without `others`, sessions that do not decide are not compared.
    """
    spending = Spending(course.allowed(SESSIONS))
    kinds = [kind for kind in session_kinds(realized.model) if others or kind.decides]
    return compare_with(simulated, realized, samples, kinds, spending=spending)


def uncompared(found: Agreement, asked: int) -> Iterator[str]:
    """Yield what a comparison left out of `asked` samples, whichever run made it."""
    if found.samples < asked:
        yield f"{found.samples} of {asked} samples were compared element by element"
    for row in found.sessions:
        if not row.decides and row.refused is None and row.same_as is None and row.samples < found.samples:
            yield f"{row.samples} of {asked} samples were compared in the session {row.session}"
