"""`quantpipe.quantize` and `Pipeline`: forms of models and samples, stage by stage, resumed, in threads, quiet."""

from __future__ import annotations

import gc
import logging
import os
import sys
import threading
import warnings
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import pytest
from hydra.core.global_hydra import GlobalHydra

import quantpipe
from quantpipe.api.progress import ProgressEvent, TextLine
from quantpipe.data import DigitsDataset
from quantpipe.errors import ArtifactError, DataError, Interrupted, TargetError
from quantpipe.tracking import NullTracker
from quantpipe.types import QuantPlan, Strategy
from tests.api.nets import QUICK, images, numbers_of, small_net

BITS = {"choices": ["bits"]}
"""Also those that the device gains nothing from, so that there is something to search."""
SEARCH = {"option": "random", "max_evaluations": 6}


def test_result_holds_what_the_folder_holds(tmp_path: Path) -> None:
    result = quantpipe.quantize(small_net(), images(), folder=tmp_path / "run", evaluate=QUICK)
    assert result.folder == tmp_path / "run"
    assert isinstance(result.plan, QuantPlan)
    assert isinstance(result.strategy, Strategy)
    assert result.report["agreement"]["differing"] == 0
    assert result.report["layer_samples"] == QUICK["layer_samples"]
    assert result.report["agreement"]["elements"] > 0
    assert result.model == onnx.load(tmp_path / "run" / "realize" / "model.onnx")
    assert {"QuantizeLinear", "DequantizeLinear"} <= {n.op_type for n in result.model.graph.node}
    assert "squared error / variance" in str(result)  # no labels and no Softmax: no class scores
    assert repr(result).startswith("Result(")
    with pytest.raises(ArtifactError, match="there is something already"):
        result.save(tmp_path / "run" / "realize")
    saved = result.save(tmp_path / "copy")
    assert numbers_of(saved) == numbers_of(result.folder)
    assert not (saved / ".lock").exists()
    assert result.save(result.folder) == result.folder


def test_stage_by_stage_equals_all_at_once(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "search": SEARCH, "annotate": BITS, "evaluate": QUICK,
        "recover": {"option": "default", "steps": ["equalize", "gptq"]},
    }  # fmt: skip
    whole = quantpipe.quantize(small_net(), images(), "snpe", folder=tmp_path / "whole", **given)
    pipeline = quantpipe.Pipeline(small_net(), images(), "snpe", folder=tmp_path / "stages", **given)
    annotation = pipeline.annotate()
    assert len(annotation.space) > 3
    assert annotation.float_nodes == {}
    assert not (tmp_path / "stages" / "calibrate").exists()
    profile = pipeline.calibrate()
    assert profile is not None and profile.tensors
    assert not (tmp_path / "stages" / "search" / "strategy.json").exists()
    found = pipeline.search()
    assert found.report["evaluations"] == 6
    assert not (tmp_path / "stages" / "recover").exists()
    assert [step["step"] for step in pipeline.recover().recovery["steps"]] == ["equalize", "gptq"]
    assert not (tmp_path / "stages" / "realize").exists()
    realization = pipeline.realize()
    assert realization.model_path.is_file()
    assert not (tmp_path / "stages" / "evaluate").exists()
    report = pipeline.evaluate()
    assert pipeline.evaluate() is report
    assert numbers_of(tmp_path / "stages") == numbers_of(tmp_path / "whole")
    assert report["metrics"] == whole.report["metrics"]
    alone = quantpipe.Pipeline(small_net(), images(), "snpe", folder=tmp_path / "last", **given)
    assert alone.evaluate()["metrics"] == report["metrics"]  # does what comes before it


class Recorder:
    """A listener that stops a run at a trial of the search."""

    def __init__(self, stop_at: int | None = None, by: type[BaseException] = RuntimeError) -> None:
        self.events: list[ProgressEvent] = []
        self._stop_at, self._by = stop_at, by

    def __call__(self, event: ProgressEvent) -> None:
        self.events.append(event)
        if event.stage == "search" and event.done == self._stop_at:
            raise self._by("the listener stops it")

    def notes(self, stage: str) -> list[str]:
        return [e.note for e in self.events if e.stage == stage and not e.total]


