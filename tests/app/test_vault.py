"""What is a password in an address, how it is taken out of a command line, and what Hydra may instantiate."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra._internal.hydra import Hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import OmegaConf

from quantpipe import passwords
from quantpipe.app import conceal_passwords as vault
from quantpipe.app import loader
from quantpipe.app.configfiles import FileConfigSource
from quantpipe.app.main import folder_of
from quantpipe.app.outlets import ConcealingRecord, ConcealingStream
from quantpipe.errors import ConfigError, QuantpipeError
from quantpipe.passwords import conceal, concealed, encoded, remember, remember_address, secrets_in, without_passwords

HARD = "https://user:p@ss/w:Q@host:5000/x"


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(passwords, "_remembered", set())
    before = {name for name in os.environ if name.startswith(vault.VARIABLE)}
    yield
    for name in [n for n in os.environ if n.startswith(vault.VARIABLE) and n not in before]:
        del os.environ[name]


@pytest.mark.parametrize(
    ("address", "secret", "shown"),
    [
        (HARD, "p@ss/w:Q", "https://user:***@host:5000/x"),
        ("postgresql+psycopg2://me:s%40x@h/db", "s%40x", "postgresql+psycopg2://me:***@h/db"),
        ("http://:onlypass@h", "onlypass", "http://:***@h"),
        ("https://token123@h", "token123", "https://***@h"),
        ("postgresql://h/db?user=a&password=bc#d", "bc", "postgresql://h/db?user=a&password=***#d"),
        ("http://localhost:5000", None, "http://localhost:5000"),
        ("sqlite:////a/b:c@d.db", None, "sqlite:////a/b:c@d.db"),
        ("postgresql://me@h/db", None, "postgresql://me@h/db"),
        ("http://u:${oc.env:PW}@h", None, "http://u:***@h"),
        ("/srv/models/a.onnx", None, "/srv/models/a.onnx"),
    ],
)
def test_what_is_secret_in_an_address(address: str, secret: str | None, shown: str) -> None:
    assert list(secrets_in(address)) == ([] if secret is None else [secret])
    assert without_passwords(address) == shown and without_passwords(shown) == shown
    assert conceal(f"see {address} there") == f"see {shown} there"
    assert concealed({"a": [address, 1, None]}) == {"a": [shown, 1, None]}


def test_a_password_is_encoded_once() -> None:
    assert encoded(HARD) == "https://user:p%40ss%2Fw%3AQ@host:5000/x" == encoded(encoded(HARD))
    assert encoded("http://host:5000/a@b") == "http://host:5000/a@b"


def test_what_is_remembered_is_found_in_every_spelling_and_in_parts() -> None:
    remember_address("https://user:first/second@rest@host")
    for text in ("first/second@rest", "first%2Fsecond%40rest", "no route to second", "rest of"):
        assert conceal(text) == text or "***" in conceal(text)
    assert conceal("first%2Fsecond%40rest, first/second@rest, second") == "***, ***, ***"
    remember("abc")
    assert conceal("abc") == "abc", "too short to be looked for"
    remember_address("postgresql://postgres:postgres@host")
    assert conceal("postgresql://x") == "postgresql://x"


def test_errors_streams_and_logs_are_concealed(capsys: pytest.CaptureFixture[str]) -> None:
    remember_address(HARD)
    assert "p@ss" not in str(QuantpipeError(f"no {HARD}", where="x")) + str(ConfigError("p@ss/w:Q"))
    stream = ConcealingStream(sys.stdout)
    print(f"to {HARD}", file=stream)
    stream.writelines(["p@ss/w:Q\n"])
    assert capsys.readouterr().out == "to https://user:***@host:5000/x\n***\n"
    try:
        raise ValueError(HARD)
    except ValueError:
        record = ConcealingRecord("n", logging.ERROR, "p", 1, "at %s", (HARD,), sys.exc_info())
    line = logging.Formatter("%(message)s").format(record)
    assert "Traceback" in line and "p@ss" not in line and "user:***@host" in line


def test_the_command_line_is_cleared_of_addresses_with_passwords() -> None:
    given = [
        "-m",
        "--config-dir",
        f"tracking.uri={HARD}",
        'tracking.uri="http://u:p w@h"',
        "tracking.uri=http://u:pass1@h,http://u:pass2@h",
        "+x={a: 'http://u:pass1@h', b: 1}",
        "seed=3",
        "tracking.uri=http://h:5000",
    ]
    found = vault.without_secrets(given)
    assert found[:2] == given[:2] and found[6:] == given[6:]
    assert not any(secret in text for text in found for secret in ("p@ss", "p w", "pass1", "pass2"))
    reference = found[2].partition("=")[2]
    assert OmegaConf.create({"a": reference}).a == HARD
    one, two = found[4].partition("=")[2].split(",")
    assert found[5] == f"+x={{a: '{one}', b: 1}}" and one != two
    assert vault.shown(found[2]) == "tracking.uri=https://user:***@host:5000/x"
    assert vault.without_secrets(given) == found, "the same value has the same reference"


def composed(tmp_path: Path, text: str, *overrides: str) -> object:
    """The configuration with one more file of the user's, as the program composes it."""
    (tmp_path / "tracking").mkdir()
    (tmp_path / "tracking" / "own.yaml").write_text(text)
    loader.install()
    GlobalHydra.instance().clear()
    try:
        made = Hydra.create_main_hydra_file_or_module(None, None, str(folder_of("conf")), "run")
        overrides = ("tracking=own", f"hydra.searchpath=[file://{tmp_path}]", *overrides)
        return made.compose_config("config", list(overrides), RunMode.RUN)
    finally:
        GlobalHydra.instance().clear()


