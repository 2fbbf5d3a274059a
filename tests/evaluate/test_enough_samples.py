"""Whether the calibration set is enough, from its statistics alone; and calibration sets that cannot be right."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import quantpipe
from quantpipe.calibrate.collector import StatsCollector
from quantpipe.calibrate.estimators import MaxRange
from quantpipe.calibrate.histogram import FOLDS
from quantpipe.data import DigitsDataset
from quantpipe.evaluate.calibration_checks import calibration_doubts
from quantpipe.evaluate.enough_samples import enough
from quantpipe.types import Batch, Profile, Range, TensorInfo, TensorSchema, TensorStats

SCHEMA = TensorSchema()
QUICK: Any = {"evaluate": {"latency_runs": 1, "baseline": "none", "explain": "none"}}


def stats(samples: NDArray[Any], batch: int = 16) -> TensorStats:
    collector = StatsCollector("t")
    for first in range(0, len(samples), batch):
        collector.update(samples[first : first + batch].astype(np.float32), first)
    return collector.finish()


def topology() -> Any:
    return SimpleNamespace(groups=[SimpleNamespace(key="t", sources=("t",), fixed=None)])


def told(samples: NDArray[Any], estimator: Any, bits: int = 8) -> Any:
    profile = Profile("m", len(samples), {"t": stats(samples)})
    return enough(topology(), {"t": bits}, profile, lambda part: {"t": estimator(part.tensors["t"], bits, SCHEMA)})


@pytest.mark.parametrize("batch", [1, 2, 7, 64])
def test_the_parts_are_disjoint_and_together_all(batch: int) -> None:
    rng = np.random.default_rng(0)
    samples = rng.standard_normal((64, 30)) * (1 + np.arange(64) % 4)[:, None]
    found = stats(samples, batch)
    assert found.folds.shape == (FOLDS, 1024)
    assert found.folds.sum(axis=0).tolist() == found.histogram.reshape(1024, -1).sum(axis=1).tolist()
    assert found.folds.sum(axis=1).min() >= 30 * 12


def real_error(samples: NDArray[Any], found: Range, bits: int) -> float:
    step = (found.high - found.low) / ((1 << bits) - 1)
    clipped = np.clip(samples, found.low, found.high)
    rounded = np.round((clipped - found.low) / step) * step + found.low
    return float(np.mean((rounded - samples) ** 2) / np.mean(samples**2))


def test_the_loss_of_half_and_twice_the_samples_is_what_such_sets_have() -> None:
    """Samples of different loudness: the error on other samples falls with the number of samples."""
    rng = np.random.default_rng(1)

    def drawn(count: int) -> NDArray[Any]:
        return rng.standard_normal((count, 64)) * np.exp(0.2 * rng.standard_normal((count, 1)))

    others, bits, size = drawn(4000), 8, 32

    def loss(count: int) -> float:
        found = (MaxRange()(stats(drawn(count)), bits, SCHEMA) for _ in range(40))
        return float(np.mean([real_error(others, one, bits) for one in found]))

    now, half, twice = (10 * np.log10(loss(n)) for n in (size, size // 2, 2 * size))
    tensors = {f"t{number}": stats(drawn(size)) for number in range(40)}
    groups = [SimpleNamespace(key=name, sources=(name,), fixed=None) for name in tensors]

    def ranges(part: Profile) -> dict[str, Range]:
        return {name: MaxRange()(one, bits, SCHEMA) for name, one in part.tensors.items()}

    network: Any = SimpleNamespace(groups=groups)
    found = enough(network, dict.fromkeys(tensors, bits), Profile("m", size, tensors), ranges)
    assert found is not None and half - now > 0.8 and twice - now < -0.8  # what is estimated is no trifle
    assert found["half_db"] == pytest.approx(half - now, abs=1.0), (half - now, twice - now, found)
    assert found["twice_db"] == pytest.approx(twice - now, abs=1.0), (half - now, twice - now, found)


def test_alike_samples_are_enough_and_rare_outliers_are_not() -> None:
    rng = np.random.default_rng(2)
    same = told(rng.uniform(-1, 1, (64, 500)), MaxRange())
    assert same["enough"] and same["sentence"].startswith("64 calibration samples are enough")
    assert same["moved_most"] < 0.02 and same["more_bits"] == 0
    loud = rng.uniform(-1, 1, (64, 500)) * np.where(np.arange(64) % 8 == 3, 20.0, 1.0)[:, None]
    loud[40] *= 8
    few = told(loud, MaxRange())
    assert few["moved_most"] > 0.3 and few["tensors"] == ["t"]


def test_nothing_is_said_of_few_samples_and_of_loaded_statistics() -> None:
    rng = np.random.default_rng(3)
    assert told(rng.standard_normal((7, 50)), MaxRange()) is None
    assert enough(topology(), {"t": 8}, None, lambda part: {}) is None
    foreign = TensorStats("t", 6, -1, 2, 0.5, 1.0, -1, 2, 2.0, np.asarray([0, 1, 2, 3]))
    assert enough(topology(), {"t": 8}, Profile("m", 64, {"t": foreign}), lambda part: {}) is None


class Given:
    """Samples of arrays."""

    def __init__(self, values: NDArray[Any], labels: NDArray[Any] | None = None) -> None:
        self.values, self.known = values.astype(np.float32), labels
        self.digest, self.labelled = "", labels is not None

    def __len__(self) -> int:
        return len(self.values)

    def batches(self, size: int) -> Iterator[Batch]:
        for at in range(0, len(self), size):
            labels = None if self.known is None else self.known[at : at + size]
            yield Batch({"x": self.values[at : at + size]}, labels, np.arange(at, min(at + size, len(self))))


def smooth(rng: np.random.Generator, count: int = 32) -> NDArray[Any]:
    return np.cumsum(np.cumsum(rng.standard_normal((count, 3, 16, 16)), -1), -2) / 20


def doubts(own: NDArray[Any], others: NDArray[Any], *labels: Any) -> tuple[str, ...]:
    return calibration_doubts(Given(own, *labels[:1]), Given(others, *labels[1:]), None)


def test_calibration_sets_that_cannot_be_right_are_recognized() -> None:
    rng = np.random.default_rng(4)
    real, more = smooth(rng), smooth(rng)
    assert doubts(real, more) == ()
    (said,) = doubts(rng.standard_normal(real.shape) * real.std(), more)
    assert "random noise" in said and "input x" in said
    (said,) = doubts(np.ones_like(real) * rng.standard_normal((32, 1, 1, 1)), more)
    assert "every value of the input x is the same" in said
    (said,) = doubts(np.repeat(real[:1], 32, axis=0), more)
    assert "have an equal input x" in said
    for changed in (real * 255, real / 100, real + 5 * real.std()):
        (said,) = doubts(changed, more)
        assert "prepared in another way" in said
    (said,) = doubts(real, more, np.full(32, 3), np.arange(32) % 4)
    assert "of class 3" in said and "4 classes" in said
    assert doubts(real, more, np.arange(32) % 4, np.arange(32) % 4) == ()


def test_noise_next_to_noise_and_few_samples_are_not_doubted() -> None:
    rng = np.random.default_rng(5)
    noise = [rng.standard_normal((32, 3, 16, 16)) for _ in range(2)]
    assert doubts(*noise) == () and doubts(noise[0][:4], smooth(rng)[:4]) == ()
    features = [rng.standard_normal((32, 40)) for _ in range(2)]
    assert doubts(*features) == ()


@pytest.mark.program
def test_calibration_on_noise_is_the_first_thing_said(tmp_path: Any) -> None:
    ports = [TensorInfo("image", (None, 1, 8, 8), "float32")]
    splits = DigitsDataset().splits(ports, 10, 0)
    parts = (splits.calibrate, splits.search, splits.evaluate)
    arrays = [np.concatenate([b.inputs["image"] for b in part.batches(64)])[:64] for part in parts]
    noise = np.random.default_rng(6).uniform(0, 1, arrays[0].shape).astype(np.float32)
    for calibrate, expected in ((noise, True), (arrays[0], False)):
        sets = quantpipe.SampleSets(calibrate, arrays[2], arrays[1])
        found = quantpipe.quantize(quantpipe.example_model(), sets, folder=tmp_path / str(expected), **QUICK).report
        assert ("random noise" in (found["warnings"] or [""])[0]) == expected
        assert found["enough"] is not None and "calibration samples" in found["enough"]["sentence"]
