"""The site's list of ops has every op of the tables."""

from __future__ import annotations

from quantpipe.oprules import FLOAT_OPS, OP_RULES
from website.ops import page


def test_the_list_has_every_op_with_its_devices() -> None:
    rows = page().splitlines()
    for op, rule in OP_RULES.items():
        assert [row for row in rows if row.startswith(f"| {op} | {rule.family} | ")], op
    assert "| DepthToSpace | move | fbgemm, " in page() and "| Selu | lookup | any device that declares it |" in rows
    always = rows[rows.index("| ops that always stay in float | reason |") :]
    for op, reason in FLOAT_OPS.items():
        assert [row for row in always if op in row.split("|")[1].strip().split(", ") and row.endswith(f" {reason} |")]


def test_no_op_stands_in_both_tables() -> None:
    assert not set(OP_RULES) & set(FLOAT_OPS)
