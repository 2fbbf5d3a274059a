"""Estimators from the configuration: the one of the threshold option, and those that `threshold.rules` name.

A rule's `use` is the name of a threshold option (`percentile`), a mapping that also changes keys of it
(`{option: percentile, p: 99.9}`), or one that describes an estimator of one's own (`{_target_: package.Class, …}`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, TypeVar

from quantpipe.app import compose
from quantpipe.app.instances import make
from quantpipe.calibrate.estimators import Estimator
from quantpipe.calibrate.rules import WHERE, Role, Rule, Side
from quantpipe.errors import ConfigError, nearest, refuse_unknown

CONDITIONS = ("tensors", "ops", "nodes")
KEYS = (*CONDITIONS, "side", "roles", "use")
EXAMPLE = 'threshold.rules=[{tensors: "*attn*", use: max_range}]'

Member = TypeVar("Member", bound=StrEnum)

Option = Callable[[str], Mapping[str, Any]]
"""The content of an option of the group threshold, by its name; ConfigError where there is none."""


def shipped_option(name: str) -> Mapping[str, Any]:
    """Return the content of a threshold option of quantpipe or of a plug-in."""
    return compose.option("threshold", name)


def rules_of(given: Any, plugins: Sequence[str], option: Option = shipped_option) -> tuple[Rule, ...]:
    """Return the rules of `threshold.rules` in order; an absent list is empty.

    Raises ConfigError for an entry that is no rule, with its place in the list and the legal values.
    """
    if given is not None and not isinstance(given, list):
        raise ConfigError(f"is {given!r}; legal is a list of rules, such as {EXAMPLE}", where=WHERE)
    return tuple(_rule(entry, f"{WHERE}[{number}]", plugins, option) for number, entry in enumerate(given or ()))


def _rule(given: Any, where: str, plugins: Sequence[str], option: Option) -> Rule:
    if not isinstance(given, Mapping):
        raise ConfigError(f"is {given!r}; legal is a mapping of {', '.join(KEYS)}, such as {EXAMPLE}", where=where)
    refuse_unknown(given, KEYS, where)
    if "use" not in given:
        raise ConfigError(f"names no estimator; legal is use: an option of threshold, as in {EXAMPLE}", where=where)
    words = {key: _words(given[key], f"{where}.{key}") for key in (*CONDITIONS, "roles") if key in given}
    if not words:
        raise ConfigError(
            f"selects no tensor: give at least one of {', '.join(CONDITIONS)} or roles. To apply it to all tensors, "
            "use threshold=NAME",
            where=where,
        )
    if "side" in given and not ({"ops", "nodes"} & set(words)):
        raise ConfigError("has no effect without ops or nodes, whose tensors it selects", where=f"{where}.side")
    estimator, name = _used(given["use"], f"{where}.use", plugins, option)
    return Rule(
        estimator,
        name,
        **{key: words.get(key, ()) for key in CONDITIONS},
        side=_member(Side, given.get("side", Side.MADE), f"{where}.side"),
        roles=tuple(_member(Role, word, f"{where}.roles") for word in words.get("roles", ())),
    )


def _used(given: Any, where: str, plugins: Sequence[str], option: Option) -> tuple[Estimator, str]:
    """Return the estimator, and how it is called."""
    if isinstance(given, str):
        name, changes = given, {}
    elif isinstance(given, Mapping) and "_target_" in given:
        return _made(given, where, plugins), _named(str(given["_target_"]), given)
    elif isinstance(given, Mapping) and isinstance(given.get("option"), str):
        name, changes = given["option"], {key: value for key, value in given.items() if key != "option"}
    else:
        raise ConfigError(
            f"is {given!r}; legal are the name of a threshold option, {{option: NAME, …}} with keys that "
            "threshold.activations has there, and {_target_: package.Class, …}",
            where=where,
        )
    try:
        content = option(name)
    except ConfigError as error:
        raise ConfigError(str(error).removeprefix("threshold: "), where=where) from None
    described = compose.changed(dict(content["activations"]), changes, where)
    return _made(described, where, plugins), _named(name, changes)


def _made(described: Mapping[Any, Any], where: str, plugins: Sequence[str]) -> Estimator:
    try:
        found: Estimator = make(described, where, plugins)
    except ConfigError as error:  # an estimator does not know where its values come from
        raise error if str(error).startswith(where) else ConfigError(str(error), where=where) from None
    return found


def _named(name: str, given: Mapping[Any, Any]) -> str:
    changes = ", ".join(f"{key}={value}" for key, value in given.items() if key != "_target_")
    return f"{name}({changes})" if changes else name


def _words(value: Any, where: str) -> tuple[str, ...]:
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not found or not all(isinstance(word, str) and word for word in found):
        raise ConfigError(f"is {value!r}; legal is a word, or a list of words", where=where)
    return tuple(found)


def _member(kind: type[Member], value: Any, where: str) -> Member:
    legal = [member.value for member in kind]
    if value not in legal:
        raise ConfigError(f"is {value!r}{nearest(str(value), legal)}; legal are {', '.join(legal)}", where=where)
    return kind(value)
