"""The options that data sets share, and the way from them to splits. A data set adds what its sources need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

from quantpipe.data.cache_inputs import CACHES, caches_carried, is_cache
from quantpipe.data.divide import ROLES, TRAIN, divide
from quantpipe.data.preprocess import Preprocess
from quantpipe.data.source import Source
from quantpipe.data.splits import Handling, Splits, build, source_paths
from quantpipe.errors import ConfigError, refuse_unknown
from quantpipe.types import TensorInfo


def refuse_unknown_parts(options: object, parts: Mapping[str, Sequence[str]]) -> None:
    """Raise ConfigError for a key that nothing reads, such as `dataset.samples.calibrat`."""
    for name, legal in parts.items():
        given = getattr(options, name)
        if isinstance(given, Mapping):
            refuse_unknown(given, legal, f"dataset.{name}")


def refuse_other_than_sections(options: Any) -> None:
    """Raise ConfigError where a field of a data set that holds a mapping by default was given something else."""
    for known in fields(options):
        value = getattr(options, known.name)
        by_default = known.default_factory is not MISSING and isinstance(known.default_factory(), Mapping)
        if by_default and not isinstance(value, Mapping | Preprocess):
            raise ConfigError(f"is {value!r}; legal is a mapping of options.", where=f"dataset.{known.name}")


@dataclass(frozen=True, eq=False)
class SplitOptions:
    """Hold how samples are divided and taken: the keys of all conf/dataset/*.yaml but digits."""

    search: Mapping[str, Any] = field(default_factory=dict)
    split: Mapping[str, Any] = field(default_factory=dict)
    samples: Mapping[str, Any] = field(default_factory=dict)
    shuffle: bool = False
    on_error: str = "fail"
    state: Mapping[str, str] | str | None = None
    state_reset: str | int = "auto"
    duplicates: str = "drop"
    force_few: bool = False
    doubts: str = "stop"
    groups: str | None = None

    parts: ClassVar[Mapping[str, Sequence[str]]] = {"search": (), "split": ROLES, "samples": (*ROLES, TRAIN)}
    """What may stand in the options that are mappings."""

    def __post_init__(self) -> None:
        refuse_other_than_sections(self)
        refuse_unknown_parts(self, self.parts)
        if self.state not in (None, CACHES) and not isinstance(self.state, Mapping):
            legal = f"null, OUTPUT: INPUT pairs, or {CACHES}"
            raise ConfigError(f"is {self.state!r}; legal is {legal}.", where="dataset.state")

        if self.groups is not None and not isinstance(self.groups, str):
            raise ConfigError(f"is {self.groups!r}; legal is null, or {self.legal_groups}.", where="dataset.groups")

    legal_groups: ClassVar[str] = "the name of a column with one value per sample"

    def handling(self, inputs: Sequence[TensorInfo]) -> Handling:
        """Return how samples for a model with these inputs are divided, limited and checked.

        Raises ConfigError for an option without effect.
        """
        pairs = self.state if isinstance(self.state, Mapping) else caches_carried(inputs) if self.state else {}
        state = {str(k): str(v) for k, v in pairs.items()}
        same = {f.name: getattr(self, f.name) for f in fields(Handling)}
        return Handling(**{**same, "state": state})

    def data_inputs(self, inputs: Sequence[TensorInfo]) -> list[TensorInfo]:
        """Return the model's inputs that the data must feed: all but those that carry state, or may be empty."""
        carried = set(self.handling(inputs).state.values())
        return [i for i in inputs if i.name not in carried and not is_cache(i)]

    def assemble(
        self,
        sources: Mapping[str, Source],
        preprocess: Preprocess,
        inputs: Sequence[TensorInfo],
        classes: int | None,
        *,
        seed: int,
    ) -> Splits:
        """Divide the sources, take the first samples of each split, and check them.

        Sources are given as one or by role; `classes=None`: the number is unknown. Raises DataError where the samples
        do not fit the model.
        """
        handling = self.handling(inputs)
        units = {role: handling.units(source) for role, source in sources.items()}
        parts = divide(sources, self.split, self.search, seed, units=units)
        return build(parts, self.samples, preprocess, inputs, classes=classes, handling=handling, seed=seed)


@dataclass(frozen=True, eq=False)
class FileOptions(SplitOptions):
    """One file or folder to be divided, or one for each split."""

    path: str | None = None
    calibrate: Mapping[str, Any] = field(default_factory=dict)
    evaluate: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)

    parts: ClassVar[Mapping[str, Sequence[str]]] = {
        **SplitOptions.parts,
        "calibrate": ("path",),
        "search": ("path", "share"),
        "evaluate": ("path",),
        "train": ("path",),
    }

    def paths(self) -> dict[str, Path]:
        """Return a mapping: role -> existing file or folder (one under `WHOLE` if it is to be divided)."""
        given = (self.calibrate, self.search, self.evaluate, self.train)
        return source_paths(self.path, dict(zip((*ROLES, TRAIN), given, strict=True)))
