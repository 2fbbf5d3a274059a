"""The language of documents, comments, messages and docstrings: phrases and long sentences may only become fewer."""

from __future__ import annotations

import pytest

from tests.documents import prose

LIMITS = prose.limits()


@pytest.fixture(scope="module")
def counts() -> dict[str, prose.Count]:
    return prose.counts()


def test_no_area_has_more_than_its_limit(counts: dict[str, prose.Count]) -> None:
    beyond = []
    for area, count in counts.items():
        most = prose.allowed(area, count, LIMITS)
        if count.markers > most["markers"] or count.long > most["long"]:
            shown = "\n".join(count.found[:40])
            beyond.append(
                f"{area} has {count.markers} phrases (limit {most['markers']}) and {count.long} sentences of more "
                f"than {prose.LONGEST} words (limit {most['long']}):\n{shown}"
            )
    assert not beyond, "\n".join([*beyond, "(CONTRIBUTING.md: English)"])


def test_every_limit_is_of_something_that_exists(counts: dict[str, prose.Count]) -> None:
    assert set(LIMITS) <= set(counts)


@pytest.mark.parametrize(
    ("text", "markers", "long"),
    [
        ("The report lists the integers.", 0, 0),
        ("The report said which whole numbers are none.", 3, 0),
        ("`The report says`", 0, 0),
        ("a " * 31, 0, 1),
        ("a " * 30 + ". " + "B " * 30, 0, 0),
    ],
)
def test_phrases_and_long_sentences_are_found(text: str, markers: int, long: int) -> None:
    count = prose.Count()
    count.add(text, "here")
    assert (count.markers, count.long) == (markers, long), count.found


def test_planted_texts_are_found_in_each_kind_of_file() -> None:
    planted = "The file says so."
    assert any(planted in text for _, text in prose._of_markdown(f"# T\n\n- {planted}\n"))
    assert any(planted in text for _, text in prose._of_markdown(f"| a | {planted} |\n"))
    assert any(planted in text for _, text in prose._of_comments(f"key: 1  # {planted}\n"))
    code = f'def f():\n    """Do it.\n\n    {planted}\n    """\n    raise ConfigError(f"{{x}} {planted}")\n'
    assert {kind for kind, _, text in prose._of_python(code) if planted in text} == {"docstrings", "messages"}
