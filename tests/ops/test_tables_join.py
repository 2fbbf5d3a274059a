"""The three tables of per-op knowledge fit together: rules, hardware files, lowerings."""

from __future__ import annotations

import pytest

from quantpipe.oprules import FLOAT_OPS, OP_RULES, Family
from quantpipe.realize import BACKENDS
from quantpipe.simulate.dialect import Simulated
from tests.ops.line import CONF, hardware

SHIPPED = sorted(p.stem for p in (CONF / "hardware").glob("*.yaml"))


@pytest.mark.parametrize("name", SHIPPED)
def test_each_op_declared_in_integers_has_a_rule_and_a_lowering(name: str) -> None:
    spec = hardware(name)
    lowerings = BACKENDS[spec.realize]().ops
    for op, signatures in spec.ops.items():
        assert op in OP_RULES or op in FLOAT_OPS, op
        if any(s.is_integer for s in signatures):
            assert op in lowerings, f"{spec.realize} cannot write {op}"
            assert op in Simulated().ops, f"the simulation cannot write {op}"


@pytest.mark.parametrize("op", OP_RULES)
def test_each_rule_has_a_lowering_everywhere(op: str) -> None:
    for name, backend in BACKENDS.items():
        assert op in backend().ops, f"{name} cannot write {op}"
    assert op in Simulated().ops


def test_no_lowering_without_a_rule() -> None:
    for name, backend in {**BACKENDS, "simulated": Simulated}.items():
        assert set(backend().ops) <= set(OP_RULES), name


@pytest.mark.parametrize("op", OP_RULES)
def test_rows_are_complete(op: str) -> None:
    """What a family needs is there: a weight to accumulate with, a count to average by, bounds to clamp to."""
    rule = OP_RULES[op]
    assert (rule.weight is not None) == (rule.family is Family.ACCUMULATE)
    if rule.family is Family.ACCUMULATE:
        assert rule.macs.__name__ != "no_macs"
    assert (rule.count.__name__ != "no_macs") == (rule.family is Family.AVERAGE)
    assert (rule.bounds.__name__ != "unbounded") == (rule.family is Family.CLAMP)
