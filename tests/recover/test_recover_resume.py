"""An interrupted recovery goes on at the layer where it stopped, and ends with the same bits."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantpipe.artifacts import Origin
from quantpipe.artifacts.checkpoint import PartCheckpoint
from quantpipe.recover import LayerOptions, Recovery, overrides_arrays, recover
from quantpipe.recover.reconstruct.layerwise import Effort
from quantpipe.types import Range, Strategy
from tests.e2e.program import Program, contents
from tests.ops.line import Line, set_threshold
from tests.recover.test_recover_walk import digits

RECOVER = ("hardware=vta", "recover=default", "dataset.samples.calibrate=null")


class Stop(Exception):
    pass


class Watched(PartCheckpoint):
    """Notes what is found and what is written."""

    read_: list[str]
    written: list[str]

    def __init__(self, folder: Path, origin: str = "a") -> None:
        super().__init__(folder, Origin("recover/partial", {"model": origin}))
        object.__setattr__(self, "read_", [])
        object.__setattr__(self, "written", [])

    def read(self, key: str) -> Any:
        found = super().read(key)
        if found is not None:
            self.read_.append(key)
        return found

    def write(self, key: str, layer: Any) -> None:
        self.written.append(key)
        super().write(key, layer)


def walk(
    made: Line,
    kept: PartCheckpoint,
    stop: int = 999,
    seed: int = 0,
    options: LayerOptions | None = None,
    strategy: Strategy | None = None,
) -> Recovery:
    def progress(done: int, total: int, note: str) -> None:
        if done == stop:
            raise Stop

    return recover(
        made.problem,
        strategy or made.strategy(),
        made.samples,
        options or LayerOptions(),
        effort=Effort(rows=2048, memory_mb=64, seed=seed),
        progress=progress,
        kept=kept,
    )


def test_a_walk_goes_on_where_it_stopped(tmp_path: Path) -> None:
    made = digits("vta")
    whole = walk(made, Watched(tmp_path / "whole"))
    first = Watched(tmp_path / "parts")
    with pytest.raises(Stop):
        walk(made, first, stop=4)
    assert first.written and not first.read_
    second = Watched(tmp_path / "parts")
    again = walk(made, second)
    assert second.read_ == first.written and len(first.written) + len(second.written) == len(whole.layers)
    arrays, expected = overrides_arrays(again.overrides), overrides_arrays(whole.overrides)
    assert arrays.keys() == expected.keys() and all(np.array_equal(arrays[k], expected[k]) for k in arrays)
    assert again.layers == whole.layers


@pytest.mark.grid
def test_what_would_make_other_numbers_finds_nothing(tmp_path: Path) -> None:
    made = digits("vta")
    walk(made, Watched(tmp_path))
    for other in (
        {"seed": 1},
        {"options": LayerOptions(ridge=0.3)},
        {"made": digits("ort_cpu")},
        {"kept": Watched(tmp_path, origin="b")},
    ):
        kept = other.pop("kept", Watched(tmp_path))
        walk(other.pop("made", made), kept, **other)  # type: ignore[arg-type]
        assert not kept.read_ and kept.written, other  # type: ignore[attr-defined]


@pytest.mark.parametrize("place", [1, -2, -1])
def test_another_scale_leaves_the_layers_before_it(place: int, tmp_path: Path) -> None:
    """The layers up to the changed scale are found, and the result is that of a walk that finds nothing."""
    made, first = digits("vta"), Watched(tmp_path / "kept")
    walk(made, first)
    layers = [k for k in made.topology.kernels if k.weight is not None]
    group = made.topology.group_of[layers[place].operands[0].tensor]
    touched = [{k.operands[0].tensor, k.output}.isdisjoint(group.tensors) for k in layers].index(False)
    key, plain = group.key, made.strategy()
    other = set_threshold(plain, key, Range(plain.ranges[key].low / 2, plain.ranges[key].high / 2))
    again, fresh = Watched(tmp_path / "kept"), Watched(tmp_path / "other")
    found, expected = (walk(made, kept, strategy=other) for kept in (again, fresh))
    assert again.read_ == first.written[: len(again.read_)] and not fresh.read_
    assert len(again.read_) == touched
    assert found.layers == expected.layers
    arrays, wanted = overrides_arrays(found.overrides), overrides_arrays(expected.overrides)
    assert arrays.keys() == wanted.keys() and all(np.array_equal(arrays[k], wanted[k]) for k in arrays)


def test_a_damaged_layer_is_solved_again(tmp_path: Path) -> None:
    made = digits("vta")
    first = Watched(tmp_path)
    walk(made, first)
    (tmp_path / f"{first.written[2]}.npz").write_bytes(b"half a file")
    second = Watched(tmp_path)
    walk(made, second)
    assert second.written == [first.written[2]] and len(second.read_) == len(first.written) - 1
    second.clear()
    assert not tmp_path.exists()


@pytest.mark.parametrize("what", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_killed_process_goes_on(program: Program, what: signal.Signals) -> None:
    whole = program.run(*RECOVER, folder="whole")
    assert whole.code == 0, whole.err
    partial = program.cwd / "run" / "recover" / "partial"
    process = program.start(*RECOVER)
    deadline = time.monotonic() + 120
    while len(list(partial.glob("*.npz"))) < 3:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(what)
    process.communicate(timeout=60)
    assert process.returncode == (-what if what is signal.SIGKILL else 130)
    left = {p.name: p.stat().st_mtime_ns for p in partial.glob("*.npz")}
    assert len(left) >= 3 and not (partial.parent / "weights.npz").exists()
    result = program.run(*RECOVER)
    assert result.code == 0, result.err
    assert not partial.exists()
    ended, expected = contents(result.folder), contents(whole.folder)
    assert ended["recover/weights.npz"] == expected["recover/weights.npz"]
    assert ended["realize/model.onnx"] == expected["realize/model.onnx"]
    assert result.report["metrics"] == whole.report["metrics"]
