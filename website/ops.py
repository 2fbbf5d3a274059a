"""The list of ops, made from `OP_RULES`, `FLOAT_OPS` and the hardware files."""

from __future__ import annotations

from quantpipe.app.compose import option
from quantpipe.hardware.load import load_hardware
from quantpipe.oprules import FLOAT_OPS, OP_RULES
from website.configuration import CONF


def page() -> str:
    """Return the page: a row per op that a rule knows, and a row per reason of the ops that stay in float."""
    specs = [load_hardware(option("hardware", path.stem)) for path in sorted((CONF / "hardware").glob("*.yaml"))]
    rows = ["| op | family | in integers on |", "|---|---|---|"]
    for op in sorted(OP_RULES):
        on = [s.name for s in specs if any(r.is_integer for r in s.declared.get(op, ()))]
        off = [s.name for s in specs if s.name not in on]
        shorter = f"all but {', '.join(off)}" if len(off) < len(on) else ", ".join(on)
        rows.append(f"| {op} | {OP_RULES[op].family} | {shorter or 'any device that declares it'} |")
    reasons: dict[str, list[str]] = {}
    for op, reason in FLOAT_OPS.items():
        reasons.setdefault(reason, []).append(op)
    always = ["| ops that always stay in float | reason |", "|---|---|"]
    always += [f"| {', '.join(ops)} | {reason} |" for reason, ops in reasons.items()]
    head = "# Op coverage\n\nMade from `quantpipe/oprules` and `conf/hardware`. How ops run: [Ops](../ops.md).\n\n"
    return head + "\n".join([*rows, "", *always, ""])
