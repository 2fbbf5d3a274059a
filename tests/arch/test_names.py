"""The distribution's name: `quantpipe` belongs to somebody else's package, so nobody may be told to install that."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("quantpipe", "conf", "docs", "experiments", "benchmarks", "tests", ".ci")
STRANGERS = re.compile(r"(?:install|add)(?:\s+-\S+)*\s+['\"]?quantpipe(?![\w-])")
HERE = Path(__file__).name
ALLOWED = "brings a stranger's code"


def texts() -> list[Path]:
    folders = [p for part in PARTS for p in (ROOT / part).rglob("*") if p.is_file()]
    kinds = (".py", ".md", ".yaml", ".yml", ".toml", ".j2", ".sh", "")
    return [p for p in (*ROOT.glob("*.*"), *folders) if p.suffix in kinds and p.name != HERE and p.is_file()]


def test_no_advice_names_the_strangers_package() -> None:
    assert STRANGERS.search("pip install 'quantpipe[audio]'") and STRANGERS.search("pip install quantpipe")
    assert not STRANGERS.search("pip install quantpipe-onnx") and not STRANGERS.search("pip install ./quantpipe")
    found = []
    for path in texts():
        for line in path.read_text(encoding="utf-8", errors="ignore").splitlines():
            if STRANGERS.search(line) and ALLOWED not in line:
                found.append(f"{path.relative_to(ROOT)}: {line.strip()[:120]}")
    assert found == []


def test_the_distribution_has_a_name_of_its_own_and_hydra_its_security_fix() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == "quantpipe-onnx" and project["scripts"] == {"quantpipe": "quantpipe.start:main"}
    (hydra,) = (text for text in project["dependencies"] if text.startswith("hydra-core"))
    assert ">=1.3.4" in hydra
    assert "(>= 1.3.4, < 1.5" in (ROOT / "docs" / "dependencies.md").read_text()


def test_what_was_measured_on_samples_is_not_called_proved() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    docstring = (ROOT / "quantpipe" / "__init__.py").read_text().split('"""')[1]
    for text in (project["description"], docstring):
        assert not re.search(r"\bproo?[fv]", text, re.I) and "check" in text
