"""Many calls of `quantize` in one process: neither memory nor open files grow, and results stay equal."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

import quantpipe
from tests.api.nets import QUICK, images, small_net

DEVICES = ("ort_cpu", "vta", "esp32p4")


def held() -> tuple[int, int]:
    """(anonymous memory in KiB, open files) of this process."""
    gc.collect()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["RssAnon"].split()[0]), len(list(Path("/proc/self/fd").iterdir()))


def calls(count: int, folder: Path | None) -> list[bytes]:
    made = []
    for number in range(count):
        place = None if folder is None else folder / str(number)
        result = quantpipe.quantize(small_net(), images(), DEVICES[number % 3], folder=place, evaluate=QUICK)
        made.append(result.model.SerializeToString())
        assert result.report["agreement"]["differing"] == 0
    return made


def grown(count: int, warm: int, tmp_path: Path) -> tuple[int, int]:
    """KiB and open files that calls have added, after those that fill caches and pools."""
    first = calls(warm, tmp_path / "warm")
    memory, files = held()
    made = calls(count, tmp_path / "more")
    after, open_now = held()
    assert {*made} == {*first}
    return after - memory, open_now - files


@pytest.mark.program
def test_a_few_calls_leave_no_file_open(tmp_path: Path) -> None:
    assert grown(3, 3, tmp_path)[1] == 0


@pytest.mark.slow
def test_two_hundred_calls(tmp_path: Path) -> None:
    kib, files = grown(200, 30, tmp_path)
    assert files == 0
    assert kib < 200 * 100, f"{kib / 200:.0f} KiB for each call"
