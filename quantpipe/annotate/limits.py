"""What a user takes away from the choice space: choices pinned to an option, restricted to some, or left as they begin.

Patterns are matched against the keys of the choices (`bits:conv1.weight`), as in a shell, upper and lower case apart.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from quantpipe.errors import ConfigError, nearest
from quantpipe.option_checks import is_integer
from quantpipe.types import Choice, ChoiceSpace, LeftOutPart, OptionValue
from quantpipe.types.choice_key import ChoiceKind


@dataclass(frozen=True)
class ChoiceLimits:
    """Hold what a user takes away from the choice space.

    Choices of ranges without the named options are passed over where another choice has one.

    `fix`: pattern -> the one option left. `restrict`: pattern -> the options left, in the choice's own order; options
    that a choice does not have are passed over, as long as one is left. `freeze`: patterns of choices that stay at
    their first option.
    """

    fix: Mapping[str, OptionValue] = field(default_factory=dict)
    restrict: Mapping[str, Sequence[OptionValue]] = field(default_factory=dict)
    freeze: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("fix", "restrict"):
            if getattr(self, name) is None:  # how a configuration says nothing
                object.__setattr__(self, name, {})
            if not isinstance(getattr(self, name), Mapping):
                raise ConfigError(f"is {getattr(self, name)!r}; legal is {{pattern: …}}", where=f"choices.{name}")
        for pattern, option in self.fix.items():
            _option(option, f"choices.fix: {pattern}", "one option, an integer or a word such as float")
        for pattern, options in self.restrict.items():
            where, legal = f"choices.restrict: {pattern}", "a list of options, integers or words such as float"
            if not isinstance(options, Sequence) or isinstance(options, str) or not options:
                raise ConfigError(f"is {options!r}; legal is {legal}", where=where)
            for option in options:
                _option(option, where, legal)
        if not isinstance(self.freeze, list | tuple) or not all(isinstance(p, str) for p in self.freeze):
            raise ConfigError(f"is {self.freeze!r}; legal is a list of patterns", where="choices.freeze")

    def names(self, key: str) -> bool:
        """Return whether the user says something of a choice, by its key."""
        return any(fnmatch.fnmatchcase(key, pattern) for pattern in (*self.fix, *self.restrict, *self.freeze))

    def narrowed(self, space: ChoiceSpace, every: ChoiceSpace | None = None) -> ChoiceSpace:
        """Return the space with the remaining options; a choice keeps its place, also with one option.

        `every`: The same choices with all the options that there are, which `fix` and `restrict` choose from: who names
        an option gets it, also where the space leaves it out. None: the space itself. Raises ConfigError: For a pattern
        that matches no choice, or leaves one without options.
        """
        left = {choice.key: choice for choice in space}
        whole = {choice.key: choice for choice in every or space}
        for pattern, option in self.fix.items():
            _narrow(left, pattern, "choices.fix", (option,), whole=whole)
        for pattern, options in self.restrict.items():
            _narrow(left, pattern, "choices.restrict", options, whole=whole)
        for pattern in self.freeze:
            for key in _matching(left, pattern, "choices.freeze"):
                left[key] = replace(left[key], options=left[key].options[:1])
        return ChoiceSpace(tuple(left.values()))


def pinned(whole: ChoiceSpace, narrowed: ChoiceSpace) -> dict[str, OptionValue]:
    """Return a mapping: key -> option of the choices that were left with one option and had more, or another."""
    pairs = zip(whole, narrowed, strict=True)
    return {a.key: a.options[0] for b, a in pairs if len(a.options) == 1 and a.options != b.options}


def left_out(every: ChoiceSpace, offered: ChoiceSpace, narrowed: ChoiceSpace) -> LeftOutPart:
    """Return how many `options` of `choices` were not offered, and no limit asked for; nothing where all were."""
    counts = [len({*e.options} - {*o.options} - {*n.options}) for e, o, n in zip(every, offered, narrowed, strict=True)]
    missing = [count for count in counts if count]
    return {"options": sum(missing), "choices": len(missing)} if missing else {}


def _narrow(
    left: dict[str, Choice], pattern: str, where: str, wanted: Sequence[OptionValue], *, whole: dict[str, Choice]
) -> None:
    found = _matching(left, pattern, where)
    meant = {left[key].kind for key in found if not {*wanted}.isdisjoint(whole[key].options)}
    for key in found:
        if left[key].kind == ChoiceKind.RANGE and meant and ChoiceKind.RANGE not in meant:
            continue  # a pattern for bits, such as *conv1*, matches choices of ranges by the way
        options = tuple(o for o in whole[key].options if o in wanted)
        if not options:
            raise ConfigError(
                f"{pattern!r} wants {', '.join(map(str, wanted))} and leaves {key} nothing; "
                f"it has {', '.join(map(str, whole[key].options))}",
                stage="annotate",
                where=where,
            )
        left[key] = whole[key] = replace(left[key], options=options)


def _matching(left: Mapping[str, Choice], pattern: str, where: str) -> list[str]:
    found = [key for key in left if fnmatch.fnmatchcase(key, pattern)]
    if not found:
        raise ConfigError(
            f"the pattern {pattern!r} matches no choice{nearest(pattern, left)}; annotate/choices.json lists all keys",
            stage="annotate",
            where=where,
        )
    return found


def _option(value: Any, where: str, legal: str) -> None:
    word = isinstance(value, str) and value.isidentifier()
    if not word and not is_integer(value):
        raise ConfigError(f"is {value!r}; legal is {legal}", where=where)
