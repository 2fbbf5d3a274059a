"""The same with Ray: two local worker processes, one of which is killed in the middle."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from quantpipe.errors import ConfigError, HardwareError
from quantpipe.scoring.workers import Ray, Workers
from tests.executors.recipes import ToyRecipe, worth

POINTS = [(x, y) for y in range(4) for x in range(6)]


def test_without_the_package_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r'pip install -e "\.\[ray\]"'):
        Ray(workers=2).open(ToyRecipe(tmp_path))


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Workers]:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    workers = Ray(workers=2).open(ToyRecipe(tmp_path, deadly=(3, 1), illegal=(9, 9), seconds=0.05))
    yield workers
    workers.close()


@pytest.mark.slow
def test_two_workers_of_which_one_is_killed(opened: Workers, tmp_path: Path) -> None:
    assert list(opened(POINTS)) == [worth(p) for p in POINTS]
    assert opened.count == 2
    recipe = ToyRecipe(tmp_path)
    assert len(list(tmp_path.glob("death-*"))) == 1 and recipe.measured((3, 1)) == 2
    by = {p.name.split("-")[3] for p in tmp_path.glob("measured-3-1-*")}
    assert len(by) == 2 <= len(recipe.processes()), "the point was measured again by another process"
    scores = opened([(1, 1), (9, 9), (2, 2)])
    assert next(scores) == worth((1, 1))
    with pytest.raises(HardwareError, match="plan: toy: no such point"):
        next(scores)
    assert list(opened(POINTS[:3])) == [worth(p) for p in POINTS[:3]]
