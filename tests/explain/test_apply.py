"""The best of what is advised, together: which rows go together, and the file; tests/e2e/test_apply.py runs it."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from quantpipe.app.apply import best, changes_of, command, write
from quantpipe.errors import ConfigError


def row(gain: float, *overrides: str, members: tuple[str, ...] = (), role: str = "r") -> dict[str, Any]:
    losses = {"loss_before": 1.0, "loss_after": 1 - gain}
    return {
        "role": role,
        "members": list(members),
        "change": str(gain),
        "overrides": overrides,
        "gain": gain,
        "advised": gain > 0,
        **losses,
    }


def test_rows_that_go_together() -> None:
    advice = [
        row(0.9, "annotate.float_nodes=[a,b]", members=("x",)),
        row(0.8, "annotate.constraints={x: {kind: any, bits: 16}}", members=("x",)),  # the same place
        row(0.7, "threshold=kl"),
        row(0.6, "threshold=mse"),  # another word for the same key
        row(0.5, "annotate.float_nodes=[b,c]", members=("y",)),
        row(0.4, "annotate.constraints={z: {kind: any, bits: 16}}", members=("z",)),
        row(-0.1, "recover=default"),
    ]
    taken, changes = best(advice, 9)
    assert [one["gain"] for one in taken] == [0.9, 0.7, 0.5, 0.4]
    assert changes == {
        "annotate.float_nodes": ["a", "b", "c"],
        "threshold": "kl",
        "annotate.constraints": {"z": {"kind": "any", "bits": 16}},
    }
    assert [one["gain"] for one in best(advice, 2)[0]] == [0.9, 0.7]


def test_the_file_and_the_command(tmp_path: Any) -> None:
    changes = changes_of(["threshold=kl", "annotate.float_nodes=[a]", "profile.load=null"])
    path = write(tmp_path, [row(0.5, "threshold=kl")], changes)
    text = path.read_text()
    assert text.startswith("# @package _global_\n") and "r: 0.5 (alone: loss 1 to 0.5)" in text
    assert yaml.safe_load(text) == {
        "defaults": [{"override /threshold": "kl"}],
        "annotate": {"float_nodes": ["a"]},
        "profile": {"load": None},
    }
    with pytest.raises(ConfigError, match="run of the command line"):
        command(tmp_path, changes)
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "overrides.yaml").write_text("- hardware=vta\n- threshold=mse\n- +profile.load=x\n")
    words = command(tmp_path, changes)
    assert words[-3:] == ["hardware=vta", "experiments=explained", f"hydra.run.dir={tmp_path / 'explained' / 'run'}"]
    assert words[-5:-3] == ["--config-dir", str(tmp_path / "explained")]
