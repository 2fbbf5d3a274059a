"""Samples from a folder of sound files: one sub-folder per class, or a flat folder (labels: `data/sources/folder.py`).

A sample is a whole recording, cut or filled up to `length` where that is asked for; or, with `frame`, each of its
frames, which then form a sequence. An optional function makes features of the waveform. Needs `soundfile`, which
`pip install -e ".[audio]"` brings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.data.preprocess import Preprocess
from quantpipe.data.sample_store import SampleCache
from quantpipe.data.source import SINGLE, Hasher, Rows, hash_arrays
from quantpipe.data.sources.folder import FILE_OF_GROUPS, ClassFolder, classes_of
from quantpipe.data.split_options import FileOptions
from quantpipe.data.splits import Splits
from quantpipe.data.user_functions import arrays_of, called, fields_of, rows_of
from quantpipe.errors import ConfigError, DataError, brief
from quantpipe.option_checks import flag, integer
from quantpipe.types import TensorInfo

SUFFIXES = frozenset({".wav", ".flac", ".ogg", ".aif", ".aiff", ".mp3"})
MOST_VALUES = 1 << 26
"""Of one sample, a rate or a step: 256 MB of float32 each."""
CHANNELS = ("mono", "first", "all")
KEY = "dataset.feature"


@dataclass(frozen=True)
class Waveform:
    """Turn a recording into samples. Lengths count values per channel, after resampling.

    `channels`: `mono` (the mean of all), `first`, or `all` (an axis of channels comes before the axis of time).
    """

    sample_rate: int | None = None
    resample: bool = False
    channels: str = "mono"
    length: int | None = None
    frame: int | None = None
    hop: int | None = None
    pad: bool = True

    def __post_init__(self) -> None:
        for name in ("sample_rate", "length", "frame", "hop"):
            value = getattr(self, name)
            if value is not None:
                integer(f"dataset.{name}", value, least=1, also=", or null")
            if value is not None and value > MOST_VALUES:
                raise ConfigError(f"{value} is beyond the legal {MOST_VALUES}.", where=f"dataset.{name}")
        for name in ("resample", "pad"):
            flag(f"dataset.{name}", getattr(self, name))
        if self.channels not in CHANNELS:
            raise ConfigError(f"is {self.channels!r}; legal are {', '.join(CHANNELS)}.", where="dataset.channels")
        if self.length is not None and self.frame is not None:
            raise ConfigError("given together with dataset.frame; give one of them.", where="dataset.length")
        if self.hop is not None and self.frame is None:
            raise ConfigError("steps from frame to frame, but dataset.frame is not set.", where="dataset.hop")
        if self.resample and self.sample_rate is None:
            raise ConfigError("needs dataset.sample_rate, the rate that the model takes.", where="dataset.resample")

    def frames(self, count: int, rate: int) -> int:
        """Return how many samples a recording of `count` values at `rate` Hz gives."""
        if self.frame is None:
            return 1
        count = self.resampled(count, rate)
        hop = self.hop or self.frame
        full = 1 + (count - self.frame) // hop if count >= self.frame else 0
        return full + int(self.pad and (full - 1) * hop + self.frame < count) if full else int(self.pad and count > 0)

    def resampled(self, count: int, rate: int) -> int:
        """Return the length of a recording after resampling."""
        if not self.resample or self.sample_rate is None:
            return count
        ratio = Fraction(self.sample_rate, rate)
        return -(-count * ratio.numerator // ratio.denominator)

    def cut(self, wave: NDArray[np.float32], number: int) -> NDArray[np.float32]:
        """Return one sample of a recording, both `[channels, time]`, cut at its end or padded with zeros there.

        `number` is the number of the frame.
        """
        start = number * (self.hop or self.frame or 0)
        wanted = self.frame or self.length
        if wanted is None:
            return wave
        part = wave[:, start : start + wanted]
        missing = wanted - part.shape[1]
        return np.pad(part, ((0, 0), (0, missing))) if missing and self.pad else part


class SoundSource:
    """The recordings of one folder, or their frames, as float32 in [-1, 1]."""

    cheap = False

    def __init__(
        self,
        folder: Path,
        classes: Mapping[str, int] | None,
        by_csv: bool,
        waveform: Waveform,
        *,
        feature: Callable[..., Any] | None,
        flat: bool,
        groups: str | None = None,
    ) -> None:
        self.where = str(folder)
        self._feature, self._flat = feature, flat
        found = ClassFolder(folder, SUFFIXES, "sound files", classes, by_csv=by_csv, groups=groups)
        self._files, self.class_names = found.files, found.class_names
        self.waveform = self._waveform = waveform if waveform.sample_rate else self._first_rate(waveform)
        counts = [self._frames(path) for path in self._files]
        self._file_of = np.repeat(np.arange(len(counts)), counts)
        first = np.repeat(np.cumsum(counts) - counts, counts)
        self._number_of = np.arange(len(self._file_of)) - first
        self.labels = None if found.labels is None else found.labels[self._file_of]
        self.groups = None if found.groups is None else found.groups[self._file_of]
        self.sequences = self._file_of.astype(np.int64) if waveform.frame is not None else None
        self._latest: tuple[Path, NDArray[np.float32], int] | None = None
        self._made = SampleCache(self._features) if feature is not None else None
        asked = range(len(self)) if self._made is not None else ()
        self.fields = fields_of(partial(self._sample, index) for index in asked)

    def _first_rate(self, waveform: Waveform) -> Waveform:
        """Return the first recording's sample rate, which all must share if no rate is given."""
        for path in self._files:
            try:
                return replace(waveform, sample_rate=int(_soundfile().info(path).samplerate))
            except ConfigError:
                raise
            except Exception:
                continue  # named, or skipped, where it is used
        return waveform

    def _frames(self, path: Path) -> int:
        if self._waveform.frame is None:
            return 1
        try:
            info = _soundfile().info(path)
        except ConfigError:
            raise
        except Exception:
            return 1  # one sample that cannot be read: named, or skipped, where it is used
        return self._waveform.frames(int(info.frames), int(info.samplerate))

    def __len__(self) -> int:
        return len(self._file_of)

    def name(self, index: int) -> str:
        """Return the path of a recording, with the number of the frame where it is cut into frames."""
        path = self._files[self._file_of[index]]
        return str(path) if self._waveform.frame is None else f"frame {self._number_of[index]} of {path}"

    def read(self, indices: NDArray[np.int64]) -> Mapping[str, Rows]:
        """Return the arrays of these recordings or frames, by field.

        Raises DataError where the fields of the feature function differ from the fields of the first recording.
        """
        return rows_of(self, self._sample, indices, key=KEY, one="recording")

    def _sample(self, index: int) -> Mapping[str, NDArray[Any]]:
        return {SINGLE: self._wave(index)[0]} if self._made is None else self._made(index)

    def _wave(self, index: int) -> tuple[NDArray[np.float32], int]:
        """`[time]` or `[channels, time]`, and its rate in Hz."""
        path = self._files[self._file_of[index]]
        if self._latest is None or self._latest[0] != path:
            self._latest = (path, *_decode(path, self._waveform))
        wave = self._waveform.cut(self._latest[1], int(self._number_of[index]))
        return (wave[0] if self._flat else wave), self._latest[2]

    def _features(self, index: int) -> Mapping[str, NDArray[Any]]:
        where = self.name(index)
        return arrays_of(called(self._feature or _none, where, KEY, *self._wave(index)), where)

    def hash_into(self, hasher: Hasher, indices: NDArray[np.int64]) -> None:
        """Include the arrays of these samples in a digest."""
        hash_arrays(hasher, self, indices)


