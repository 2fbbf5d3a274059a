"""Functions that the configuration names: which packages may be named, and what is said of the others."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from quantpipe.app.named_functions import FOR_DATA, functions_of, load_function
from quantpipe.app.targets import allowed_packages
from quantpipe.errors import ConfigError


def test_functions_of_quantpipe_need_no_permission() -> None:
    found = load_function("quantpipe.data.sources.digits:digits_arrays", "dataset.target")
    assert len(found()[0]) == 1797


def test_a_package_must_be_allowed_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_words.py").write_text(
        "class Inner:\n    @staticmethod\n    def tokens(text):\n        return [1]\nnumber = 3\n"
    )
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(
        ConfigError, match=r"dataset\.tokenizer: .*not allowed; legal are .*quantpipe.*plugins=\[own_words\]"
    ):
        functions_of({"tokenizer": "own_words:Inner.tokens"}, [], tmp_path)
    assert "own_words" not in sys.modules
    found = functions_of({"tokenizer": "own_words:Inner.tokens", "feature": None}, ["own_words"], tmp_path)
    assert found["tokenizer"]("x") == [1]
    with pytest.raises(ConfigError, match=r"is a int; legal is a function"):
        load_function("own_words:number", "dataset.target", ["own_words"])
    with pytest.raises(ConfigError, match=r"cannot be imported: AttributeError"):
        load_function("own_words:gone", "dataset.target", ["own_words"])


@pytest.mark.parametrize(
    "target", ["os.system", "quantpipe.data.sources.digits", "quantpipe:", ":x", 3, "a b:c", "os:path.join(1)"]
)
def test_what_is_no_name_of_a_function(target: object) -> None:
    with pytest.raises(ConfigError, match=r"legal is package\.module:function"):
        load_function(target, "dataset.target", ["os"])


def test_modules_of_python_itself_are_not_allowed() -> None:
    with pytest.raises(ConfigError, match=r"'os:system' is not allowed"):
        load_function("os:system", "dataset.target")


def test_allowed_packages() -> None:
    assert allowed_packages()[0] == "quantpipe"
    assert "mine" in allowed_packages(["mine"])


@pytest.mark.parametrize(
    "target",
    [
        "quantpipe.app.apply:run",
        "quantpipe.app.main:main",
        "quantpipe.app.named_functions:load_function",
        "quantpipe.artifacts.files:write_text",
        "quantpipe.data.sources.digits:_rows",
        "quantpipe.data.sources.digits:digits_arrays.__wrapped__",
        "quantpipe.data:NpzDataset",
        "quantpipe.passwords:remember",
        "quantpipe:quantize",
    ],
)
def test_functions_that_are_not_meant_for_data_are_rejected(target: str) -> None:
    for key in ("dataset.tokenizer", "dataset.target", "dataset.feature", "objective.target"):
        with pytest.raises(ConfigError) as error:
            load_function(target, key)
        assert str(error.value).startswith(key) and "\n" not in str(error.value)


def test_every_function_of_quantpipe_but_those_for_data_is_rejected() -> None:
    import importlib
    import pkgutil

    import quantpipe

    accepted = set()
    for module in pkgutil.walk_packages(quantpipe.__path__, "quantpipe."):
        if module.name.startswith(
            ("quantpipe.app", "quantpipe.api", "quantpipe.tracking", "quantpipe.data", "quantpipe.metrics")
        ):
            for name, found in vars(importlib.import_module(module.name)).items():
                if callable(found) and not name.startswith("__"):
                    try:
                        load_function(f"{module.name}:{name}", "dataset.target")
                    except ConfigError:
                        continue
                    accepted.add(found.__module__)
    assert accepted == set(FOR_DATA)
