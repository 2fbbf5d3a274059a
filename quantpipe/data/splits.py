"""Make the three splits of a run of parts of sources, fitted to the model and checked as far as that is cheap."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.data.divide import ROLES, TRAIN, WHOLE, SamplePart
from quantpipe.data.duplicates import NONE_SHARED, Contents, Shared, fingerprints, say, sequence_contents, unshared
from quantpipe.data.input_checks import Feed, route
from quantpipe.data.labels import check_labels
from quantpipe.data.preprocess import Preprocess
from quantpipe.data.samples import Skipped, SourceSamples
from quantpipe.data.source import Source
from quantpipe.errors import ConfigError, DataError, nearest
from quantpipe.option_checks import flag, is_integer, one_of
from quantpipe.types import Samples, TensorInfo

log = logging.getLogger(__name__)

DEFAULT_SAMPLES: Mapping[str, Any] = {"calibrate": 128, "search": 128, "evaluate": None}
ON_ERROR = ("fail", "skip")
RESETS = ("auto", "never")
DUPLICATES = ("drop", "allow")
DOUBTS = ("stop", "go_on")
CHECK_BYTES = 32 << 20  # of samples in memory at once while they are checked
NAMED = 3  # samples that were left out which a warning names


@dataclass(frozen=True, eq=False)
class Splits:
    """Hold the sample lists of a run; no sample is in two of them.

    `state` maps outputs to the inputs that they are fed back to within a sequence; a data set leaves those inputs out
    of the batches (`data/recurrent_state.py` adds them). `aside`: search samples that are held out, to judge
    (`data/holdout.py`). `train`: samples to train on, None for the calibration samples. `duplicates`, `force_few`,
    `doubts`: the user's exceptions (`Handling`). `notes`: what the data set decided by itself.
    """

    calibrate: Samples
    search: Samples
    evaluate: Samples
    state: Mapping[str, str] = field(default_factory=dict)
    aside: Samples | None = None
    train: Samples | None = None
    duplicates: str = "drop"
    force_few: bool = False
    doubts: str = "stop"
    notes: tuple[str, ...] = ()

    @property
    def roles(self) -> dict[str, Samples]:
        """Return the sample lists by name; `judge` and `train` where there are such."""
        further = {"judge": self.aside, TRAIN: self.train}
        known = {role: samples for role, samples in further.items() if samples is not None}
        return {role: getattr(self, role) for role in ROLES} | known

    def with_roles(self, roles: Mapping[str, Samples]) -> Splits:
        """Return other sample lists in the same places."""
        calibrate, search, evaluate = (roles[role] for role in ROLES)
        aside, train = roles.get("judge"), roles.get(TRAIN)
        return replace(self, calibrate=calibrate, search=search, evaluate=evaluate, aside=aside, train=train)


@dataclass(frozen=True)
class Handling:
    """Hold the handling that all data sets share.

    `shuffle`: the order in which samples are taken, by the run's seed. `on_error`: `fail`, or `skip` samples that
    cannot be used. `state`: output -> input, carried within a sequence. `state_reset`: where a sequence begins: `auto`
    (as the source says), `never` (a source is one sequence), or every so many samples. `duplicates`: `drop` from the
    fitting side what another split holds, too, or `allow` it. `force_few`: go on with fewer samples than are enough.
    `doubts`: `stop` where the float model guesses and its inputs are far outside, or `go_on`.
    """

    shuffle: bool = False
    on_error: str = "fail"
    state: Mapping[str, str] = field(default_factory=dict)
    state_reset: str | int = "auto"
    duplicates: str = "drop"
    force_few: bool = False
    doubts: str = "stop"

    def __post_init__(self) -> None:
        for name in ("shuffle", "force_few"):
            flag(f"dataset.{name}", getattr(self, name))
        one_of("dataset.duplicates", self.duplicates, DUPLICATES)
        one_of("dataset.doubts", self.doubts, DOUBTS)
        one_of("dataset.on_error", self.on_error, ON_ERROR)
        reset = self.state_reset
        if reset not in RESETS and not is_integer(reset, 1):
            raise ConfigError(
                f"is {reset!r}; legal are auto (where the data begin a sequence), never, or a number of samples.",
                where="dataset.state_reset",
            )
        if len(set(self.state.values())) != len(self.state):
            raise ConfigError("feeds two outputs into one input; each input takes one.", where="dataset.state")

    def check_state(self, inputs: Sequence[TensorInfo]) -> None:
        """Raise ConfigError where a state goes into an input that the model has not."""
        names = [i.name for i in inputs]
        for output, name in self.state.items():
            if name not in names:
                raise ConfigError(
                    f"feeds {output!r} into {name!r}, which is no input of the model{nearest(name, names)}; its "
                    f"inputs are {', '.join(names)}.",
                    where="dataset.state",
                )

    def units(self, source: Source) -> NDArray[np.int64] | None:
        """Return the units that must stay together when samples are divided and shuffled; None: every sample alone."""
        if not self.state:
            return source.sequences
        if isinstance(self.state_reset, int):
            return np.arange(len(source), dtype=np.int64) // self.state_reset
        if self.state_reset == "never":
            return np.zeros(len(source), dtype=np.int64)
        if source.sequences is None:
            raise ConfigError(
                f"is auto, but {source.where} does not say where a sequence begins; give the number of samples of a "
                "sequence, or never for a source that is one sequence (docs/data.md).",
                where="dataset.state_reset",
            )
        return source.sequences


def source_paths(path: Any, roles: Mapping[str, Mapping[str, Any]]) -> dict[str, Path]:
    """Return the sources given: `{"whole": …}`, or calibrate, evaluate and perhaps search.

    ConfigError for contradictions; DataError for what does not exist, or where two sources share samples.
    """
    given = {role: Path(str(part["path"])).expanduser() for role, part in roles.items() if part.get("path")}
    if path and given.keys() - {TRAIN}:
        raise ConfigError(
            f"given together with {', '.join(f'dataset.{r}.path' for r in given)}; give one source to be divided, or "
            "one for each split.",
            where="dataset.path",
        )
    if path:
        given[WHOLE] = Path(str(path)).expanduser()
    elif missing := [role for role in ("calibrate", "evaluate") if role not in given]:
        raise ConfigError(
            f"dataset.{missing[0]}.path is not set. Set dataset.path to one source, which is then divided; or both "
            "dataset.calibrate.path and dataset.evaluate.path (dataset.search.path is optional)."
        )
    for role, place in given.items():
        if not place.exists():
            key = "dataset.path" if role == WHOLE else f"dataset.{role}.path"
            raise DataError(f"no such file or folder (from {key}).", stage="data", where=str(place))
    _refuse_shared(given)
    return given


def _refuse_shared(paths: Mapping[str, Path]) -> None:
    """Reject sources that are, or are inside, another: one sample must not serve two splits."""
    real = [(role, path.resolve()) for role, path in paths.items()]
    for i, (role, path) in enumerate(real):
        for other, place in real[:i]:
            if path.samefile(place) or path.is_relative_to(place) or place.is_relative_to(path):
                if TRAIN in (role, other) and {role, other} & {WHOLE, "calibrate"}:
                    raise DataError(
                        "dataset.train.path is, or holds, what is divided or calibrated on. Training takes samples of "
                        "the calibrate part where dataset.train.path is null; dataset.samples.train is their number.",
                        stage="data",
                        where=str(path),
                    )
                raise DataError(
                    f"dataset.{other}.path and dataset.{role}.path share samples, so the result would be judged on its "
                    "tuning samples. Give separate sources, or one as dataset.path to have it divided.",
                    stage="data",
                    where=str(path),
                )


def build(
    parts: Mapping[str, SamplePart],
    limits: Mapping[str, Any],
    preprocess: Preprocess,
    inputs: Sequence[TensorInfo],
    *,
    classes: int | None,
    handling: Handling | None = None,
    seed: int = 0,
) -> Splits:
    """Return the splits, cut to the first `limits[role]` samples.

    Labels, and samples that are cheap to read, are checked before; `classes=None`: the number of classes is unknown.
    Raises DataError where the samples do not fit the model.
    """
    handling = handling or Handling()
    handling.check_state(inputs)
    for source in {id(part.source): part.source for part in parts.values()}.values():
        if source.labels is not None:
            check_labels(source.labels, classes, source.where)
    samples: dict[str, SourceSamples] = {}
    taken = np.empty(0, np.uint64)
    wanted = [*([TRAIN] if TRAIN in parts or limits.get(TRAIN) is not None else []), *ROLES]
    for role in reversed(wanted):  # what judges comes first: what fits must not hold the same
        place = ROLES.index(role) if role in ROLES else 0
        part = parts.get(role, parts[ROLES[0]])
        feeds = route(inputs, part.source, preprocess, list(handling.state.values()))
        if handling.shuffle:
            part = part.shuffled(np.random.default_rng([seed, place]))
        limit = _limit(role, {**DEFAULT_SAMPLES, **limits}.get(role))
        contents = _contents(part, handling)
        part, shared = _without_shared(role, part, contents, taken, limit=limit, handling=handling)
        samples[role] = _samples(role, part, limit, feeds, handling=handling, shared=shared)
        if handling.duplicates == "drop" and role in ROLES[1:]:
            taken = np.concatenate([taken, contents(samples[role].indices)])
    calibrate, search, evaluate = (samples[role] for role in ROLES)
    return Splits(
        calibrate,
        search,
        evaluate,
        state=dict(handling.state),
        train=samples.get(TRAIN),
        duplicates=handling.duplicates,
        force_few=handling.force_few,
        doubts=handling.doubts,
    )


def _contents(part: SamplePart, handling: Handling) -> Contents:
    """Return the compared contents: samples, or whole sequences for carried states, which depend on earlier samples."""
    if not handling.state or part.units is None or handling.duplicates == "allow":
        return partial(fingerprints, part.source)
    return sequence_contents(part.source, part.indices, part.units)


def _without_shared(
    role: str, part: SamplePart, contents: Contents, taken: NDArray[np.uint64], *, limit: int | None, handling: Handling
) -> tuple[SamplePart, Shared]:
    """Return the samples of a part that no split holds whose digests are `taken`, enough of them for its limit."""
    if not len(taken):
        return part, NONE_SHARED
    enough = None if handling.on_error == "skip" else limit  # of those some may have to be left out, too
    kept, shared = unshared(part.source, part.indices, contents, taken, limit=enough)
    judging = ROLES[ROLES.index(role) + 1 :] if role in ROLES else ROLES[1:]
    say(role, len(kept), shared, judging, where=part.source.where)
    return replace(part, indices=kept), shared


def _limit(role: str, limit: Any) -> int | None:
    if limit is None or is_integer(limit, 1):
        return limit
    raise ConfigError(f"{limit!r} must be null (all) or an integer above 0.", where=f"dataset.samples.{role}")


def _samples(
    role: str, part: SamplePart, limit: int | None, feeds: Sequence[Feed], *, handling: Handling, shared: Shared
) -> SourceSamples:
    units = part.units if handling.state else None
    samples = SourceSamples(part.source, part.indices[:limit], feeds, units, shared=shared)
    if handling.on_error == "skip":
        kept, skipped = _usable(SourceSamples(part.source, part.indices, feeds), limit)
        samples = SourceSamples(part.source, kept, feeds, units, skipped=skipped, shared=shared)
        _warn(role, samples, skipped)
    else:
        one = samples.values(samples.indices[:1])
        for _ in samples.batches(_rows(one)) if part.source.cheap else ():
            pass
    log.info("%s: %d of %d samples of %s", role, len(samples), len(part.indices), part.source.where)
    return samples


def _rows(one: Mapping[str, NDArray[Any]]) -> int:
    """Return how many samples like this one are checked at once; one where an input has no axis for samples."""
    if any(np.ndim(array) and len(array) != 1 for array in one.values()):
        return 1
    return max(1, CHECK_BYTES // max(1, sum(array.nbytes for array in one.values())))


def _usable(samples: SourceSamples, limit: int | None) -> tuple[NDArray[np.int64], list[Skipped]]:
    """Return the first `limit` samples that can be read and fitted, and those that were met on the way and cannot.

    All are read here once, before anything depends on which they are.
    """
    kept: list[int] = []
    skipped: list[Skipped] = []
    first: DataError | None = None
    for index in samples.indices:
        if len(kept) == limit:
            break
        try:
            samples.values(np.array([index], dtype=np.int64))
        except DataError as error:
            first = first or error
            skipped.append(Skipped(int(index), samples.source.name(int(index)), str(error)))
        else:
            kept.append(int(index))
    if not kept and first is not None:
        raise DataError(f"none of {len(skipped)} samples can be used; the first: {first}", stage="data")
    return np.array(kept, dtype=np.int64), skipped


def _warn(role: str, samples: SourceSamples, skipped: Sequence[Skipped]) -> None:
    if skipped:
        names = ", ".join(s.name for s in skipped[:NAMED]) + (", …" if len(skipped) > NAMED else "")
        log.warning(
            "%s: %d of %d samples cannot be used and are left out (dataset.on_error=skip): %s; the first because %s",
            role,
            len(skipped),
            len(skipped) + len(samples),
            names,
            skipped[0].reason,
        )
