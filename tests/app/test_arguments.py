"""What may be typed: flags anywhere, `experiment=`, `-q`; what the help says and the tab key offers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quantpipe.app.arguments import arranged
from quantpipe.app.complete import VALUES, completions
from quantpipe.app.files import folder_of
from quantpipe.app.help import help_page
from quantpipe.app.settings import GROUPS
from quantpipe.pipeline.settings import COMMANDS, VERBOSITIES
from tests.e2e.program import ROOT


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (["seed=1,2", "-m"], ["-m", "seed=1,2"]),
        (["seed=1", "--cfg", "job"], ["--cfg", "job", "seed=1"]),
        (["-m", "-q", "seed=1"], ["-m", "verbosity=quiet", "seed=1"]),
        (["seed=1", "--quiet"], ["seed=1", "verbosity=quiet"]),
        (["experiment=a", "+experiment=b", "+experiments=c"], ["experiments=a", "experiments=b", "+experiments=c"]),
        (["tracking.experiment=a"], ["tracking.experiment=a"]),
        (["seed=-1", "--config-dir=x", "-cd", "y"], ["--config-dir=x", "-cd", "y", "seed=-1"]),
        (["seed=1", "--info", "plugins"], ["--info", "plugins", "seed=1"]),
        (["--info", "seed=1"], ["--info", "seed=1"]),
        (["-cd"], ["-cd"]),
    ],
)
def test_flags_stand_before_overrides(given: list[str], taken: list[str]) -> None:
    assert arranged(given) == taken


def test_the_help_is_one_page_with_every_group_option_and_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said = help_page("quantpipe")
    assert max(map(len, said.splitlines())) <= 80 and len(said.splitlines()) < 66
    for group in GROUPS:
        assert f"  {group} " in said
        assert all(path.stem in said for path in (folder_of("conf") / group).glob("*.yaml"))
    assert all(path.stem in said for path in folder_of("experiments").glob("*.yaml"))
    for command in COMMANDS[1:]:
        assert f"command={command}" in said or f"also {command}" in said, command


@pytest.mark.parametrize(
    ("line", "offered", "not_offered"),
    [
        ("python run.py hardware=v", {"hardware=vta", "hardware=vta_mul", "hardware=vitis_dpu"}, "hardware=ort_cpu"),
        ("python run.py -m hardware=vta,ort", {"hardware=vta,ort_cpu"}, "hardware=vta"),
        ("python run.py experiment=vta_d", {"experiment=vta_digits"}, "experiments=vta_digits"),
        ("python run.py +experiments=vta_d", {"+experiments=vta_digits"}, "experiments=vta_digits"),
        ("python run.py ha", {"hardware="}, "hardware=vta"),
        ("python run.py search=random search.max_", {"search.max_evaluations=", "search.max_seconds="}, "search="),
        ("python run.py hardware=vta hardware.weights.", {"hardware.weights.granularity="}, "hardware.name="),
        ("python run.py command=comp", {"command=compare"}, "command=check"),
        ("python run.py ", {"model=", "seed=", "experiment=", "evaluate.latency_runs="}, "defaults="),
        ("quantpipe hardware=none_of_that.", set(), "hardware=vta"),
    ],
)
def test_the_tab_key(line: str, offered: set[str], not_offered: str) -> None:
    found = completions(line)
    assert offered <= set(found) and not_offered not in found
    assert all(word.startswith(line.rpartition(" ")[2]) for word in found)


def test_files_by_the_tab_key(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").touch()
    (tmp_path / "more").mkdir()
    found = completions(f"python run.py model.path={tmp_path}/mo")
    assert found == [f"model.path={tmp_path}/model.onnx", f"model.path={tmp_path}/more/"]
    assert VALUES["command"] == COMMANDS and VALUES["verbosity"] == VERBOSITIES


BASH = """
eval "$(python run.py -sc install=bash)"
COMP_LINE="python run.py experiment=vta_d"; COMP_POINT=${#COMP_LINE}; COMP_CWORD=2
hydra_bash_completion; echo "${COMPREPLY[@]}"
"""


@pytest.mark.program
def test_the_tab_key_in_a_shell() -> None:
    """The function that Hydra installs, with the answers of this program."""
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", BASH], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["experiment=vta_digits"]


def test_the_help_comes_without_what_takes_seconds(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['run.py', '--help']; from quantpipe.app.start import main\n"
        "try: main()\nexcept SystemExit as end: print(end.code, sorted({'hydra', 'onnx', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("quantpipe finds") and done.stdout.rstrip().endswith("0 []")