def _none(*_: Any) -> None:
    return None


def _decode(path: Path, waveform: Waveform) -> tuple[NDArray[np.float32], int]:
    """Return one recording, `[channels, time]` float32, and its rate in Hz; DataError names the file."""
    try:
        stored, rate = _soundfile().read(path, dtype="float32", always_2d=True)
    except ConfigError:
        raise
    except Exception as error:  # a decoder may raise anything for a damaged file
        raise DataError(
            f"is not a sound file that can be read ({brief(error)}); repair or remove it, or set "
            "dataset.on_error=skip.",
            stage="data",
            where=str(path),
        ) from error
    wave = np.ascontiguousarray(stored.T)
    if waveform.channels == "first":
        wave = wave[:1]
    elif waveform.channels == "mono" and len(wave) > 1:
        wave = wave.mean(axis=0, keepdims=True, dtype=np.float32)
    if wave.shape[1] == 0:
        raise DataError("holds no sound.", stage="data", where=str(path))
    wanted = waveform.sample_rate or rate
    if rate == wanted:
        return wave, rate
    if not waveform.resample:
        raise DataError(
            f"has {rate} values a second, wanted are {wanted} (dataset.sample_rate; if that is null, the rate of the "
            "first recording); convert it, or set dataset.sample_rate and dataset.resample=true.",
            stage="data",
            where=str(path),
        )
    from scipy.signal import resample_poly

    ratio = Fraction(wanted, rate)
    return resample_poly(wave, ratio.numerator, ratio.denominator, axis=1).astype(np.float32), wanted


def _soundfile() -> Any:
    try:
        import soundfile
    except (ImportError, OSError) as error:  # OSError: the package is there, its library is not
        raise ConfigError(
            f'wav_folder needs the package soundfile ({error}); install it in the checkout: pip install -e ".[audio]"',
            where="dataset",
        ) from error
    return soundfile


@dataclass(frozen=True, eq=False)
class WavFolderDataset(FileOptions):
    """See conf/dataset/wav_folder.yaml for the keys; `feature` is the function itself here."""

    labels: str | None = None
    label_columns: Sequence[str] = ("file", "index")
    sample_rate: int | None = None
    resample: bool = False
    channels: str = "mono"
    length: int | None = None
    frame: int | None = None
    hop: int | None = None
    pad: bool = True
    feature: Callable[..., Any] | None = None
    preprocess: Preprocess | Mapping[str, Any] = field(default_factory=dict)

    legal_groups = FILE_OF_GROUPS

    def splits(self, inputs: Sequence[TensorInfo], outputs_classes: int | None, seed: int) -> Splits:
        """Return the three splits for a model with these inputs.

        Raises DataError where they do not fit, or a file is unusable.
        """
        if self.feature is not None and not callable(self.feature):
            raise ConfigError(f"is {self.feature!r}; it must name a function, package.module:function.", where=KEY)
        waveform = Waveform(**{f.name: getattr(self, f.name) for f in fields(Waveform)})
        paths, needed = self.paths(), self.data_inputs(inputs)
        classes = classes_of(list(paths.values()), self.labels, self.label_columns, outputs_classes)
        rank = len(needed[0].shape) if len(needed) == 1 else 0
        flat = waveform.channels != "all" and (self.feature is not None or rank == 2)
        by_csv = self.labels is not None
        sources = {}
        for role, path in paths.items():
            sources[role] = SoundSource(
                path, classes, by_csv, waveform, feature=self.feature, flat=flat, groups=self.groups
            )
            waveform = sources[role].waveform
        return self.assemble(sources, Preprocess.of(self.preprocess), inputs, outputs_classes, seed=seed)
