"""Check the number of samples: rejected below a floor unless forced, and reported below a good number."""

from __future__ import annotations

from collections.abc import Mapping

from quantpipe.errors import DataError
from quantpipe.types import Samples

FEWEST = 4
"""Of fewer samples a split is refused: a range is then that of chance, and 3 of 3 right leave all between 44 and 100 %
open."""
ENOUGH = 32
"""Below, it is said: 32 of 32 right still leave all between 89 and 100 % open."""

_MEANS = {
    "calibrate": "ranges follow from few values, and values beyond them saturate",
    "search": "a candidate is chosen by luck as much as by merit",
    "judge": "helpful and harmful steps cannot be distinguished",
    "train": "training fits these samples more than others",
    "evaluate": "accuracy is known within its interval only",
}


def refuse_few(roles: Mapping[str, Samples], forced: bool) -> None:
    """Raise DataError for a split of fewer than `FEWEST` samples, unless that is `forced`."""
    few = {role: len(samples) for role, samples in roles.items() if len(samples) < FEWEST and role != "judge"}
    if few and not forced:
        counts = ", ".join(f"{role} has {count}" for role, count in few.items())
        raise DataError(
            f"{counts}, and fewer than {FEWEST} samples are too few for ranges and accuracy. Give more (some hundred "
            "are usual), or set dataset.force_few=true to continue anyway",
            stage="data",
        )


def few_notes(roles: Mapping[str, Samples]) -> tuple[str, ...]:
    """Return a sentence for each split of fewer than `ENOUGH` samples."""
    few = ((role, len(samples)) for role, samples in roles.items() if len(samples) < ENOUGH)
    return tuple(f"{role} has only {count} samples: {_MEANS[role]}" for role, count in few)
