"""The command line as it may be written, and as Hydra's parser takes it: every flag before the overrides."""

from __future__ import annotations

import re
from collections.abc import Sequence

from quantpipe.app.renamed import argument_as_now_named

QUIET = ("-q", "--quiet")
WITH_VALUE = {
    "--cfg", "-c", "--package", "-p", "--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd",
    "--experimental-rerun",
}  # fmt: skip
"""Flags of Hydra that take the next word."""


def arranged(arguments: Sequence[str]) -> list[str]:
    """Return flags first, then overrides, in their order; `-q` becomes its override.

    Keys have their names of today, and `experiment=` is what everybody writes for `experiments=`.
    """
    flags: list[str] = []
    overrides: list[str] = []
    words = iter(arguments)
    for word in words:
        if word in QUIET:
            overrides.append("verbosity=quiet")
        elif word.startswith("-"):
            flags.append(word)
            if word in WITH_VALUE:
                flags += [value] if (value := next(words, None)) is not None else []
        elif flags and flags[-1] in ("--info", "-i") and "=" not in word:
            flags.append(word)
        else:
            overrides.append(re.sub(r"^\+?experiment=", "experiments=", argument_as_now_named(word)))
    return [*flags, *overrides]
