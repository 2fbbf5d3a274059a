"""Sound files: channels, rates, lengths, frames, features, damage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from scipy.signal import resample_poly

from quantpipe.data import WavFolderDataset
from quantpipe.errors import ConfigError, DataError, QuantpipeError
from quantpipe.types import TensorInfo
from tests.data.helpers import assert_disjoint, labels_of

FLAT = [TensorInfo("wave", (None, None), "float32")]
CHANNELS = [TensorInfo("wave", (None, None, None), "float32")]
ALL = {"calibrate": None, "search": None, "evaluate": None}


def sound(number: int, length: int, channels: int = 1) -> np.ndarray:
    return (0.5 * np.random.default_rng(number).uniform(-1, 1, (length, channels))).astype(np.float32)


def write(folder: Path, lengths: list[int], rate: int = 8000, channels: int = 1) -> str:
    """Two classes, in turn; float files, so that nothing is rounded."""
    for number, length in enumerate(lengths):
        place = folder / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        soundfile.write(place / f"{number:02}.wav", sound(number, length, channels), rate, subtype="FLOAT")
    return str(folder)


def waves(splits: Any) -> dict[int, np.ndarray]:
    """Position in the source -> sample."""
    found = {}
    for samples in (splits.calibrate, splits.search, splits.evaluate):
        for batch in samples.batches(4):
            found |= dict(zip(batch.indices.tolist(), batch.inputs["wave"], strict=True))
    return found


def test_recordings_as_they_are(tmp_path: Path) -> None:
    lengths = [40 + 3 * (i % 4) for i in range(16)]
    path = write(tmp_path, lengths)
    splits = WavFolderDataset(path=path, samples=ALL).splits(FLAT, 2, 0)
    assert_disjoint(splits)
    for index, wave in waves(splits).items():
        np.testing.assert_array_equal(wave, sound(index, lengths[index])[:, 0])
    assert labels_of(splits.evaluate) == [i % 2 for i in splits.evaluate.indices]
    for batch in splits.evaluate.batches(8):
        assert len({len(row) for row in batch.inputs["wave"]}) == 1


@pytest.mark.parametrize(
    ("channels", "port", "expected"),
    [
        ("mono", FLAT, lambda x: x.mean(axis=1)),
        ("mono", CHANNELS, lambda x: x.mean(axis=1)[None]),
        ("first", CHANNELS, lambda x: x[:, :1].T),
        ("all", CHANNELS, lambda x: x.T),
    ],
)
def test_channels(tmp_path: Path, channels: str, port: Any, expected: Any) -> None:
    splits = WavFolderDataset(path=write(tmp_path, [30] * 8, channels=2), channels=channels, samples=ALL).splits(
        port, 2, 0
    )
    for index, wave in waves(splits).items():
        np.testing.assert_allclose(wave, expected(sound(index, 30, 2)), atol=1e-7)


def test_length(tmp_path: Path) -> None:
    path = write(tmp_path, [30, 50] * 4)
    for index, wave in waves(WavFolderDataset(path=path, length=40, samples=ALL).splits(FLAT, 2, 0)).items():
        expected = np.zeros(40, np.float32)
        expected[: [30, 40][index % 2]] = sound(index, [30, 50][index % 2])[:40, 0]
        np.testing.assert_array_equal(wave, expected)
    short = waves(WavFolderDataset(path=path, length=40, pad=False, samples=ALL).splits(FLAT, 2, 0))
    assert {len(wave) for wave in short.values()} == {30, 40}


def test_resampling_only_on_request(tmp_path: Path) -> None:
    path = write(tmp_path, [160] * 8, rate=16000)
    with pytest.raises(DataError, match=r"has 16000 values a second, wanted are 8000"):
        WavFolderDataset(path=path, sample_rate=8000).splits(FLAT, 2, 0)
    splits = WavFolderDataset(path=path, sample_rate=8000, resample=True, samples=ALL).splits(FLAT, 2, 0)
    for index, wave in waves(splits).items():
        np.testing.assert_allclose(wave, resample_poly(sound(index, 160)[:, 0], 1, 2), atol=1e-6)


def test_one_rate_for_all(tmp_path: Path) -> None:
    path = write(tmp_path, [40] * 8)
    soundfile.write(tmp_path / "b" / "99.wav", sound(99, 40), 16000)
    with pytest.raises(DataError, match=r"99\.wav: has 16000 values a second, wanted are 8000"):
        waves(WavFolderDataset(path=path, samples=ALL).splits(FLAT, 2, 0))


@pytest.mark.parametrize(("hop", "pad", "counts"), [(None, True, (4, 3)), (None, False, (3, 3)), (5, False, (6, 5))])
def test_frames_are_a_sequence_that_stays_whole(
    tmp_path: Path, hop: int | None, pad: bool, counts: tuple[int, int]
) -> None:
    lengths = [35, 30] * 4
    path = write(tmp_path, lengths)
    splits = WavFolderDataset(path=path, frame=10, hop=hop, pad=pad, samples=ALL).splits(FLAT, 2, 0)
    found = waves(splits)
    order = sorted(range(8), key=lambda i: (i // 2, i % 2))
    expected = []
    for number in order:
        wave = np.concatenate([sound(number, lengths[number])[:, 0], np.zeros(10, np.float32)])
        expected += [wave[k * (hop or 10) :][:10] for k in range(counts[number % 2])]
    assert len(found) == len(expected) == 4 * sum(counts)
    for index, frame in enumerate(expected):
        np.testing.assert_array_equal(found[index], frame)
    file_of = np.repeat(order, [counts[i % 2] for i in order])
    parts = [set(file_of[s.indices]) for s in (splits.calibrate, splits.search, splits.evaluate)]
    assert not parts[0] & parts[1] and not parts[0] & parts[2] and not parts[1] & parts[2]


def test_features(tmp_path: Path) -> None:
    calls = []

    def spectrum(wave: np.ndarray, rate: int) -> dict[str, Any]:
        calls.append(rate)
        return {"wave": np.abs(np.fft.rfft(wave)), "rate": np.array(rate / 8000)}

    ports = [*FLAT, TensorInfo("rate", (None,), "float32")]
    splits = WavFolderDataset(path=write(tmp_path, [32] * 8), feature=spectrum, samples=ALL).splits(ports, 2, 0)
    for index, wave in waves(splits).items():
        np.testing.assert_allclose(wave, np.abs(np.fft.rfft(sound(index, 32)[:, 0])), rtol=1e-5)
    waves(splits)
    assert calls == [8000] * 8  # each recording once, however often it is read


def test_labels_by_file(tmp_path: Path) -> None:
    path = write(tmp_path / "d", [20] * 8)
    (tmp_path / "l.csv").write_text("file,index\na,1\nb,0\n")
    splits = WavFolderDataset(path=path, labels=str(tmp_path / "l.csv"), samples=ALL).splits(FLAT, 2, 0)
    assert labels_of(splits.evaluate) == [1 - i % 2 for i in splits.evaluate.indices]


def test_broken_files_are_named_or_skipped(tmp_path: Path) -> None:
    path = write(tmp_path, [20] * 12)
    (tmp_path / "a" / "04.wav").write_text("no sound")
    with pytest.raises(DataError, match=r"04\.wav: is not a sound file"):
        waves(WavFolderDataset(path=path, samples=ALL).splits(FLAT, 2, 0))
    splits = WavFolderDataset(path=path, samples=ALL, on_error="skip").splits(FLAT, 2, 0)
    found = waves(splits)
    assert set(found) == set(range(12)) - {4}
    for index, wave in found.items():
        np.testing.assert_array_equal(wave, sound(index, 20)[:, 0])
    assert labels_of(splits.evaluate) == [i % 2 for i in splits.evaluate.indices]


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"length": 10, "frame": 10}, r"dataset\.length: given together"),
        ({"hop": 10}, r"dataset\.hop: .*dataset\.frame is not set"),
        ({"resample": True}, r"dataset\.resample: needs dataset\.sample_rate"),
        ({"channels": "left"}, r"dataset\.channels: is 'left'"),
        ({"length": 0}, r"dataset\.length"),
        ({"feature": "a:b"}, r"dataset\.feature"),
        ({"on_error": "ignore"}, r"dataset\.on_error: is 'ignore'; legal are fail, skip"),
        ({"shuffle": 1}, r"dataset\.shuffle"),
    ],
)
def test_refused(tmp_path: Path, config: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        WavFolderDataset(path=write(tmp_path, [20] * 8), **config).splits(FLAT, 2, 0)


def test_without_soundfile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, [20] * 8)
    monkeypatch.setitem(__import__("sys").modules, "soundfile", None)
    with pytest.raises(QuantpipeError, match=r'pip install -e "\.\[audio\]"'):
        WavFolderDataset(path=path).splits(FLAT, 2, 0)