@pytest.mark.program
def test_a_stopped_run_goes_on_in_its_folder_and_a_finished_one_is_answered_from_it(tmp_path: Path) -> None:
    given: dict[str, Any] = {"search": SEARCH, "annotate": BITS, "evaluate": QUICK}
    whole = quantpipe.quantize(small_net(), images(), "vta", **given)
    with pytest.raises(RuntimeError, match="the listener stops it"):
        quantpipe.quantize(small_net(), images(), "vta", folder=tmp_path, progress=Recorder(stop_at=3), **given)
    lines = (tmp_path / "search" / "trials.jsonl").read_text().splitlines()
    second = Recorder()
    resumed = quantpipe.quantize(small_net(), images(), "vta", folder=tmp_path, progress=second, **given)
    assert (tmp_path / "search" / "trials.jsonl").read_text().splitlines()[: len(lines)] == lines
    assert numbers_of(tmp_path) == numbers_of(whole.folder)
    assert list(dict.fromkeys(e.stage for e in second.events if not e.total)) == [
        "model", "annotate", "calibrate", "search", "recover", "recovered", "realize", "evaluate", "samples"
    ]  # fmt: skip
    third = Recorder()
    again = quantpipe.quantize(small_net(), images(), "vta", folder=tmp_path, progress=third, **given)
    assert third.notes("evaluate") == ["from an earlier run in this folder"]
    assert again.report == resumed.report
    with pytest.raises(ArtifactError, match="another run"):
        quantpipe.quantize(small_net(), images(), "snpe", folder=tmp_path, **given)


def test_the_report_has_the_evaluations_of_a_search_that_went_on(tmp_path: Path) -> None:
    """Also where it found nothing better, so that the realized model is the same."""
    given: dict[str, Any] = {"annotate": BITS, "evaluate": QUICK, "objective": {"tolerance": 1e-9}, "recover": "none"}
    found = [
        quantpipe.quantize(
            small_net(), images(), "vta", folder=tmp_path, search={"option": "random", "max_evaluations": most}, **given
        )
        for most in (3, 6)
    ]
    assert found[0].strategy.bits == found[1].strategy.bits
    assert [one.report["search"]["evaluations"] for one in found] == [3, 6]


@pytest.mark.program
def test_samples_in_memory_are_in_no_file_and_change_what_is_made_from_them(tmp_path: Path) -> None:
    """By digest alone: written out, a hundred photographs are a gigabyte of JSON that takes minutes."""
    samples = images(64)
    for given in (samples, quantpipe.SampleSets(calibrate=samples[:32], evaluate=samples[32:])):
        folder = tmp_path / type(given).__name__
        quantpipe.quantize(small_net(), given, folder=folder, evaluate=QUICK)
        values = {repr(float(v)) for v in samples[:2].reshape(-1) if v not in (0.0, 1.0)}
        texts = [p for p in folder.rglob("*") if p.suffix in (".json", ".jsonl", ".yaml", ".log")]
        assert len(values) > 50 and (folder / "data.json") in texts
        for path in texts:
            assert sum(value in path.read_text() for value in values) < 5, path
    with pytest.raises(ArtifactError, match="another"):
        quantpipe.quantize(small_net(), samples + np.float32(0.125), folder=tmp_path / "ndarray", evaluate=QUICK)


@pytest.mark.grid
def test_an_interruption_says_how_to_go_on(tmp_path: Path) -> None:
    whole = quantpipe.quantize(small_net(), images(), search=SEARCH, annotate=BITS, evaluate=QUICK)
    for folder, said in ((tmp_path, f"the same call, with folder='{tmp_path}'"), (None, "give folder=…")):
        listener = Recorder(stop_at=3, by=KeyboardInterrupt)
        pipeline = quantpipe.Pipeline(
            small_net(), images(), folder=folder, progress=listener, search=SEARCH, annotate=BITS, evaluate=QUICK
        )
        with pytest.raises(Interrupted, match="interrupted after 3 evaluations") as caught:
            pipeline.search()
        assert said in str(caught.value)
        assert numbers_of(pipeline.run().folder) == numbers_of(whole.folder)


def everything_below(*folders: Path) -> set[str]:
    return {str(path) for folder in folders for path in folder.rglob("*")}


