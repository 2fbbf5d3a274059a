"""What may be typed: flags anywhere, `experiment=`, `-q`; and what the help says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from quantpipe.app.arguments import arranged
from quantpipe.app.files import folder_of
from quantpipe.app.help import help_page
from quantpipe.app.settings import GROUPS
from quantpipe.pipeline.settings import COMMANDS


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


def test_the_help_comes_without_what_takes_seconds(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['run.py', '--help']; from quantpipe.start import main\n"
        "try: main()\nexcept SystemExit as end: print(end.code, sorted({'hydra', 'onnx', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("quantpipe finds") and done.stdout.rstrip().endswith("0 []")
