"""The hook of commit messages finds what is not `area: what changes`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.documents import commit_subject

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("message", "part"),
    [
        ("plan: choose weights without saturating pairs\n\nThe reason.", None),
        ("tests, docs: count phrases", None),
        ("Merge branch 'main'", None),
        ("Say what is said", "area: what changes"),
        ("plan: choose weights.", "full stop"),
        ("plan: " + "w" * 70, "76 characters"),
        ("plan: choose\nweights", "second line"),
        ("", "area"),
    ],
)
def test_subjects(message: str, part: str | None) -> None:
    found = commit_subject.fault(message)
    assert found is None if part is None else part in (found or "")


def test_the_hook_runs_it(tmp_path: Path) -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    (hook,) = (h for h in hooks if h.get("stages") == ["commit-msg"])
    script = hook["entry"].split()[-1]
    message = tmp_path / "message"
    message.write_text("Say so")
    done = subprocess.run([sys.executable, ROOT / script, message], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "CONTRIBUTING" in done.stderr
