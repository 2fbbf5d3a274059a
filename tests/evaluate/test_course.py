"""An interrupted evaluation goes on where it was, tells how far it is, and ends as one that was never stopped."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from quantpipe.artifacts import Origin
from quantpipe.artifacts.checkpoint import PartCheckpoint
from quantpipe.errors import DamagedError
from quantpipe.evaluate.agreement import Agreement, SessionAgreement
from quantpipe.evaluate.progress import CountedSamples, EvaluationProgress
from quantpipe.types import Batch

ORIGIN = Origin("evaluate/partial", {"model": "sha256:m"})


@dataclass
class Numbers:
    """`count` samples, of the shapes `[1]`, or longer and longer ones."""

    count: int = 23
    ragged: bool = False
    digest: str = "sha256:numbers"
    labelled: bool = True

    def __len__(self) -> int:
        return self.count

    def batches(self, size: int) -> Iterator[Batch]:
        step = 1 if self.ragged else size
        for start in range(0, self.count, step):
            rows = np.arange(start, min(start + step, self.count))
            shape = (len(rows), 1 + start % 3 if self.ragged else 1)
            yield Batch({"x": np.broadcast_to(rows[:, None], shape).astype(np.float32)}, rows % 10, rows)


@dataclass
class Model:
    """Squares, and stops with an interrupt at one of the batches."""

    stop_at: int = 10**9
    ran: list[int] = field(default_factory=list)

    def __call__(self, batch: Batch) -> np.ndarray:
        if len(self.ran) == self.stop_at:
            raise KeyboardInterrupt
        self.ran.append(int(batch.indices[0]))
        return batch.inputs["x"] ** 2


def course(folder: Path, seconds: float = 0.0, **options: object) -> EvaluationProgress:
    return EvaluationProgress(PartCheckpoint(folder, ORIGIN), seconds=seconds, **options)  # type: ignore[arg-type]


@pytest.mark.sliced(2)
@pytest.mark.parametrize("ragged", [False, True])
def test_interrupted_at_every_batch_and_gone_on(tmp_path: Path, ragged: bool) -> None:
    samples = Numbers(ragged=ragged)
    expected, labels = EvaluationProgress().outputs("m", Model(), samples, 4)
    whole = Model()
    EvaluationProgress().outputs("m", whole, samples, 4)
    for stop in range(len(whole.ran) + 1):
        folder, first, second, third = tmp_path / str(stop), Model(stop), Model(), Model()
        if stop < len(whole.ran):
            with pytest.raises(KeyboardInterrupt):
                course(folder).outputs("m", first, samples, 4)
        else:
            course(folder).outputs("m", first, samples, 4)
        found, known = course(folder).outputs("m", second, samples, 4)
        assert first.ran + second.ran == whole.ran, "nothing twice, nothing left out"
        np.testing.assert_equal(found, expected)
        np.testing.assert_array_equal(known, labels)
        course(folder).outputs("m", third, samples, 4)
        assert not third.ran


def test_quick_work_is_not_kept(tmp_path: Path) -> None:
    course(tmp_path, seconds=60.0).outputs("m", Model(), Numbers(), 4)
    course(tmp_path, seconds=60.0).result("r", lambda some: 1, Numbers(), int)
    assert not list(tmp_path.iterdir())


def test_parts_are_as_long_as_they_are_worth(tmp_path: Path) -> None:
    """A clock that goes by one second a call: three batches make the five seconds of a part."""
    ticks = itertools.count()
    course(tmp_path, seconds=5.0, clock=lambda: float(next(ticks))).outputs("m", Model(), Numbers(), 2)
    assert 1 < len(list(tmp_path.iterdir())) < 5
    found, _ = course(tmp_path).outputs("m", Model(0), Numbers(), 2)
    assert len(found) == 23


def test_other_batches_another_origin_and_damage_are_not_taken(tmp_path: Path) -> None:
    course(tmp_path).outputs("m", Model(), Numbers(), 4)
    other = Model()
    course(tmp_path).outputs("m", other, Numbers(), 5)
    assert len(other.ran) == 5
    other = Model()
    EvaluationProgress(PartCheckpoint(tmp_path, Origin("evaluate/partial", {"model": "sha256:n"}))).outputs(
        "m", other, Numbers(), 4
    )
    assert len(other.ran) == 6
    damaged, again = list[DamagedError](), Model()
    course(tmp_path).outputs("m", Model(), Numbers(), 4)
    path = sorted(tmp_path.glob("m-by-4-*.npz"))[2]
    data = path.read_bytes()
    path.write_bytes(data[:90] + bytes([data[90] ^ 4]) + data[91:])
    found, _ = EvaluationProgress(PartCheckpoint(tmp_path, ORIGIN, damaged.append)).outputs("m", again, Numbers(), 4)
    np.testing.assert_array_equal(found[:, 0], np.arange(23.0) ** 2)
    assert again.ran == [8, 12, 16, 20] and damaged[0].where == str(path)


def test_results_come_back_as_they_were(tmp_path: Path) -> None:
    """A change of Agreement that JSON does not carry shows here."""
    agreement = Agreement(3, 1000, 2, 1, 1.5, "conv", 64, sessions=(SessionAgreement("default", True, 64, 1000, 2),))
    values = [{"tensor": "a", "sqnr_db": float("-inf"), "bits": np.int64(8)}, {"tensor": "b", "sqnr_db": None}]
    for c in (course(tmp_path), course(tmp_path)):
        assert c.result("agreement", lambda some: agreement, Numbers(), Agreement.from_dict) == agreement
        assert c.result("errors", lambda some: values, Numbers(), list) == values
    with pytest.raises(KeyboardInterrupt):
        course(tmp_path).result("other", lambda some: Model(0)(next(some.batches(1))), Numbers(), list)
    assert not list(tmp_path.glob("other*"))


def test_progress_is_told_by_phase_and_begins_where_it_goes_on(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []

    def bar(name: str) -> object:
        return lambda done, total, note: told.append((name, done, total))

    with pytest.raises(KeyboardInterrupt):
        course(tmp_path).outputs("m", Model(3), Numbers(), 4)
    c = course(tmp_path, progress=bar, phases=2)
    c.outputs("m", Model(), Numbers(), 4)
    c.result("r", lambda some: [len(b) for b in some.batches(10)], Numbers(), list)
    assert told == [
        ("evaluate 1/2: m", 12, 23), ("evaluate 1/2: m", 16, 23), ("evaluate 1/2: m", 20, 23),
        ("evaluate 1/2: m", 23, 23), ("evaluate 2/2: r", 10, 23), ("evaluate 2/2: r", 20, 23),
        ("evaluate 2/2: r", 23, 23),
    ]  # fmt: skip
    assert len(CountedSamples(Numbers(), print)) == 23
