"""Passwords and tokens in addresses: found, remembered, and kept out of every text that is printed or written.

`conceal` is the one function that a text passes on its way out: messages of errors, lines of the log, what goes to the
terminal. It knows addresses by their form (`https://user:password@host`), and what it was told to `remember` by its
letters, because a message may hold a part of an address only. What is written as data passes `concealed`.

A password may hold `@`, `/` and `:` as they are: it reaches from the first colon behind the user to the last `@`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, unquote

MASK = "***"
SHORTEST = 4
"""Letters below which a secret is not looked for in texts: it would be found everywhere."""

_SCHEME = r"[A-Za-z][A-Za-z0-9+.\-]*://"
_IN_TEXT = re.compile(rf"({_SCHEME}[^/@:\s]*:)(\S+)(?=@)")
_IN_VALUE = re.compile(rf"({_SCHEME}[^/@:\s]*:)(.+)(?=@)", re.S)
_TOKEN = re.compile(r"(https?://)([^/@:\s]+)(?=@)")
_QUERY = re.compile(r"([?&](?:\w*password|passwd|pwd|\w*token|\w*secret|api_?key|access_?key)=)([^&\s#'\"]+)", re.I)
_REFERENCE = re.compile(r"\$\{[^{}]*\}")

_remembered: set[str] = set()


def secrets_in(value: str) -> Iterator[str]:
    """Yield the password, token or keys of one address, as they are written there.

    References such as `${oc.env:NAME}` are no secrets.
    """
    for pattern in (_IN_VALUE, _TOKEN, _QUERY):
        for found in pattern.finditer(value):
            if _REFERENCE.sub("", found[2]).strip(MASK[0]):
                yield found[2]


def without_passwords(value: str) -> str:
    """Return one address, or another text of which all belongs together, as it may be shown."""
    return _masked(value, _IN_VALUE)


def conceal(text: str) -> str:
    """Return a text as it may be shown: without passwords of addresses, and without all that was remembered."""
    for secret in sorted(_remembered, key=len, reverse=True):
        text = text.replace(secret, MASK)
    return _masked(text, _IN_TEXT) if "://" in text else text


def concealed(node: Any) -> Any:
    """Return plain data with every text of them concealed."""
    if isinstance(node, Mapping):
        return {key: concealed(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return type(node)(concealed(value) for value in node)
    return conceal(without_passwords(node)) if isinstance(node, str) else node


def remember(secret: str, beside: str = "") -> None:
    """Keep a secret out of all that is concealed from now on, in each spelling that addresses have for it.

    One that is too short, or is a word of what it stands `beside` (`postgres` in `postgresql://`), is not looked for:
    it hides nothing, and texts without it could not be read.
    """
    spellings = {secret, unquote(secret), quote(unquote(secret), safe=""), quote(secret, safe="")}
    # A reader that knows no passwords takes a part of it for the host, the path or a file's name.
    spellings |= {part for whole in spellings for part in re.split("[@/]", whole) if len(part) > SHORTEST}
    for spelling in spellings:
        if len(spelling) >= SHORTEST and spelling not in beside:
            _remembered.add(spelling)


def remember_address(value: str) -> None:
    """Keep what is secret in an address out of all that is concealed from now on."""
    for secret in list(secrets_in(value)):
        remember(secret, without_passwords(value))


def encoded(address: str) -> str:
    """Return the address with its password percent-encoded.

    So no reader takes a part of the password for the host or the path.
    """
    found = _IN_VALUE.search(address)
    if found is None or re.match(r"\d+/", found[2]):  # http://host:5000/a@b has a port and no password
        return address
    return f"{address[: found.start(2)]}{quote(unquote(found[2]), safe='')}{address[found.end(2) :]}"


def _masked(text: str, pattern: re.Pattern[str]) -> str:
    for each in (pattern, _TOKEN, _QUERY):
        text = each.sub(lambda found: found[1] + MASK, text)
    return text


_SHOWN = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"} | {
    code: f"\\u{code:04x}" for code in (0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}


def printable(text: str) -> str:
    """Return a text with control characters, but for line feeds and tabs, as escapes that any terminal shows.

    Names in models and files may hold sequences that move the cursor, write the clipboard or turn text round.
    """
    return text.translate(_SHOWN)
