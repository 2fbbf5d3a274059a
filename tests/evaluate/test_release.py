"""What a finished search keeps: sessions and tensors go, and scores stay."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from quantpipe.graph.execute import Session
from quantpipe.scoring.candidate import EvaluatorKind
from quantpipe.scoring.workers.process import Process
from quantpipe.scoring.workers.serial import Serial
from tests.evaluate.test_candidate import points, recipe


@pytest.mark.parametrize("kind", [EvaluatorKind.SIMULATED, EvaluatorKind.INTEGER])
@pytest.mark.parametrize("workers", [Serial(), Process(1)])
def test_closed_workers_hold_no_session(
    workers: Serial | Process, kind: EvaluatorKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, loaded = recipe("residual", "ort_cpu", kind), []
    load = Session.__init__

    def counted(self: Session, *given: Any, **named: Any) -> None:
        load(self, *given, **named)
        loaded.append(weakref.ref(self))

    monkeypatch.setattr(Session, "__init__", counted)
    opened, asked = workers.open(made), points(made, 3)
    scores = list(opened(asked))
    opened.close()
    gc.collect()
    assert loaded and not [session for session in loaded if session() is not None]
    assert list(opened(asked)) == scores
    opened.close()
