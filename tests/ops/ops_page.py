"""The table of docs/ops.md, made from OP_RULES, FLOAT_OPS and the hardware files.

python -m tests.ops.ops_page        # writes it between the markers
"""

from __future__ import annotations

from pathlib import Path

from quantpipe.oprules import FLOAT_OPS, OP_RULES
from tests.ops.line import CONF, hardware

PAGE = Path(__file__).resolve().parents[2] / "docs" / "ops.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


def table() -> str:
    """One row per op that a rule knows, then one row per reason of the ops that stay in float."""
    specs = [hardware(p.stem) for p in sorted((CONF / "hardware").glob("*.yaml"))]
    rows = ["| op | family | in integers on |", "|---|---|---|"]
    for op in sorted(OP_RULES):
        on = [s.name for s in specs if any(r.is_integer for r in s.declared.get(op, ()))]
        off = [s.name for s in specs if s.name not in on]
        shorter = f"all but {', '.join(off)}" if len(off) < len(on) else ", ".join(on)
        rows.append(f"| {op} | {OP_RULES[op].family} | {shorter or 'any device that declares it'} |")
    rows += ["", "| ops that always stay in float | reason |", "|---|---|"]
    reasons: dict[str, list[str]] = {}
    for op, reason in FLOAT_OPS.items():
        reasons.setdefault(reason, []).append(op)
    rows += [f"| {', '.join(ops)} | {reason} |" for reason, ops in reasons.items()]
    return "\n".join(rows)


def page() -> str:
    """The page with its table renewed."""
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