def test_an_address_in_a_file_is_replaced_by_a_reference(tmp_path: Path) -> None:
    config = composed(tmp_path, f"defaults: [mlflow]\nuri: {HARD}\nrun_name: plain\n")
    text = OmegaConf.to_yaml(config)
    assert "p@ss" not in text and "${oc.env:QUANTPIPE_SECRET_" in text
    assert config.tracking.uri == HARD  # type: ignore[attr-defined]


HOSTILE = {
    "callback": "hydra:\n  callbacks:\n    x:\n      _target_: os.system\n      command: touch {file}\n",
    "own function": "hydra:\n  callbacks:\n    x:\n      _target_: quantpipe.app.named_functions.load_function\n",
    "no callback": "hydra:\n  callbacks:\n    x:\n      _target_: quantpipe.data.NpzDataset\n",
    "through": "hydra:\n  callbacks:\n    x:\n      _target_: quantpipe.graph.execute.os.system\n",
    "nested": "hydra:\n  callbacks:\n    x:\n      _target_: quantpipe.app.sweep.SweepEnd\n      y:\n"
    "        - _target_: subprocess.run\n",
    "written": "hydra:\n  callbacks:\n    x:\n      _target_: quantpipe.app.sweep.SweepEnd\n      y:\n"
    "        _target_: quantpipe.app.mainlog.LogFile\n        filename: '{file}'\n",
    "launcher": "hydra:\n  launcher:\n    _target_: subprocess.Popen\n",
    "hydra's own": "hydra:\n  callbacks:\n    x:\n      _target_: hydra.utils.instantiate\n",
    "logging": "hydra:\n  job_logging:\n    handlers:\n      x:\n        (): subprocess.Popen\n"
    "        args: [touch, '{file}']\n",
    "logging, through": "hydra:\n  job_logging:\n    handlers:\n      x:\n        class: logging.os.system\n",
    "own plug-in": "hydra:\n  callbacks:\n    x:\n      _target_: quantpipe.app.sweep.SweepEnd\n"
    "      y: {{_target_: numpy.memmap}}\nplugins: [numpy]\n",
}


