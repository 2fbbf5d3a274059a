"""docs/ops.md says what the tables say."""

from __future__ import annotations

from quantpipe.oprules import FLOAT_OPS, OP_RULES
from tests.ops.ops_page import PAGE, page


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m tests.ops.ops_page"


def test_no_op_stands_in_both_tables() -> None:
    assert not set(OP_RULES) & set(FLOAT_OPS)
