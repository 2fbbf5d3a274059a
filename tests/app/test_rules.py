"""`threshold.rules` from the configuration: what a rule may say, and what is said of one that means nothing."""

from __future__ import annotations

import pytest

from quantpipe.app.compose import option, option_names
from quantpipe.calibrate.estimators import KL, MSE, MaxRange, Percentile
from quantpipe.calibrate.rules import Role, Side
from quantpipe.errors import ConfigError
from tests.app.configured import settings_of


def test_no_rules_by_default() -> None:
    assert settings_of().rules == ()
    assert all(option("threshold", name)["rules"] == [] for name in option_names("threshold"))


def test_all_that_a_rule_may_say() -> None:
    first, second, third, fourth = settings_of(
        'threshold.rules=[{tensors: "*attn*", use: max_range}, '
        "{ops: [Softmax, Gelu], side: read, use: {option: percentile, p: 99.5}}, "
        "{nodes: head, roles: [weight, constant], side: both, use: {_target_: quantpipe.calibrate.estimators.KL, "
        "stride: 4}}, {roles: input, use: mse}]"
    ).rules
    assert (
        first.estimator == MaxRange()
        and first.tensors == ("*attn*",)
        and first.text == ("{tensors: *attn*, use: max_range}")
    )
    assert second.estimator == Percentile(p=99.5) and second.ops == ("Softmax", "Gelu") and second.side is Side.READ
    assert second.text == "{ops: [Softmax, Gelu], side: read, use: percentile(p=99.5)}"
    assert third.estimator == KL(stride=4) and third.nodes == ("head",) and third.roles == (Role.WEIGHT, Role.CONSTANT)
    assert fourth.estimator == MSE() and fourth.side is Side.MADE


@pytest.mark.sliced(3)
@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ("max_range", "threshold.rules: is 'max_range'; legal is a list"),
        ("[3]", r"threshold.rules\[0\]: is 3; legal is a mapping"),
        ("[{tensors: x}]", r"rules\[0\]: names no estimator"),
        ("[{use: kl}]", r"rules\[0\]: selects no tensor"),
        ("[{use: kl, roles: [input]}, {use: kl, tensor: x}]", r"rules\[1\].tensor: is no option \(did you mean 'tens"),
        ("[{tensors: 3, use: kl}]", r"rules\[0\].tensors: is 3; legal is a word"),
        ("[{ops: [], use: kl}]", r"rules\[0\].ops: is \[\]"),
        ("[{roles: [weights], use: kl}]", r"roles: is 'weights' \(did you mean 'weight'\?\); legal are input"),
        ("[{tensors: x, side: read, use: kl}]", "side: has no effect without ops or nodes"),
        ("[{ops: Conv, side: out, use: kl}]", "side: is 'out'.*; legal are made, read, both"),
        ("[{ops: Conv, use: percentil}]", r"rules\[0\].use: has no option 'percentil' \(did you mean 'percentile'"),
        ("[{ops: Conv, use: {p: 3}}]", r"use: is \{'p': 3\}; legal are the name of"),
        ("[{ops: Conv, use: {option: percentile, q: 3}}]", "use.q: is no key"),
        ("[{ops: Conv, use: {option: percentile, p: 300}}]", r"rules\[0\].use: percentile p=300.*legal: 0 < p"),
        ("[{ops: Conv, use: {_target_: os.system}}]", "use._target_: the target 'os.system' is not allowed"),
        ("[{ops: Conv, use: {_target_: quantpipe.hardware.gain.Gains}}]", "not allowed here: it has no __call__"),
    ],
)
def test_a_rule_that_means_nothing_is_refused(rules: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        settings_of(f"threshold.rules={rules}")


def test_extremes_do_not_serve_a_rule_that_reads_histograms() -> None:
    given = ("threshold=max_range", "calibrate.statistics=extremes")
    assert settings_of(*given, "threshold.rules=[{ops: Conv, use: power2_range}]").rules
    with pytest.raises(ConfigError, match=r"is extremes, and threshold.rules: \{ops: Conv, use: kl\} reads histograms"):
        settings_of(*given, "threshold.rules=[{ops: Conv, use: kl}]")
