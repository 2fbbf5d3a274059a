"""Libraries load without garbage collection, and a run has it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace

import pytest

from quantpipe.app import start
from quantpipe.loading import collection_paused
from quantpipe.tracking import setup


@pytest.fixture(autouse=True)
def unfrozen() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.enable()


def test_collection_goes_on_afterwards_without_what_was_loaded() -> None:
    with pytest.raises(ImportError), collection_paused():
        assert not gc.isenabled()
        loaded = [[number] for number in range(1000)]
        raise ImportError
    assert gc.isenabled() and gc.get_freeze_count() > len(loaded)


def test_collection_that_was_off_stays_off() -> None:
    gc.disable()
    with collection_paused():
        pass
    assert not gc.isenabled()


def test_the_program_and_mlflow_load_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    collects: list[bool] = []
    program = ModuleType("quantpipe.app.main")
    program.__dict__["main"] = lambda: collects.append(gc.isenabled())
    monkeypatch.setitem(sys.modules, "quantpipe.app.main", program)
    monkeypatch.setattr(start, "_check_names", lambda arguments: collects.append(gc.isenabled()))
    monkeypatch.setattr(sys, "argv", ["quantpipe"])
    monkeypatch.setattr(start, "signal", SimpleNamespace(getsignal=lambda _: None, SIGINT=2, default_int_handler=1))
    start.main()
    assert collects == [False, True]
    mlflow = SimpleNamespace(MlflowClient=lambda tracking_uri: collects.append(gc.isenabled()))
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    setup.make_client("sqlite:///x.db")
    assert collects == [False, True, False] and gc.isenabled()