@pytest.mark.grid
def test_nothing_is_left_outside_the_folder_and_nothing_of_the_process_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    here, home, temporary = tmp_path / "here", tmp_path / "home", tmp_path / "temporary"
    for folder in (here, home, temporary):
        folder.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
    monkeypatch.delenv("QUANTPIPE_CACHE", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    before = everything_below(here, home, temporary)
    logs = {name: logging.getLogger(name).level for name in (None, "quantpipe", "onnxslim", "mlflow")}
    state = (Path.cwd(), list(logging.getLogger().handlers), dict(os.environ), sys.stdout, list(sys.path))
    quantpipe.quantize(small_net(), images(), folder=tmp_path / "run", evaluate=QUICK)
    assert everything_below(here, home, temporary) == before
    result = quantpipe.quantize(small_net(), images(), evaluate=QUICK)
    assert result.folder.parent == temporary
    assert everything_below(here, home) == {p for p in before if not p.startswith(str(temporary))}
    del result
    gc.collect()
    assert everything_below(here, home, temporary) == before
    assert (Path.cwd(), list(logging.getLogger().handlers), dict(os.environ), sys.stdout, list(sys.path)) == state
    assert {name: logging.getLogger(name).level for name in logs} == logs
    assert not GlobalHydra.instance().is_initialized()
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")


@pytest.mark.grid
def test_two_threads_at_once_and_twice_in_one_process() -> None:
    before = sys.stdout
    numbers: dict[int, Any] = {}

    def work(seed: int) -> None:
        result = quantpipe.quantize(small_net(), images(seed=seed), evaluate=QUICK)
        numbers[seed] = numbers_of(result.folder)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sys.stdout is before
    alone = [quantpipe.quantize(small_net(), images(seed=seed), evaluate=QUICK) for seed in (0, 1)]
    assert [numbers[0], numbers[1]] == [numbers_of(result.folder) for result in alone]
    assert numbers[0] != numbers[1]


def negative_distance(reference: Any, outputs: Any, labels: Any) -> float:
    return -float(np.abs(reference - outputs).max())


@pytest.mark.grid
def test_an_objective_that_is_a_function() -> None:
    settings: dict[str, Any] = {"evaluate": QUICK, "search": SEARCH, "executor": "serial"}
    direct = quantpipe.quantize(small_net(), images(), objective=negative_distance, **settings)
    assert direct.report["search"]["metric"] == "callable"
    among = {"target": negative_distance, "tolerance": 0.5}
    assert quantpipe.Pipeline(small_net(), images(), objective=among).settings.objective["tolerance"] == 0.5

    def inner(reference: Any, outputs: Any, labels: Any) -> float:
        return negative_distance(reference, outputs, labels)

    local = quantpipe.quantize(small_net(), images(), objective=inner, **settings)
    assert numbers_of(local.folder) == numbers_of(direct.folder)


@pytest.mark.grid
def test_a_missed_target_warns_at_the_callers_line_and_strict_refuses() -> None:
    given: dict[str, Any] = {"objective": {"tolerance": 1e-9}, "evaluate": QUICK}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = quantpipe.quantize(small_net(), images(), **given)
    told = [w for w in caught if issubclass(w.category, quantpipe.QuantpipeWarning)]
    assert [str(w.message) for w in told] == list(result.warnings)
    assert any("no candidate met the objective" in text for text in result.warnings)
    assert {w.filename for w in told} == {__file__}
    with pytest.raises(TargetError, match="strict=True"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantpipe.quantize(small_net(), images(), strict=True, **given)


class Stream:
    """Standard error, in a terminal or not."""

    def __init__(self, terminal: bool) -> None:
        self.text, self._terminal = "", terminal

    def isatty(self) -> bool:
        return self._terminal

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None: ...


class Cell(Stream):
    """Standard error of a notebook."""


Cell.__module__ = "ipykernel.iostream"


def test_progress_as_lines() -> None:
    for stream, terminal in ((Stream(False), False), (Stream(True), True), (Cell(False), True)):
        line = TextLine(stream)
        line(ProgressEvent("search", note="greedy"))
        line(ProgressEvent("search", 4, 4, "best 1"))
        line(ProgressEvent("realize"))
        assert "search     greedy\n" in stream.text
        assert stream.text.endswith("realize\n")
        assert ("4 of 4  best 1" in stream.text) is terminal


class Diary(NullTracker):
    """A tracker that remembers what it was told."""

    entries: ClassVar[list[Any]] = []
    run_id = "7"

    def start(self, name: str | None, params: Any, tags: Any) -> None:
        self.entries.append(("start", params["hardware"], params["search"]))

    def end(self, status: str = "FINISHED") -> None:
        self.entries.append(("end", status))


@pytest.mark.grid
def test_tracking_when_it_is_asked_for() -> None:
    Diary.entries.clear()
    tracking = {"option": "none", "_target_": f"{__name__}.Diary"}
    given: dict[str, Any] = {"tracking": tracking, "plugins": [__name__.split(".")[0]], "evaluate": QUICK}
    pipeline = quantpipe.Pipeline(small_net(), images(), "vta", **given)
    pipeline.annotate()
    pipeline.calibrate()
    assert Diary.entries == [("start", "vta", "uniform")]
    pipeline.run()
    assert Diary.entries[0] == ("start", "vta", "uniform")
    assert set(Diary.entries[1:]) == {("end", "FINISHED")}
    Diary.entries.clear()
    with pytest.raises(DataError), quantpipe.Pipeline(small_net(), images()[:1], **given) as broken:
        broken.annotate()
    assert Diary.entries == []  # what cannot begin leaves no run behind


def test_the_digits_data_set_as_an_object() -> None:
    pipeline = quantpipe.Pipeline(quantpipe.example_model(), DigitsDataset(), threshold="max_range", evaluate=QUICK)
    assert len(pipeline.annotate().topology.kernels) > 10
