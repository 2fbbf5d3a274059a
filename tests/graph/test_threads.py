"""Models are cleaned in several threads at once without one taking the other's standard output."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import onnxslim
import pytest

from tests.ops.line import Net, load


def test_standard_output_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    slim, begun = onnxslim.slim, threading.Semaphore(0)

    def slow(*arguments: Any, **named: Any) -> Any:
        begun.release()
        time.sleep(0.1)  # the second thread begins while the first is at work, and ends after it
        return slim(*arguments, **named)

    monkeypatch.setattr(sys, "stdout", sys.stdout)  # given back, should this test fail
    monkeypatch.setattr(onnxslim, "slim", slow)
    net = Net()
    net.output(net.node("Relu", net.dense(net.input(None, 4), 4, 3)))
    proto, before = net.proto(), sys.stdout
    threads = [threading.Thread(target=load, args=(proto,)) for _ in range(2)]
    threads[0].start()
    assert begun.acquire(timeout=30)
    time.sleep(0.05)
    threads[1].start()
    for thread in threads:
        thread.join()
    assert sys.stdout is before
