"""What a run says of its samples: too few, the same in two splits, scaled wrong; first of all, and in every place."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from quantpipe.data.sources.digits import digits_arrays
from quantpipe.metrics.interval import wilson
from tests.e2e.models import SCALED, npz
from tests.e2e.program import Program, read


def part(path: Path, count: int, copies: int = 0) -> str:
    images, labels = digits_arrays()
    chosen = np.r_[0:count, 0:copies]
    return npz(path, images=images[chosen], labels=labels[chosen])


def test_three_samples_are_refused_unless_forced(program: Program) -> None:
    source = part(program.cwd / "d.npz", 3)
    refused = program.run(*SCALED, source)
    assert (
        "calibrate has 1, search has 1, evaluate has 1" in refused.paragraph
        and "dataset.force_few=true" in refused.paragraph
    )
    assert not (refused.folder / "realize").exists()
    forced = program.run(*SCALED, source, "dataset.force_few=true")
    assert forced.code == 0, forced.err
    assert "evaluate has only 1 samples" in forced.err
    low, high = wilson(forced.report["metrics"]["realized"]["top1"], 1) or (0, 0)
    assert forced.report["intervals"]["realized"] == [low, high] and "95 % interval" in forced.out
    assert "95 % interval" in (forced.folder / "evaluate" / "report.html").read_text()
    assert any("evaluate has only 1 samples" in text for text in forced.report["warnings"])


def test_an_array_of_another_name_is_named_on_the_terminal_and_in_the_report(program: Program) -> None:
    result = program.run(*SCALED, npz(program.cwd / "d.npz", images=None, labels=None, pictures=digits_arrays()[0]))
    assert result.code == 0, result.err
    assert "warning: array 'pictures' feeds model input 'image', as the only one of each" in result.err
    assert any(text.startswith("array 'pictures' feeds model input 'image'") for text in result.report["warnings"])


def test_copies_are_dropped_and_counted_in_terminal_and_records(program: Program) -> None:
    result = program.run(*SCALED, part(program.cwd / "d.npz", 200, 100))
    assert result.code == 0, result.err
    assert "samples of the calibrate split are also in search or evaluate" in result.err
    count = result.report["data"]["calibrate"]["duplicates"]
    assert count > 10 and any(f"{count} samples of the calibrate split" in text for text in result.report["warnings"])
    assert read(result.folder / "data.json")["calibrate"]["duplicates"]


def test_a_forgotten_scale_is_the_first_thing_that_is_said(program: Program) -> None:
    images, labels = digits_arrays()
    source = npz(program.cwd / "d.npz", images=images[:400] * 15, labels=labels[:400])
    result = program.run(
        "dataset=npz", source, "dataset.preprocess.mean=-900", "objective.tolerance=1e-9", "objective=mse"
    )
    assert result.code == 2 and not (result.folder / "precision").exists()
    assert "Check dataset.preprocess first" in result.paragraph and "dataset.doubts=go_on" in result.paragraph
    result = program.run(
        "dataset=npz", source, "dataset.preprocess.mean=-900", "objective.tolerance=1e-9", "objective=mse",
        "dataset.doubts=go_on",
    )  # fmt: skip
    assert result.code == 0, result.err
    first = next(line for line in result.err.splitlines() if line.startswith("warning: "))
    assert (
        "Check dataset.preprocess first" in first and "accuracies and tolerances of this run are meaningless" in first
    )
    assert result.err.index("dataset.preprocess") < result.err.find("objective.tolerance") % (1 << 40)
    assert result.out.lstrip().startswith("warning: the float model")
    assert result.report["warnings"][0] == result.report["doubts"][0]
    page = (result.folder / "evaluate" / "report.html").read_text()
    assert 0 < page.index("Look at this first") < page.index("elements differ")