@pytest.mark.sliced(8)
@pytest.mark.parametrize("case", HOSTILE)
def test_hydra_instantiates_nothing_from_elsewhere(tmp_path: Path, case: str) -> None:
    """Neither from a file, whose header leads out of its group, nor where the command line names it."""
    touched = tmp_path / "touched"
    content = HOSTILE[case].format(file=touched)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "own.yaml").write_text("# @package _global_\ndefaults:\n  - mlflow\n" + content)
    with pytest.raises(ConfigError, match="its header puts it into the package '_global_'"):
        FileConfigSource("own", f"file://{tmp_path}").load_config("other/own")
    config = composed(tmp_path, "defaults: [mlflow]\n")
    OmegaConf.set_struct(config, False)  # type: ignore[arg-type]
    config = OmegaConf.merge(config, OmegaConf.create(content))
    with pytest.raises(ConfigError, match=r"^(hydra\.[a-z_]+|plugins)"):
        loader._check_hydra(config)  # type: ignore[arg-type]
    assert not touched.exists()


@pytest.mark.parametrize("part", ["job_logging", "hydra_logging", "callbacks", "launcher", "sweeper", "job", "runtime"])
@pytest.mark.parametrize("place", ["tracking", "experiments", ""])
def test_no_file_sets_what_hydra_runs(place: str, part: str, tmp_path: Path) -> None:
    """A handler that empties a file, in an option of a group, an experiment, a file at the top."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    handler = {"class": "logging.FileHandler", "filename": str(victim), "mode": "w"}
    inner = {"version": 1, "handlers": {"x": handler}, "root": {"handlers": ["x"]}}
    for header in ("# @package hydra\n", "# @package _global_\n"):
        content = {part: inner} if header.endswith("hydra\n") else {"hydra": {part: inner}}
        path = tmp_path / place / "own.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(header + OmegaConf.to_yaml(OmegaConf.create(content)))
        source = FileConfigSource("own", f"file://{tmp_path}")
        with pytest.raises(ConfigError, match=r"its header puts it|it sets hydra\.") as error:
            source.load_config(f"{place}/own".lstrip("/"))
        assert str(path) in str(error.value) and "\n" not in str(error.value)
    assert victim.read_text() == "precious"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("hardware", "defaults: [mine]\n", "which hardware files do not take"),
        ("hardware", "defaults: 5\n", "its defaults are 5"),
        ("tracking", "defaults: [mlflow@hydra]\n", "other options of tracking"),
        ("tracking", "defaults: [/hydra/job_logging: default]\n", "other options of tracking"),
        ("tracking", "defaults: [override /search: greedy]\n", "other options of tracking"),
        ("experiments", "defaults: [override /hydra/job_logging: none]\n", "options of this program's groups"),
        ("experiments", "defaults: [tracking@hydra.callbacks: mlflow]\n", "options of this program's groups"),
        ("experiments", "hydra.job_logging: 3\n", "it sets hydra.job_logging"),
        ("hydra/job_logging", "version: 1\n", "no file sets what Hydra itself runs"),
    ],
)
def test_defaults_lead_nowhere_else(name: str, content: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / name / "own.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(content)
    with pytest.raises(ConfigError, match=said):
        FileConfigSource("own", f"file://{tmp_path}").load_config(f"{name}/own")


@pytest.mark.program
def test_shipped_files_stay_in_their_sections() -> None:
    for name in ("conf", "experiments"):
        for path in sorted(folder_of(name).rglob("*.yaml")):
            group = path.relative_to(folder_of("conf").parent if name == "experiments" else folder_of("conf"))
            source = FileConfigSource("main", f"file://{path.parents[len(group.parts) - 1]}")
            assert source.load_config(str(group.with_suffix(""))).config is not None


def test_what_hydra_ships_is_composed(tmp_path: Path) -> None:
    assert composed(tmp_path, "defaults: [mlflow]\n", "hydra/job_logging=none", "hydra/hydra_logging=disabled")
