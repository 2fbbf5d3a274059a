"""trials.jsonl: the append-only memory of a search, one JSON object a line, that survives a kill at any moment.

The first line carries the origin, and every line the digest of its content. A line that does not fit its digest, or a
last line without its newline (what a kill in the middle of a write leaves), is dropped with a warning: its trial is
measured again and has its number again. A damaged header is written again where the lines show whose they are: their
digests include the origin. Logs of earlier versions have no digests; their lines are believed where they can be read.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from quantpipe.errors import ArtifactError, StorageError
from quantpipe.types import ChoiceSpace, Score, Trial

FORMAT = "quantpipe.trials"
VERSION = 1
DIGEST = "digest"
TEMP_SUFFIX = ".quantpipe-tmp"
"""Of a log that is being written again; what a kill leaves of it goes with the next run in the folder."""


class TrialLog(Protocol):
    """What an evaluator needs of a log."""

    def read(self) -> list[Trial]:
        """Return all trials of earlier runs, by their number."""

    def append(self, trial: Trial) -> None:
        """Keep the trial for good: it is safe when this returns."""


class _DamagedLine(ValueError):
    """A line that is not what was written."""


@dataclass
class _Parsed:
    """Hold a log as it was found.

    `kept`: its good lines. `header`: whether the first is one of them, so that it can stay (None: there is no file yet,
    or an empty one). `intact`: whether nothing has to be dropped.
    """

    trials: list[Trial] = field(default_factory=list)
    kept: list[bytes] = field(default_factory=list)
    header: bool | None = None
    intact: bool = True


class JsonlLog:
    """The log as a file. A file of another `origin` is rejected with ArtifactError, on reading and on appending.

    With `space` each line also names the chosen options, for readers other than this program. `warn` is told what is
    dropped, once.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        origin: Mapping[str, str],
        space: ChoiceSpace | None = None,
        warn: Callable[[str], None] = lambda text: None,
    ):
        self.path = Path(path)
        self.origin = dict(origin)
        self.space = space
        self._warn, self._said = warn, False
        self._ready = False

    def read(self) -> list[Trial]:
        """Return the trials of the log, in the order of their numbers."""
        return sorted(self._parse().trials, key=lambda trial: trial.number)

    def append(self, trial: Trial) -> None:
        """Write one trial at the end of the log."""
        if not self._ready:
            self._prepare()
        self._write(_sealed(_line(trial, self.space), self.origin))

    def mend(self) -> None:
        """Write the log again without what is damaged in it; nothing where it is whole."""
        found = self._parse()
        if not found.intact:
            header = [] if found.header else [_encoded(_header(self.origin))]
            self._replace(b"".join([*header, *found.kept]))

    def _prepare(self) -> None:
        """Drop what is damaged, or begin the file."""
        self.mend()
        if self._parse().header is None:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise StorageError(str(error), stage="search", where=str(self.path)) from error
            self._write(_header(self.origin))
        self._ready = True

    def _write(self, content: dict[str, Any]) -> None:
        line = _encoded(content)
        try:
            # Unbuffered and in one call, so that no exception from a signal leaves half a line in a buffer.
            with self.path.open("ab", buffering=0) as file:
                if file.write(line) != len(line):
                    self._ready = False
                    raise OSError("the line was not written whole (disk full?)")
                os.fsync(file.fileno())
        except OSError as error:
            self._ready = False
            raise StorageError(str(error), stage="search", where=str(self.path)) from error

    def _replace(self, content: bytes) -> None:
        """The whole file at once."""
        temp = self.path.with_name(f".{self.path.name}.{os.getpid()}{TEMP_SUFFIX}")
        try:
            with temp.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temp.replace(self.path)
        except OSError as error:
            temp.unlink(missing_ok=True)
            raise StorageError(str(error), stage="search", where=str(self.path)) from error

    def _parse(self) -> _Parsed:
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return _Parsed()
        except OSError as error:
            raise ArtifactError(f"cannot be read: {error}", stage="search", where=str(self.path)) from error
        lines = content.splitlines(keepends=True)
        if not lines:
            return _Parsed()
        torn = 0 if content.endswith(b"\n") else 1
        whole = lines[: len(lines) - torn]
        if not whole:  # a kill in the middle of the header
            return self._nothing_but(lines[0])
        return self._sorted_out(whole, torn)

    def _nothing_but(self, torn: bytes) -> _Parsed:
        unsealed = {key: value for key, value in _header(self.origin).items() if key != DIGEST}
        if not any(_encoded(header).startswith(torn) for header in (_header(self.origin), unsealed)):
            raise self._foreign()
        return _Parsed(header=False, intact=False)

    def _sorted_out(self, lines: list[bytes], torn: int) -> _Parsed:
        """The valid part of whole lines."""
        header = self._own_header(lines[0])
        found = _Parsed(header=header is not None, kept=[] if header is None else [lines[0]])
        damaged = []
        for number, line in enumerate(lines[1:], start=2):
            try:
                found.trials.append(_read_line(line, self.origin, sealed=header is None or DIGEST in header))
                found.kept.append(line)
            except _DamagedLine as error:
                damaged.append((number, str(error)))
        if header is None and not found.trials:
            raise self._foreign()
        found.intact = header is not None and not damaged and not torn
        self._say(header is None, damaged, torn)
        return found

    def _say(self, header: bool, damaged: list[tuple[int, str]], torn: int) -> None:
        said = [] if not header else ["its first line does not fit its digest and is written again"]
        if damaged:
            lines = ", ".join(str(number) for number, _ in damaged[:5]) + (", …" if len(damaged) > 5 else "")
            said.append(f"line {lines} is damaged ({damaged[0][1]}): dropped, what it held is measured again")
        if torn:
            said.append("its last line is not whole, as a kill leaves it: dropped, what it held is measured again")
        if said and not self._said:
            self._said = True
            self._warn(f"{self.path}: {'; '.join(said)}")

    def _own_header(self, line: bytes) -> dict[str, Any] | None:
        """The first line, where it is one of this search; None where it is damaged. ArtifactError for another's."""
        try:
            header = json.loads(line)
            if header["format"] != FORMAT or header["version"] != VERSION:
                return None
            origin = dict(header["origin"])
            if DIGEST in header and header != _header(origin):
                return None
            if unknown := header.keys() - {"format", "version", "origin", DIGEST}:
                raise ValueError(unknown)
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
            return None
        differing = [k for k in {**self.origin, **origin} if self.origin.get(k) != origin.get(k)]
        if differing:
            what = "; ".join(f"{k}: {origin.get(k)!r} there, {self.origin.get(k)!r} here" for k in differing)
            raise ArtifactError(
                f"belongs to another search ({what}); resume with the same inputs, or give another folder",
                stage="search",
                where=str(self.path),
            )
        return dict(header)

    def _foreign(self) -> ArtifactError:
        return ArtifactError(
            f"is no trial log of this program: the first line must be a header of format {FORMAT!r}, version "
            f"{VERSION}, and no line belongs to this search. Give another folder or move the file away",
            stage="search",
            where=str(self.path),
        )


