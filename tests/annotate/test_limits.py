"""Pinned, restricted and frozen choices: what is left, and what is refused."""

from __future__ import annotations

import pytest

from quantpipe.annotate.limits import ChoiceLimits, pinned
from quantpipe.errors import ConfigError
from quantpipe.types import Choice, ChoiceSpace

SPACE = ChoiceSpace(
    (
        Choice("bits:conv1", "bits", (8, 7, 6, 5, 4)),
        Choice("step:conv1", "threshold_step", (0, -1, 1), graded=False),
        Choice("bits:conv1.weight", "bits", (4, 3, 2)),
        Choice("bits:Head", "bits", (8,)),
    )
)


def options(limits: ChoiceLimits) -> dict[str, tuple[int, ...]]:
    return {c.key: c.options for c in limits.narrowed(SPACE)}


def test_nothing_given_nothing_changed() -> None:
    assert ChoiceLimits().narrowed(SPACE) == SPACE
    assert pinned(SPACE, SPACE) == {}, "a choice with one option was not pinned by anybody"


def test_fix_restrict_and_freeze() -> None:
    limits = ChoiceLimits(fix={"bits:conv1.w*": 3}, restrict={"bits:*": [4, 8, 3]}, freeze=["step:*"])
    assert options(limits) == {
        "bits:conv1": (8, 4),
        "step:conv1": (0,),
        "bits:conv1.weight": (3,),
        "bits:Head": (8,),
    }, "the order is the choice's own; what it does not have is passed over"
    assert pinned(SPACE, limits.narrowed(SPACE)) == {"step:conv1": 0, "bits:conv1.weight": 3}
    assert limits.narrowed(SPACE).choices[1].graded is False


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"fix": {"bits:conv2": 8}}, r"choices\.fix.*'bits:conv2' matches no choice \(did you mean 'bits:conv1'"),
        ({"fix": {"bits:head": 8}}, r"matches no choice \(did you mean 'bits:Head'"),
        ({"fix": {"bits:conv1": 9}}, r"choices\.fix.*wants 9 and leaves bits:conv1 nothing; it has 8, 7, 6, 5, 4"),
        ({"restrict": {"*conv1*": [4, 8]}}, r"choices\.restrict.*wants 4, 8 and leaves step:conv1 nothing"),
        ({"fix": {"*Head": 8}, "restrict": {"*": [4]}}, r"leaves step:conv1 nothing"),
        ({"freeze": ["nope*"]}, r"choices\.freeze.*'nope\*' matches no choice"),
        ({"fix": {"*": "8"}}, r"choices\.fix: \*.*'8'.*an integer"),
        ({"fix": {"*": True}}, r"choices\.fix.*an integer"),
        ({"fix": ["bits:*"]}, r"choices\.fix.*legal is \{pattern"),
        ({"restrict": {"*": 8}}, r"choices\.restrict.*a list of options"),
        ({"restrict": {"*": []}}, r"choices\.restrict.*a list of options"),
        ({"freeze": "bits:*"}, r"choices\.freeze.*a list of patterns"),
    ],
)
def test_what_means_nothing_is_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ChoiceLimits(**given).narrowed(SPACE)  # type: ignore[arg-type]
