"""trials.jsonl: the append-only memory of a search, one JSON object a line, that survives a kill at any moment.

The first line carries the origin. A last line without its newline is what a kill in the middle of a write leaves:
it is ignored when read and cut off before the next append. Any other damage is refused, not repaired.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from quantpipe.errors import ArtifactError, StorageError
from quantpipe.types import ChoiceSpace, Score, Trial

FORMAT = "quantpipe.trials"
VERSION = 1


class TrialLog(Protocol):
    """What an evaluator needs of a log."""

    def read(self) -> list[Trial]:
        """All trials of earlier runs, in their order."""
        ...

    def append(self, trial: Trial) -> None:
        """Keep the trial for good: it is safe when this returns."""
        ...


class JsonlLog:
    """The log as a file. A file of another `origin` is refused with ArtifactError, on reading and on appending.

    With `space` each line also names the chosen options, for readers other than this program.
    """

    def __init__(self, path: str | os.PathLike[str], origin: Mapping[str, str], space: ChoiceSpace | None = None):
        self.path = Path(path)
        self.origin = dict(origin)
        self.space = space
        self._ready = False

    def read(self) -> list[Trial]:
        return self._parse()[0]

    def append(self, trial: Trial) -> None:
        if not self._ready:
            self._prepare()
        self._write(_line(trial, self.space))

    def _prepare(self) -> None:
        """Cut off a torn line, or begin the file."""
        _, intact = self._parse()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists():
                os.truncate(self.path, intact)
        except OSError as error:
            raise StorageError(str(error), stage="search", where=str(self.path)) from error
        if intact == 0:
            self._write({"format": FORMAT, "version": VERSION, "origin": self.origin})
        self._ready = True

    def _write(self, content: dict[str, Any]) -> None:
        line = json.dumps(content, allow_nan=False).encode() + b"\n"
        try:
            # Unbuffered and in one call, so that no exception from a signal leaves half a line in a buffer.
            with self.path.open("ab", buffering=0) as file:
                if file.write(line) != len(line):
                    self._ready = False
                    raise OSError("the line was not written whole (disk full?)")
                os.fsync(file.fileno())
        except OSError as error:
            raise StorageError(str(error), stage="search", where=str(self.path)) from error

    def _parse(self) -> tuple[list[Trial], int]:
        """The trials, and how many bytes of the file are whole lines."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return [], 0
        except OSError as error:
            raise ArtifactError(f"cannot be read: {error}", stage="search", where=str(self.path)) from error
        whole = content[: content.rfind(b"\n") + 1]
        lines = whole.splitlines()
        if not lines:
            return [], 0
        self._check_header(lines[0])
        return [self._trial(line, number) for number, line in enumerate(lines[1:], start=2)], len(whole)

    def _check_header(self, line: bytes) -> None:
        try:
            header = json.loads(line)
            known = header["format"] == FORMAT and header["version"] == VERSION
            origin = dict(header["origin"])
        except (ValueError, LookupError, TypeError, RecursionError):
            known, origin = False, {}
        if not known:
            raise ArtifactError(
                f"is no trial log of this program (the first line must be a header of format {FORMAT!r}, "
                f"version {VERSION}); give another folder or move the file away",
                stage="search",
                where=str(self.path),
            )
        differing = [k for k in {**self.origin, **origin} if self.origin.get(k) != origin.get(k)]
        if differing:
            what = "; ".join(f"{k}: {origin.get(k)!r} there, {self.origin.get(k)!r} here" for k in differing)
            raise ArtifactError(
                f"belongs to another search ({what}); resume with the same inputs, or give another folder",
                stage="search",
                where=str(self.path),
            )

    def _trial(self, line: bytes, number: int) -> Trial:
        try:
            return _trial(json.loads(line))
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            raise ArtifactError(
                f"line {number} is damaged ({error!r}); delete the line and its trial is measured again",
                stage="search",
                where=str(self.path),
            ) from error


@dataclass(frozen=True)
class LoggedTrial:
    """A line of a log with the options it names, and the origin of the log."""

    origin: Mapping[str, str]
    choices: Mapping[str, int]
    trial: Trial


def find_trial(path: Path, number: int) -> LoggedTrial:
    """The trial of this number in a log of any origin. Raises ArtifactError where there is none."""
    try:
        lines = path.read_bytes().splitlines()
        header = json.loads(lines[0])
        if header["format"] != FORMAT or header["version"] != VERSION:
            raise ValueError("another format")
        origin = dict(header["origin"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise ArtifactError(f"is no trial log of this program: {error}", stage="replay", where=str(path)) from error
    found = []
    for line in lines[1:]:
        try:
            fields = json.loads(line)
            if not isinstance(fields["number"], int):
                continue
            found.append(fields["number"])
            if fields["number"] == number:
                return LoggedTrial(origin, dict(fields["choices"]), _trial(fields))
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
            continue  # a torn last line; what is asked for is looked for in the others
    raise ArtifactError(
        f"holds no trial {number}; it has {f'{min(found)} to {max(found)}' if found else 'none'}",
        stage="replay",
        where=str(path),
    )


def _trial(fields: Mapping[str, Any]) -> Trial:
    metrics = tuple((name, float(value)) for name, value in fields["metrics"].items())
    score = Score(float(fields["value"]), float(fields["cost"]), metrics, bool(fields.get("pruned", False)))
    point = tuple(int(i) for i in fields["point"])
    return Trial(int(fields["number"]), point, score, float(fields["seconds"]))


def _line(trial: Trial, space: ChoiceSpace | None) -> dict[str, Any]:
    return {
        "number": trial.number,
        "point": list(trial.point),
        **({} if space is None else {"choices": space.decode(trial.point)}),
        "value": _number(trial.score.value),
        "cost": _number(trial.score.cost),
        "metrics": {name: _number(value) for name, value in trial.score.metrics},
        **({"pruned": True} if trial.score.pruned else {}),
        "seconds": _number(trial.seconds),
    }


def _number(x: float) -> float | str:
    """JSON has no NaN and no infinity: they become text that `float` reads back, so that a resumed run is exact."""
    return float(x) if math.isfinite(x) else str(float(x))
