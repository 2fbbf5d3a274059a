"""A run from Python gives the numbers of the same run from the command line, to the last one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx

import quantpipe
from quantpipe.data import DigitsDataset
from tests.api.nets import CLASSES, QUICK, images, numbers_of, small_net
from tests.e2e.conftest import DefaultRun
from tests.e2e.program import Program


def same(ours: quantpipe.Result, theirs: Path) -> None:
    assert numbers_of(ours.folder) == numbers_of(theirs)
    mine, other = (onnx.load(folder / "realize" / "model.onnx") for folder in (ours.folder, theirs))
    assert mine.graph == other.graph


def without_seconds(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in step.items() if key != "seconds"} for step in steps]


def test_defaults(default_run: DefaultRun) -> None:
    result = quantpipe.quantize(quantpipe.example_model(), DigitsDataset(), evaluate={"latency_runs": 1})
    same(result, default_run.result.folder)
    theirs = default_run.result.report
    for part in ("metrics", "agreement", "model", "cost", "choices", "float_nodes"):
        assert result.report[part] == theirs[part], part


def test_a_search_on_arrays_and_recovery_on_arrays(program: Program) -> None:
    onnx.save(small_net(), program.cwd / "net.onnx")
    data, labels = images(), np.arange(48) % CLASSES
    np.savez(program.cwd / "all.npz", images=data, labels=labels)
    common = ("model.path=net.onnx", "dataset=npz", "dataset.path=all.npz")
    cases: list[tuple[str, tuple[str, ...], dict[str, Any]]] = [
        (
            "vta",
            ("search=greedy", "objective.cost=bits", "search.max_evaluations=25", "objective.tolerance=0.05"),
            {"search": {"option": "greedy", "max_evaluations": 25}, "objective": {"cost": "bits", "tolerance": 0.05}},
        ),
        (
            "snpe",
            ("recover=default", "recover.steps=[propagation,equalize]", "threshold=percentile", "seed=3"),
            {
                "recover": {"option": "default", "steps": ["gptq_compensated", "equalize"]},
                "threshold": "percentile",
                "seed": 3,
            },
        ),
    ]
    for hardware, overrides, options in cases:
        theirs = program.run(*common, f"hardware={hardware}", *overrides, folder=hardware)
        assert theirs.code == 0, theirs.err
        result = quantpipe.quantize(small_net(), (data, labels), hardware, evaluate=QUICK, **options)
        same(result, theirs.folder)
        assert result.report["metrics"] == theirs.report["metrics"]
        mine, other = (without_seconds(report["recover"]) for report in (result.report, theirs.report))
        assert mine == other
