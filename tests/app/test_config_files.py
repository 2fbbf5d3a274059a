"""Configuration files of the user's own: whatever is wrong with one is told with the file and the line."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import yaml
from hydra._internal.core_plugins import file_config_source, importlib_resources_config_source
from hydra._internal.sources_registry import SourcesRegistry

from quantpipe.app import configfiles
from quantpipe.app.configfiles import check_file
from quantpipe.errors import ConfigError
from tests.e2e.program import ROOT

GOOD = (ROOT / "conf" / "hardware" / "vta.yaml").read_text()
BOMB = "a0: &a0 [1, 2]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}, *a{i - 1}]\n" for i in range(1, 40))
WRONG = {
    "pad:\n\tvalue: zero\n": "line {next}, column 1: found character '\\t'",
    "pad:\n    value: zero\n  max: 3\n": "expected <block end>",
    "x: !!python/object/apply:os.system [ls]\n": "could not determine a constructor for the tag",
    "x: !own 1\n": "line {line}, column 4: could not determine a constructor for the tag '!own'",
    "x: !!int abc\n": "invalid literal for int()",
    "x: *nope\n": "undefined alias 'nope'",
    "x: &x [*x]\n": "'x' holds itself",
    "name: twice\n": "the key 'name' twice",
    "x: \0\n": "unacceptable character",
    "---\na: 1\n": "another document",
    "? [a, b]\n: 3\n": "unhashable key",
    "x: " + "[" * 20_000 + "\n": "values lie more than 50 deep",
    BOMB: "more than 100000 values, aliases counted",
}


@pytest.mark.sliced(2)
@pytest.mark.parametrize("libyaml", [True, False])
def test_every_fault_is_named_with_its_place(libyaml: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml, "__with_libyaml__", libyaml and yaml.__with_libyaml__)
    path = tmp_path / "mine.yaml"
    line = GOOD.count("\n") + 1
    for added, said in WRONG.items():
        path.write_text(GOOD + added)
        begin = time.monotonic()
        with pytest.raises(ConfigError) as error:
            check_file(path)
        text = str(error.value)
        assert said.format(line=line, next=line + 1) in text, text
        assert text.startswith(str(path))
        assert "\n" not in text
        assert time.monotonic() - begin < 5


def test_a_file_that_is_no_mapping_or_no_text(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    for data, said in (
        (b"- 1\n", "holds a list"),
        (b"5\n", "holds a int"),
        (b"a: 1\nb: \xff\n", "line 2 is not UTF-8"),
    ):
        path.write_bytes(data)
        with pytest.raises(ConfigError, match=said):
            check_file(path)
    path.write_bytes(b"")
    with pytest.raises(ConfigError, match="bytes; legal are"):
        path.write_bytes(b"#" * (5 << 20))
        check_file(path)


def test_files_of_the_package_pass() -> None:
    for path in [*(ROOT / "conf").rglob("*.yaml"), *(ROOT / "experiments").rglob("*.yaml")]:
        check_file(path)


def test_what_libyaml_takes_and_the_reader_of_the_values_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hydra reads by PyYAML's own parser, which may be stricter than the one that checks."""
    (tmp_path / "hardware").mkdir()
    (tmp_path / "hardware" / "mine.yaml").write_text("pad:\n\tvalue: zero\n")
    monkeypatch.setattr(configfiles, "check_file", lambda path: None)
    with pytest.raises(ConfigError, match="line 2, column 1"):
        configfiles.FileConfigSource("test", f"file://{tmp_path}").load_config("hardware/mine")


def test_a_launchers_process_keeps_the_check() -> None:
    """There Hydra scans for its own readers once more, over the registry that it was handed."""
    configfiles.check_config_files()
    for own in (file_config_source.FileConfigSource, importlib_resources_config_source.ImportlibResourcesConfigSource):
        SourcesRegistry.instance().register(own)
        assert SourcesRegistry.instance().types[own.scheme()].__module__ == configfiles.__name__
