"""How the written file is run: the session that decides, what to do next, and latency, on the page and in the table."""

from __future__ import annotations

import copy
import io
import re
from typing import Any

import pytest
from rich.console import Console

from quantpipe.report import latency_text, render_html, summary_table
from tests.report.test_report_page import REPORT


def deployed(**changes: Any) -> dict[str, Any]:
    """A report whose file needs a session option."""
    option = {"session.x64quantprecision": "1"}
    rows = [
        {"session": "session.x64quantprecision=1", "decides": True, "elements": 51200, "differing": 0, "watched": True},
        {"session": "default", "decides": False, "elements": 640, "differing": 629, "watched": False},
    ]
    report = copy.deepcopy(REPORT)
    report["agreement"]["sessions"] = rows
    report["metrics"]["default_session"] = {"top1": 0.61, "kl": 1.2, "sqnr_db": 3.0, "cosine": 0.5}
    report["deployment"] = {
        "file": "model.onnx",
        "form": "qdq",
        "options": option,
        "sentence": "run model.onnx in onnxruntime with the session option session.x64quantprecision=1",
        "code": "session = ort.InferenceSession('model.onnx', options)",
        "command": "python run.py hardware=vta hydra.run.dir=here",
        "files": ["model.onnx"],
        **changes,
    }
    return report


def test_the_good_box_has_the_deciding_sessions_alone_and_the_answer_is_given_once() -> None:
    page = render_html(deployed())  # type: ignore[arg-type]
    good = re.search(r'<p class="verdict good">0 of.*?</p>', page, re.S)
    assert good is not None and "629" not in good[0]
    box = re.search(r'<p class="verdict plain" id="run">.*?</p>', page, re.S)
    assert box is not None and "session.x64quantprecision=1" in box[0] and "629 of 640" in box[0]
    assert "top-1 accuracy 61.00 %" in box[0]


def test_the_page_ends_with_what_to_do() -> None:
    report = deployed()
    report["latency"] = {
        "float_ms": 1.0,
        "realized_ms": 0.5,
        "runs": 50,
        "threads": 2,
        "processor": "P",
        "of": "device",
    }
    end = render_html(report).partition("What to do now")[2]  # type: ignore[arg-type]
    for part in (
        "model.onnx",
        "InferenceSession",
        "python run.py hardware=vta",
        "50 interleaved pairs",
        "2 threads, P",
    ):
        assert part in end
    assert "<h2" not in end


def printed_table(report: Any) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(summary_table(report))
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_accuracy_as_deployed_is_in_the_table() -> None:
    shown = printed_table(deployed())
    assert "in a default session" in shown and "61.00 %" in shown
    assert "run model.onnx in onnxruntime with the session option" in " ".join(shown.split())


@pytest.mark.parametrize(
    ("low", "middle", "high", "said"),
    [(0.7, 0.9, 1.3, "no clear difference"), (1.1, 1.2, 1.3, "1.20× slower"), (0.4, 0.5, 0.6, "2.00× faster")],
)
def test_no_verdict_on_latency_where_the_quartiles_span_one(low: float, middle: float, high: float, said: str) -> None:
    times = {"ratio": middle, "ratio_low": low, "ratio_high": high, "of": "device"}
    shown = latency_text.latency_ratio(times)
    assert shown is not None and said in shown and f"{low:g} to {high:g}" in shown
    assert ("slower" in shown or "faster" in shown) is not (low <= 1 <= high)


def test_the_latency_of_a_reference_form_is_labelled_and_has_no_verdict() -> None:
    report = copy.deepcopy(REPORT)
    ratios = {"ratio": 40.0, "ratio_low": 39.0, "ratio_high": 41.0}
    report["latency"] = {"float_ms": 2.08, "realized_ms": 82.4, "runs": 9, "of": "reference", **ratios}
    page = render_html(report)  # type: ignore[arg-type]
    assert "Latency of the reference form, this host" in page and "slower" not in page
    assert "latency of reference" in printed_table(report) and "quartiles" not in printed_table(report)
    assert "not of vta" in str(latency_text.latency_conditions(report))  # type: ignore[arg-type]
