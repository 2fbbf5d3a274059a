"""`profile.load=FILE`: a run from stored statistics, ours or another tool's, without a calibration run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from tests.e2e.program import ROOT, Program, Result, contents, read

MODEL = ROOT / "quantpipe" / "assets" / "digits.onnx"


@pytest.fixture
def measured(program: Program) -> Result:
    result = program.run("stages=[annotate,calibrate]", folder="measured")
    assert result.code == 0, result.err
    return result


@pytest.mark.parametrize("file", ["profile.yaml", "stats.npz"])
@pytest.mark.parametrize("threshold", ["mse", "kl", "moving_average"])
def test_a_run_from_our_own_file_is_the_run_itself(
    program: Program, measured: Result, threshold: str, file: str
) -> None:
    whole = program.run(f"threshold={threshold}", folder="whole")
    path = measured.folder / "calibrate" / file
    loaded = program.run(f"threshold={threshold}", f"profile.load={path}", folder="loaded")
    assert loaded.code == 0, loaded.err
    assert "no run: statistics of" in loaded.out + loaded.err
    assert loaded.strategy == whole.strategy
    assert loaded.report["metrics"] == whole.report["metrics"]
    assert loaded.report["calibrate"]["loaded"]["format"] == "quantpipe"
    assert "loaded" not in whole.report["calibrate"]
    assert loaded.report["warnings"] == whole.report["warnings"] == []


def test_no_calibration_run_happens(program: Program, measured: Result) -> None:
    """The loaded thresholds decide, whatever the calibration samples would say."""
    path = measured.folder / "calibrate" / "profile.yaml"
    doubled = program.cwd / "doubled.yaml"
    lines = [line for line in path.read_text().splitlines() if not line.startswith("# origin")]
    doubled.write_text(
        "\n".join(
            f"{line.partition('Max: ')[0]}Max: {2 * float(line.partition('Max: ')[2])}" if "  Max: " in line else line
            for line in lines
        )
    )
    once, twice = (
        program.run("threshold=max_range", f"profile.load={p}", folder=p.stem).strategy["thresholds"]
        for p in (path, doubled)
    )
    assert twice["stem.out"]["high"] == 2 * once["stem.out"]["high"]


def test_the_folder_goes_on_from_the_loaded_statistics(program: Program, measured: Result) -> None:
    load = f"profile.load={measured.folder / 'calibrate' / 'profile.yaml'}"
    first = program.run(load, "stages=[annotate,calibrate]")
    assert first.code == 0, first.err
    before = contents(first.folder)["calibrate/stats.npz"]
    second = program.run(load)
    assert second.code == 0, second.err
    assert "from an earlier run in this folder" in second.out + second.err
    assert contents(second.folder)["calibrate/stats.npz"] == before
    assert second.report["calibrate"]["loaded"]["file"].endswith("profile.yaml")
    other = program.run()
    assert "this folder holds the work of another run" in other.paragraph and "profile" in other.paragraph


def test_another_models_profile_is_refused(program: Program, measured: Result) -> None:
    path = program.cwd / "foreign.yaml"
    text = (measured.folder / "calibrate" / "profile.yaml").read_text()
    hash_ = read(measured.folder / "annotate" / "topology.json")["origin"]["inputs"]["model"]
    lines = [line for line in text.splitlines() if not line.startswith("# origin")]
    path.write_text("\n".join(lines).replace(hash_, "sha256:" + "0" * 64))
    refused = program.run(f"profile.load={path}", folder="refused")
    assert "statistics of another model are not valid for this one" in refused.paragraph
    assert contents(refused.folder) == {}


def test_onnxruntimes_own_table(program: Program) -> None:
    """MinMax of the installed onnxruntime on the same samples gives the thresholds of max_range."""
    from onnxruntime.quantization.calibrate import CalibrationDataReader, CalibrationMethod, create_calibrator
    from onnxruntime.quantization.quant_utils import write_calibration_table

    images = (load_digits().images[:64, None] / 16).astype(np.float32)

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        left = iter(np.split(images, 4))

        def get_next(self) -> dict[str, np.ndarray] | None:  # type: ignore[type-arg]
            batch = next(self.left, None)
            return None if batch is None else {"image": batch}

    calibrator = create_calibrator(MODEL, None, str(program.cwd / "a.onnx"), CalibrationMethod.MinMax)
    calibrator.collect_data(Reader())
    table = calibrator.compute_data().data
    write_calibration_table(table, str(program.cwd))
    result = program.run("threshold=max_range", f"profile.load={program.cwd / 'calibration.json'}")
    assert result.code == 0, result.err
    assert result.report["agreement"]["differing"] == 0
    assert result.report["metrics"]["realized"]["top1"] > 0.97
    assert any("no hash of a model" in w for w in result.report["warnings"])
    thresholds = result.strategy["thresholds"]
    for name, entry in thresholds.items():
        if name in table and isinstance(entry, dict):
            low, high = np.asarray(table[name].lowest).item(), np.asarray(table[name].highest).item()
            assert (entry["low"], entry["high"]) == (min(low, 0.0), max(high, 0.0)), name
    refused = program.run(f"profile.load={program.cwd / 'calibration.json'}", folder="mse")
    assert "MSE reads a histogram" in refused.paragraph and "threshold=max_range" in refused.paragraph
    for name in ("calibration.cache", "calibration.flatbuffers"):
        result = program.run("threshold=max_range", f"profile.load={program.cwd / name}", folder=f"from_{name}")
        assert result.code == 0, result.err
        assert any("without a sign" in w for w in result.report["warnings"])


def test_a_file_of_some_tensors_is_refused_by_name(program: Program) -> None:
    path = Path(program.cwd / "few.json")
    path.write_text(json.dumps({"image": {"lowest": 0, "highest": 1}}))
    result = program.run("threshold=max_range", f"profile.load={path}")
    assert "it lacks statistics of" in result.paragraph and "stem.out" in result.paragraph


def test_it_has_no_meaning_for_a_replay_and_names_a_missing_file(program: Program) -> None:
    assert "cannot be read" in program.run("profile.load=nowhere.yaml").paragraph
    replay = program.run("command=replay", "strategy=s.json", "profile.load=p.yaml", folder="replay")
    assert "no meaning with command=replay" in replay.paragraph
