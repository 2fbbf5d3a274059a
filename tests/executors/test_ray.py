"""The same with Ray: two local worker processes, one of which is killed in the middle."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


@pytest.fixture
def two_nodes() -> Iterator[Any]:
    """A cluster of two nodes on this machine, as `ray start --head` and `ray start --address` make it."""
    pytest.importorskip("ray", reason="the extra ray is not installed")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    second = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    yield cluster, second
    cluster.shutdown()


@pytest.mark.slow
def test_a_node_that_dies_loses_no_point(two_nodes: Any, tmp_path: Path) -> None:
    """Points of the lost node are measured on the other one, and all scores arrive in order."""
    cluster, second = two_nodes
    points = [(x, y) for y in range(2) for x in range(6)]
    recipe = ToyRecipe(tmp_path, seconds=2.0)
    workers = Ray(address=cluster.address).open(recipe)
    try:
        assert workers.count == 2, "one worker per core of both nodes"
        scores = workers(points)
        found = [next(scores)]
        while not (there := of_node(second, recipe)):
            found.append(next(scores))
        assert len(found) < len(points) // 2, "both nodes measure"
        time.sleep(0.3)  # the next point has begun there
        for pid in there:  # a machine that dies takes its workers along
            os.kill(pid, signal.SIGKILL)
        cluster.remove_node(second, allow_graceful=False)
        found += scores
    finally:
        workers.close()
    assert found == [worth(p) for p in points]
    again = [p for p in points if recipe.measured(p) > 1]
    assert again, "what was in flight there was measured again"


def of_node(node: Any, recipe: ToyRecipe) -> set[int]:
    """The workers below a node that have begun."""
    raylet = node.all_processes["raylet"][0].process.pid
    below = Path(f"/proc/{raylet}/task/{raylet}/children").read_text().split()
    return recipe.processes() & set(map(int, below))


@pytest.mark.slow
@pytest.mark.parametrize("address", ["127.0.0.1:9", "nowhere", "auto"])
def test_an_address_without_a_cluster_is_named(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    monkeypatch.setenv("RAY_gcs_server_request_timeout_seconds", "2")
    with pytest.raises(ConfigError, match=rf"executor\.address: no Ray cluster can be used at {address}"):
        Ray(address=address).open(ToyRecipe(tmp_path))
