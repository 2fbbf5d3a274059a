"""Long lists in messages are cut, and their rest is counted."""

from __future__ import annotations

import pytest

from quantpipe.errors import some_of


@pytest.mark.parametrize(
    ("texts", "most", "joint", "shown"),
    [
        ([], 2, ", ", ""),
        (["a", "b"], 2, ", ", "a, b"),
        (["a", "b", "c"], 2, ", ", "a, b and 1 more"),
        (["a: x", "b: y", "c: z", "d: w"], 2, "; ", "a: x; b: y; and 2 more"),
    ],
)
def test_the_first_texts_and_the_number_of_the_others(texts: list[str], most: int, joint: str, shown: str) -> None:
    assert some_of(texts, most, joint) == shown
