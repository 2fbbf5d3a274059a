"""Every section and every key that the program cannot do without, taken away or turned into a word."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from quantpipe.app.settings import GROUPS, KEYS
from quantpipe.app.shape import SECTIONS, check_shape
from quantpipe.errors import ConfigError


def whole() -> dict[str, Any]:
    found: dict[str, Any] = dict.fromkeys((*GROUPS, *KEYS), "x")
    for section, needed in SECTIONS.items():
        place = found
        *above, last = section.split(".")
        for part in above:
            place = place[part]
        place[last] = dict.fromkeys(needed, "x")
    return found


def test_what_is_whole_passes() -> None:
    check_shape(whole(), (*GROUPS, *KEYS))


def test_every_missing_key_and_every_section_that_is_none_is_named() -> None:
    cases = [(key, None) for key in (*GROUPS, *KEYS)]
    cases += [(f"{section}.{key}", None) for section, needed in SECTIONS.items() for key in needed]
    cases += [(section, value) for section in SECTIONS for value in (3, [1], False)]
    for key, value in cases:
        config = deepcopy(whole())
        place = config
        *above, last = key.split(".")
        for part in above:
            place = place[part]
        if value is None:
            del place[last]
        else:
            place[last] = value
        with pytest.raises(ConfigError) as error:
            check_shape(config, (*GROUPS, *KEYS))
        assert str(error.value).startswith(f"{key}: is "), (key, value)
