"""The answer on a terminal of 80 columns."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from quantpipe.report import explained


def cause(name: str, **more: Any) -> dict[str, Any]:
    row = {
        "tensor": name, "kind": "tensor", "node": "n", "role": "r", "bits": 8, "alone": 0.5,
        "outputs": [{"output": "y", "sqnr_db": 7.0}], "rounding": 0.1, "clipping": 0.4, "accumulated": 5.0,
        "local_rounding": 0.1, "local_clipping": 0.1, "saturated": 0.2, "overflow": 0.0, "before": None, "after": None,
        "fault": "",
    }  # fmt: skip
    return row | more


def advice(role: str, change: str, gain: float, **more: Any) -> dict[str, Any]:
    row = {
        "role": role, "members": [], "change": change, "overrides": ["annotate.float_nodes=[a,'b c']"],
        "loss_before": 1.0, "loss_after": 1.0 - gain, "gain": gain, "accuracy_after": 0.9, "cost_before": 10.0,
        "cost_after": 11.0, "advised": gain >= 0.02, "reason": "",
    }  # fmt: skip
    return row | more


def report(**more: Any) -> dict[str, Any]:
    found = {
        "version": "0", "model": "/a/model.onnx", "hardware": "vta", "shortfall": None, "loss": 1.0,
        "loss_before_recovery": None, "accuracy": {"float": 0.99, "run": 0.5}, "samples": 64, "doubts": [],
        "causes": [cause("/a/very/long/name/of/a/tensor/in/a/transformer/block_7/output_0[x]"),
                   cause("w", kind="weight", rounding=None, clipping=None, accumulated=None),
                   cause("sum", overflow=0.1),
                   cause("fine", rounding=0.4, clipping=0.1)],
        "advice": [], "evaluations": 9, "seconds": 1.0,
    }  # fmt: skip
    return found | more


def shown(found: dict[str, Any]) -> str:
    out = io.StringIO()
    Console(file=out, width=80, markup=False, emoji=False, highlight=False).print(explained(found))
    return out.getvalue()


def test_it_fits_eighty_columns_and_names_the_part_of_the_error() -> None:
    text = shown(report())
    assert max(map(len, text.splitlines())) <= 80
    for word in ("clipping", "overflow", "rounding", "It meets its objective"):
        assert word in text
    assert "None of the 0 measured changes" in text


def test_the_best_of_a_place_is_shown_with_what_is_pasted() -> None:
    rows = [
        advice("3 x Add", "3 nodes in float", 0.9),
        advice("3 x Add", "16 bits", 0.8),
        advice("the whole run", "x", 0.01),
    ]
    text = shown(report(advice=rows, shortfall="it misses"))
    assert "1. 3 x Add: 3 nodes in float" in text
    assert not any(word in text for word in ("16 bits", "whole run"))
    assert all(word in text for word in ("90 % less", "costs 10.0 % more", "it misses"))
    assert """'annotate.float_nodes=[a,'"'"'b c'"'"']'""" in text  # as a shell takes it


def test_the_fault_stands_beside_what_mends_it() -> None:
    rows = [advice("Conv c", "range by mse", 0.9, reason="its range ends at 0 and 1, and its values reach 0 and 9")]
    assert "its range ends at 0 and 1" in shown(report(advice=rows)).replace("\n", " ")


def test_doubts_stand_first() -> None:
    assert shown(report(doubts=["the float model guesses"])).startswith("warning: the float model guesses")


def test_recovery_is_told() -> None:
    assert "Recovery brought the loss from 3 to 1" in shown(report(loss_before_recovery=3.0))
