"""Addresses with passwords are taken out of the command line and of configuration files before anything else.

In their place stands a reference to a variable of this process's environment, `${oc.env:QUANTPIPE_SECRET_1}`, which
Hydra resolves when the value is used. What is composed, written to the run folder, sent to workers or pickled by a
launcher holds the reference; processes that are started from here inherit the variable.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, QuotedString
from hydra.errors import HydraException

from quantpipe.errors import ConfigError
from quantpipe.passwords import remember, remember_address, secrets_in, without_passwords

VARIABLE = "QUANTPIPE_SECRET_"
TRACKING = "MLFLOW_TRACKING_"
_REFERENCE = re.compile(r"\$\{oc\.env:(" + VARIABLE + r"\d+)\}")


def learn_environment() -> None:
    """Remember the secrets that variables of the environment hold, so that no message shows them."""
    for name, value in os.environ.items():
        if name.startswith((TRACKING, VARIABLE)):
            remember_address(value)
        if name in (f"{TRACKING}PASSWORD", f"{TRACKING}TOKEN"):
            remember(value, os.environ.get(f"{TRACKING}URI", ""))


def without_secrets(arguments: list[str]) -> list[str]:
    """Return the command line with references in place of addresses that hold a password."""
    return [argument if argument.startswith("-") else _without_secrets(argument) for argument in arguments]


def referred(value: str) -> str:
    """Return a reference to a value that must not be written; the same one for the same value."""
    remember_address(value)
    known = {text: name for name, text in os.environ.items() if name.startswith(VARIABLE)}
    if value not in known:
        numbers = (int(n) for n in (name.removeprefix(VARIABLE) for name in known.values()) if n.isdecimal())
        known[value] = f"{VARIABLE}{max(numbers, default=0) + 1}"
        os.environ[known[value]] = value
    return f"${{oc.env:{known[value]}}}"


def shown(text: str) -> str:
    """Return a text with references resolved to addresses as they may be shown."""
    return _REFERENCE.sub(lambda found: without_passwords(os.environ.get(found[1], found[0])), text)


def _without_secrets(argument: str) -> str:
    if not any(True for _ in secrets_in(argument)):
        return argument
    try:
        value = OverridesParser.create().parse_override(argument).value()
    except HydraException:
        remember_address(argument)
        return argument  # it is refused, and its message is concealed
    for written, address in _texts(value):
        if any(True for _ in secrets_in(address)):
            argument = argument.replace(written, referred(address))
    if any(True for _ in secrets_in(argument)):
        raise ConfigError(
            "holds a password in a form that cannot be kept out of the run folder; give it by a variable of the "
            "environment, as in tracking.uri='${oc.env:NAME}'",
            where=argument.partition("=")[0],
        )
    return argument


def _texts(value: Any) -> Iterator[tuple[str, str]]:
    """Yield (text on the command line, its meaning) of all texts in a parsed value."""
    if isinstance(value, QuotedString):
        yield value.with_quotes(), value.text
    elif isinstance(value, str):
        yield value, value
    elif isinstance(value, ChoiceSweep):
        yield from _texts(value.list)
    elif isinstance(value, Mapping):
        yield from _texts(list(value.values()))
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
