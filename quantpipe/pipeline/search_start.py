"""`search.start=FILE`: what another search found, as points of this one's space.

The other search may have used another algorithm, threshold, objective or tolerance: only its decisions are taken, bits
and structure, and every value is measured again. Mismatches are reported in one sentence; a file without any match is
rejected.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantpipe.errors import ArtifactError, nearest
from quantpipe.option_checks import is_integer
from quantpipe.search import front, read_trials
from quantpipe.types import ChoiceSpace, OptionValue, Point
from quantpipe.types.choice_key import OF_RANGES, STRUCTURAL, ChoiceKind

MOST = 8
"""Points of a log's Pareto front that a search begins with."""

SHOWN = 3
"""Names that are listed of what does not fit."""

STAGE = "search"


@dataclass(frozen=True)
class SearchStart:
    """The points of a file, in the order in which they are asked.

    `digest`: SHA-256 of the file; `misfit`: what of it does not fit this search, None where all does.
    """

    points: tuple[Point, ...]
    digest: str
    misfit: str | None

    @property
    def origin(self) -> dict[str, str]:
        """Return the origin entries for artifacts that depend on it."""
        return {"start": self.digest}


def read_start(path: Path, folder: Path, space: ChoiceSpace) -> SearchStart:
    """Return the points of a strategy.json, or of the Pareto front of a trials.jsonl.

    `folder` is this run's folder, whose own files are rejected. Raises ArtifactError for a file that is neither, that
    this run writes itself, or that names no choice of this space.
    """
    if path.resolve().is_relative_to(folder.resolve()):
        raise ArtifactError(
            "is in the folder of this run, which overwrites it; give a copy elsewhere, or another hydra.run.dir",
            stage=STAGE,
            where=f"search.start: {path}",
        )
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ArtifactError(f"cannot be read: {error}", stage=STAGE, where=f"search.start: {path}") from error
    asked = _of_log(path) if path.suffix == ".jsonl" else [_of_strategy(path, content, space)]
    fits = [_fitted(assignment, space) for assignment in asked]
    if not any(fit.known for fit in fits):
        names = list(fits[0].unknown)
        hint = f": it names {names[0]}{nearest(names[0], [c.key for c in space])}" if names else ""
        raise ArtifactError(
            f"names no choice of this search{hint}; legal is a file of a search on the same model",
            stage=STAGE,
            where=f"search.start: {path}",
        )
    points = tuple(dict.fromkeys(fit.point for fit in fits))
    return SearchStart(points, "sha256:" + hashlib.sha256(content).hexdigest(), _misfit(path, fits))


@dataclass(frozen=True)
class _Fit:
    """One assignment as a point.

    `unknown`: names that are no choice here; `silent`: choices that it does not name; `moved`: key -> (option there,
    option here) where the option is not offered.
    """

    point: Point
    known: int
    unknown: tuple[str, ...]
    silent: tuple[str, ...]
    moved: Mapping[str, tuple[OptionValue, OptionValue]]


def _of_log(path: Path) -> list[Mapping[str, OptionValue]]:
    """Return the choices of the trials on the log's front, at most `MOST`, spread over it, the cheapest first."""
    logged = {line.trial: line.choices for line in read_trials(path)}
    found = front(logged)
    if not found:
        raise ArtifactError("holds no trial with a value", stage=STAGE, where=f"search.start: {path}")
    last, count = len(found) - 1, min(MOST, len(found))
    places = {round(i * last / max(count - 1, 1)) for i in range(count)}
    return [logged[found[place]] for place in sorted(places)]


def _of_strategy(path: Path, content: bytes, space: ChoiceSpace) -> Mapping[str, OptionValue]:
    """Return a strategy's decisions by key: its bits are stored by edge, its structure by choice."""
    where = f"search.start: {path}"
    try:
        found: Any = json.loads(content)["strategy"]
        bits, structure = dict(found["bits"]), dict(found.get("structure") or {})
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ArtifactError(
            f"is neither a strategy.json nor a trials.jsonl ({type(error).__name__}: {error})", stage=STAGE, where=where
        ) from error
    assignment: dict[str, OptionValue] = {}
    for choice in space:
        given = [bits.pop(edge) for edge in choice.edges if edge in bits] if choice.kind == ChoiceKind.BITS else []
        if given and all(is_integer(value) for value in given):
            assignment[choice.key] = max(given)
        elif given:
            raise ArtifactError(f"gives {choice.key} {given[0]!r} bits", stage=STAGE, where=where)
        elif choice.kind in STRUCTURAL:
            assignment[choice.key] = structure.pop(choice.key, choice.options[0])
    return assignment | {str(name): 0 for name in (*bits, *structure)}


def _fitted(assignment: Mapping[str, OptionValue], space: ChoiceSpace) -> _Fit:
    point, silent, moved = [], [], {}
    for choice in space:
        if choice.key not in assignment:
            point.append(0)
            silent.append(choice)
            continue
        wanted = assignment[choice.key]
        option = choice.nearest(wanted)
        point.append(choice.options.index(option))
        if option != wanted:
            moved[choice.key] = (wanted, option)
    keys = {choice.key for choice in space}
    unknown = tuple(name for name in assignment if name not in keys)
    # A strategy holds ranges and no steps: what it cannot say is nothing that it lacks.
    missing = tuple(choice.key for choice in silent if choice.kind not in OF_RANGES)
    return _Fit(tuple(point), len(space) - len(silent), unknown, missing, moved)


def _misfit(path: Path, fits: Sequence[_Fit]) -> str | None:
    unknown = dict.fromkeys(name for fit in fits for name in fit.unknown)
    silent = dict.fromkeys(key for fit in fits for key in fit.silent)
    moved = {key: pair for fit in fits for key, pair in fit.moved.items()}
    said = []
    if unknown:
        said.append(f"{len(unknown)} of its names are not choices here ({_listed(unknown)})")
    if silent:
        said.append(f"it lacks {len(silent)} choices, which begin at their first option ({_listed(silent)})")
    if moved:
        pairs = [f"{key} from {there} to {here}" for key, (there, here) in moved.items()]
        said.append(f"{len(moved)} options that are not offered here begin at the next offered one ({_listed(pairs)})")
    return f"search.start={path} does not fit completely: {'; '.join(said)}" if said else None


def _listed(names: Iterable[str]) -> str:
    found = list(names)
    return ", ".join(found[:SHOWN]) + (", …" if len(found) > SHOWN else "")
