"""What the certificate says of kernels that are proved, and why others are not."""

from __future__ import annotations

import numpy as np
import pytest

from quantpipe.certify import certificate, proof_summary
from quantpipe.oprules.definitions import ATTRIBUTES
from quantpipe.report import render_html, summary_table, text
from quantpipe.verify.checked_tables import FUNCTIONS, expect_table
from quantpipe.verify.files import Wrong
from tests.ops.line import Line, Net, line
from tests.verify.folders import digits_line


def claims_of(made: Line, form: str) -> dict[str, object]:
    plan = made.plan()
    return certificate(made.graph, made.topology, plan, made.spec, realized=made.realize(plan, form), form=form)


def test_writer_and_checker_know_the_same_functions() -> None:
    assert set(ATTRIBUTES) == set(FUNCTIONS)


def test_what_the_runtime_does_by_itself_is_not_proved() -> None:
    """The same net: in qdq the runtime makes the table and the logits, in integer form the file has both."""
    net = Net()
    x = net.input(None, 3, 6, 6)
    y = net.node("Sigmoid", net.conv(x, 3, 4, 3, 3, name="first"), name="curve")
    net.output(net.conv(y, 4, 4, name="last"))
    made = line(net)
    qdq, integer = (claims_of(made, form)["kernels"] for form in ("qdq", "integer"))
    assert "table" in qdq["curve"]["reason"] and not qdq["curve"]["proved"]  # type: ignore[index]
    assert all(entry["proved"] for entry in integer.values())  # type: ignore[attr-defined]


def test_an_average_over_an_open_shape_is_not_proved() -> None:
    net = Net()
    x = net.input(None, 3, None, None)
    net.output(net.node("GlobalAveragePool", net.conv(x, 3, 4, name="first"), name="mean"))
    from tests.ops.line import ArraySamples, load

    samples = ArraySamples({"x": np.random.default_rng(0).standard_normal((6, 3, 5, 5)).astype(np.float32)})
    made = line(load(net, lambda raw: samples), samples=samples)
    kernels = claims_of(made, "integer")["kernels"]
    assert "leaves open" in kernels["mean"]["reason"]  # type: ignore[index]
    assert kernels["first"]["proved"]  # type: ignore[index]


def test_a_wrong_entry_of_a_table_is_found() -> None:
    codes = np.arange(256)
    scale = 1 / 255
    function = {"op": "Sigmoid", "attributes": {}, "parameters": []}
    table = np.clip(np.rint(1 / (1 + np.exp(-(codes - 128) * 0.05)) / scale), 0, 255).reshape(1, -1).astype(np.int64)
    out = (np.float32(scale), 0, 0, 255)
    expect_table(table, function, (codes - 128, 0.05), out, where="node")
    for code in (0, 77, 128, 255):
        other = table.copy()
        other[0, code] += 1 if other[0, code] < 255 else -1
        with pytest.raises(Wrong, match=f"entry {code} of row 0"):
            expect_table(other, function, (codes - 128, 0.05), out, where="node")


def test_the_report_says_what_is_proved_and_what_is_checked() -> None:
    made = digits_line("ort_cpu")
    proof = proof_summary(claims_of(made, "qdq"), 64)
    assert text.proof(proof) == "proved for all inputs: 13 of 14 kernels; checked on 64 samples: 1 kernel"
    assert [entry["node"] for entry in proof["on_samples"]] == ["classifier"]
    table = summary_table({"proof": proof})
    assert "13 of 14 kernels" in str(getattr(table, "caption", ""))
    page = render_html({"proof": proof})
    assert "13 of 14 kernels" in page and "its result is float" in page
    assert text.proof(None) is None and "of 14 kernels" not in render_html({})
    assert text.proof({"proved": 2, "kernels": 2, "checked": 0, "float_nodes": 2, "samples": 8}) == (
        "proved for all inputs: 2 of 2 kernels; checked on 8 samples: 2 nodes in float"
    )