@dataclass(frozen=True)
class LoggedTrial:
    """A line of a log with the options it names, and the origin of the log."""

    origin: Mapping[str, str]
    choices: Mapping[str, int]
    trial: Trial


def read_trials(path: Path) -> tuple[LoggedTrial, ...]:
    """Return all whole trials of a log of any origin, in its order; ArtifactError where the file is no log."""
    found = []
    origin, sealed, lines = _any_log(path, stage="search")
    for line in lines:
        try:
            fields = json.loads(line)
            found.append(LoggedTrial(origin, dict(fields["choices"]), _read_line(line, origin, sealed=sealed)))
        except (_DamagedLine, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
            continue  # what is damaged there is measured here
    return tuple(found)


def _any_log(path: Path, *, stage: str) -> tuple[dict[str, str], bool, list[bytes]]:
    """(origin, whether lines have digests, the lines of trials) of a log, whosever it is."""
    try:
        lines = path.read_bytes().splitlines()
        header = json.loads(lines[0])
        if header["format"] != FORMAT or header["version"] != VERSION:
            raise ValueError("another format")
        origin = dict(header["origin"])
        if DIGEST in header and header != _header(origin):
            raise ValueError("its first line does not fit its digest")
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise ArtifactError(f"is no trial log of this program: {error}", stage=stage, where=str(path)) from error
    return origin, DIGEST in header, lines[1:]


def find_trial(path: Path, number: int) -> LoggedTrial:
    """Return the trial of this number in a log of any origin.

    Raises ArtifactError if it is missing.
    """
    origin, sealed, lines = _any_log(path, stage="replay")
    found = []
    for line in lines:
        try:
            fields = json.loads(line)
            if not isinstance(fields["number"], int):
                continue
            found.append(fields["number"])
            if fields["number"] == number:
                trial = _read_line(line, origin, sealed=sealed)
                return LoggedTrial(origin, dict(fields["choices"]), trial)
        except _DamagedLine as error:
            raise ArtifactError(
                f"the line of trial {number} is damaged ({error})", stage="replay", where=str(path)
            ) from error
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
            continue  # a torn last line; what is asked for is looked for in the others
    raise ArtifactError(
        f"holds no trial {number}; it has {f'{min(found)} to {max(found)}' if found else 'none'}",
        stage="replay",
        where=str(path),
    )


def _header(origin: Mapping[str, str]) -> dict[str, Any]:
    return _sealed({"format": FORMAT, "version": VERSION, "origin": dict(origin)}, origin)


def _sealed(fields: dict[str, Any], origin: Mapping[str, str]) -> dict[str, Any]:
    return {**fields, DIGEST: _digest(fields, origin)}


def _digest(fields: Mapping[str, Any], origin: Mapping[str, str]) -> str:
    """SHA-256 of the origin and the fields as canonical JSON (sorted keys, no spaces, ASCII)."""
    text = json.dumps([dict(origin), fields], sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _encoded(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, allow_nan=False).encode() + b"\n"


def _read_line(line: bytes, origin: Mapping[str, str], *, sealed: bool) -> Trial:
    """The trial of a line. _DamagedLine where it is not what was written; `sealed`: lines of this log have digests."""
    try:
        fields = json.loads(line)
        digest = fields.pop(DIGEST, None)
        trial = _trial(fields)
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise _DamagedLine(f"{type(error).__name__}: {error}") from error
    if digest is None and not sealed:
        return trial
    if digest != _digest(fields, origin) or line.rstrip(b"\n") != _encoded({**fields, DIGEST: digest}).rstrip(b"\n"):
        raise _DamagedLine("it does not fit its digest")
    return trial


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
