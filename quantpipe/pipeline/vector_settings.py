"""Settings of commands on finished runs: the runs, the dump, the vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from quantpipe.errors import ConfigError
from quantpipe.option_checks import flag, integer

OF_RUNS = ("compare", "sync", "export_vectors", "identify")
"""Commands that take runs=[…]."""
OF_DUMPS = ("compare", "identify")
"""Commands that take dump=…."""


@dataclass(frozen=True)
class VectorSettings:
    """State which vectors are exported.

    `samples`: how many of the evaluate split. `hex_samples`: how many of them are in hex files, too. `probes`: whether
    op-level probes are written.
    """

    samples: int = 4
    hex_samples: int = 1
    probes: bool = True

    def __post_init__(self) -> None:
        integer("vectors.samples", self.samples, least=1)
        integer("vectors.hex_samples", self.hex_samples, least=0)
        flag("vectors.probes", self.probes)


@dataclass(frozen=True)
class TimesSettings:
    """State the measured layer times of `command=identify`.

    `times`: a CSV file, or `here` to measure with onnxruntime's profiler; None to identify by dumps. `repeats`: runs
    that are measured here.
    """

    times: str | None = None
    repeats: int = 50

    def __post_init__(self) -> None:
        if self.times is not None and not (isinstance(self.times, str) and self.times):
            raise ConfigError(f"is {self.times!r}; legal are null, here, or a CSV file", where="identify.times")
        integer("identify.repeats", self.repeats, least=5)


OF_FINISHED_RUNS = {"vectors": VectorSettings, "identify": TimesSettings}
"""Sections of the configuration for commands on finished runs, and the types of their settings."""


def refuse_runs(command: str, runs: Sequence[str], dump: Path | None, times: str | None = None) -> None:
    """Raise ConfigError where a command has not the runs, or not the dump, that it needs."""
    if command in OF_RUNS and not runs:
        raise ConfigError(
            f"command={command} needs runs=[A,B,…]: folders of runs or of a sweep"
            + (", or run ids of MLflow" if command == "compare" else ""),
            where="runs",
        )
    fits = command == "identify" and times is not None
    if fits and dump is not None:
        raise ConfigError("is given together with identify.times; give one of them", where="dump")
    single = (
        command == "export_vectors"
        or (command == "identify" and not fits)
        or (command == "compare" and dump is not None)
    )
    if single and len(runs) != 1:
        raise ConfigError(
            f"names {len(runs)} runs; legal is the folder of one finished run, runs=[FOLDER]", where="runs"
        )
    if command == "identify" and dump is None and not fits:
        raise ConfigError(
            "command=identify needs dump=FOLDER, what a device gave of the probes, or identify.times=FILE.csv, what "
            "its layers took",
            where="dump",
        )
