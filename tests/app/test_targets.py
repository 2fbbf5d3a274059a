"""Where names in the configuration may lead: no path of attributes through quantpipe ends outside of it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import quantpipe
from quantpipe.app.instances import make
from quantpipe.app.named_functions import load_function
from quantpipe.app.targets import home_of, load_dotted, refuse_plugins
from quantpipe.errors import ConfigError
from quantpipe.scoring.workers import Process

FORBIDDEN = {
    *("os", "posix", "posixpath", "subprocess", "importlib", "builtins", "pickle", "_pickle", "sys", "shutil"),
    *("socket", "_socket", "ctypes", "_ctypes", "runpy", "code", "multiprocessing", "cloudpickle"),
}
ENDS = {"os": "system", "sys": "exit", "importlib": "import_module", "shutil": "rmtree", "subprocess": "run"}
DEPTH = 3


def modules_of_quantpipe() -> list[ModuleType]:
    found = []
    for info in pkgutil.walk_packages(quantpipe.__path__, "quantpipe."):
        try:
            found.append(importlib.import_module(info.name))
        except ModuleNotFoundError as error:
            if error.name != "torch":  # an extra
                raise
    return found


def paths_outside() -> Iterator[tuple[str, str, Any]]:
    """(module, path, object) of what attributes of quantpipe's modules lead to outside of it: every attribute of every
    module, and on through the forbidden modules; through any other module until a forbidden one."""
    seen: set[int] = set()  # each foreign module is gone into once; the way into it from each of ours is tried, too
    for module in modules_of_quantpipe():
        rest: list[tuple[str, Any, int]] = [("", module, 0)]
        while rest:
            path, here, depth = rest.pop()
            for name, value in list(vars(here).items()):
                if name.startswith("__") or not name.isidentifier():
                    continue
                there = f"{path}.{name}".lstrip(".")
                own = str(getattr(value, "__module__", "")).startswith("quantpipe")
                if callable(value) and not own and (depth == 0 or here.__name__.split(".")[0] in FORBIDDEN):
                    yield module.__name__, there, value
                elif isinstance(value, ModuleType) and not value.__name__.startswith("quantpipe"):
                    if depth == 0 and value.__name__ in ENDS:
                        yield module.__name__, f"{there}.{ENDS[value.__name__]}", vars(value)[ENDS[value.__name__]]
                    if depth < DEPTH and id(value) not in seen:
                        seen.add(id(value))
                        rest.append((there, value, depth + 1))


def refused(kind: str, target: str) -> bool:
    try:
        load_function(target, "dataset.target") if kind == "function" else load_dotted(target, "dataset._target_", ())
    except ConfigError as error:
        hidden = kind == "class" and "cannot be imported: AttributeError" in str(error)  # module behind its function
        return hidden or "is not allowed" in str(error)
    return False


def test_no_path_of_attributes_leads_out() -> None:
    found = {f"{module}:{path}": value for module, path, value in paths_outside()}
    reached = {str(getattr(value, "__module__", None)).split(".")[0] for value in found.values()}
    assert reached >= {"posix", "builtins", "importlib", "pickle", "sys", "shutil", "socket", "ctypes"}
    assert len(found) > 1000, "the walk must find what it is to refuse"
    assert [target for target in found if not refused("function", target)] == []
    assert [target for target in found if not refused("class", target.replace(":", "."))] == []


@pytest.mark.parametrize(
    "target",
    [
        "quantpipe.graph.execute:os.system",
        "quantpipe.graph.execute:os.path.os.system",
        "quantpipe.app.named_functions:sys.modules.get",
        "quantpipe.errors:nearest.__globals__.get",
        "quantpipe.errors:nearest.__class__",
        "quantpipe.errors:QuantpipeError.__subclasses__",
        "quantpipe.app.console:time.sleep",
        "quantpipe.tracking.mlflow_tracker:_log.handlers.append",
        "quantpipe.app.targets:importlib.import_module",
    ],
)
def test_known_ways_out_are_closed(target: str) -> None:
    assert refused("function", target) and refused("class", target.replace(":", "."))


def test_what_quantpipe_defines_may_be_named_also_where_it_is_imported() -> None:
    assert load_function("quantpipe.data.sources.digits:digits_arrays", "dataset.target")
    assert load_dotted("quantpipe.scoring.workers.Process", "executor", ()).__name__ == "Process"
    assert load_dotted("quantpipe.data.NpzDataset", "dataset", ()).__name__ == "NpzDataset"
    assert load_dotted("quantpipe.pipeline.settings.Splits", "dataset", ()).__name__ == "Splits"


def test_the_parts_of_quantpipe_that_run_what_they_are_given_are_no_targets(tmp_path: Path) -> None:
    """A chain of own functions: one that loads any function when told that it may, one that calls it."""
    touched = tmp_path / "touched"
    shell = {
        "_target_": "quantpipe.app.named_functions.load_function",
        "target": "os:system",
        "key": "x",
        "plugins": ["os"],
    }
    chain = {
        "_target_": "quantpipe.data.user_functions.called",
        "function": shell,
        "where": "x",
        "key": "x",
        "_args_": [f"touch {touched}"],
    }
    for config in (
        shell,
        chain,
        {"_target_": "quantpipe.data.NpzDataset", "keys": chain},
        {**shell, "_partial_": True},
    ):
        with pytest.raises(ConfigError, match="is not allowed"):
            make(config, "dataset")
    assert not touched.exists()


@pytest.mark.parametrize(
    ("key", "target"),
    [
        ("dataset", "quantpipe.search.Annealing"),
        ("tracking", "quantpipe.data.NpzDataset"),
        ("executor", "quantpipe.graph.execute.Session"),
        ("search.algorithm", "quantpipe.data.NpzDataset"),
        ("threshold.activations", "quantpipe.tracking.NullTracker"),
    ],
)
def test_a_class_must_be_one_for_its_place(key: str, target: str) -> None:
    with pytest.raises(ConfigError, match="is not allowed here: it has no"):
        make({"_target_": target}, key)


@pytest.mark.parametrize("key", ["workers", "cooling", "nested.deeper", "list"])
def test_a_class_that_writes_files_is_no_argument(key: str, tmp_path: Path) -> None:
    """Hydra makes arguments before the class that gets them: a handler of logs would empty its file."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    handler: Any = {"_target_": "quantpipe.app.mainlog.LogFile", "filename": str(victim), "mode": "w"}
    name, _, deeper = key.partition(".")
    argument = {deeper: handler} if deeper else [handler] if key == "list" else handler
    with pytest.raises(ConfigError, match="it is not made for options"):
        make({"_target_": "quantpipe.scoring.workers.Process", name: argument}, "executor")
    assert victim.read_text() == "precious"


def test_an_option_s_class_may_be_an_argument() -> None:
    inner = {"_target_": "quantpipe.calibrate.estimators.MSE"}
    assert make({"_target_": "quantpipe.calibrate.estimators.OutputError", "base": inner}, "threshold.activations")


def test_homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_homes.py").write_text(
        "import os\nfrom functools import cache, partial, wraps\n"
        "run = partial(os.system)\nfine = partial(lambda text: [1], 'x')\n"
        "@cache\ndef cached(text):\n    return [1]\n"
        "class Tokens:\n    def __call__(self, text):\n        return [1]\n"
        "    def of(self, text):\n        return [1]\n"
        "tokens = Tokens()\nlist_of = [].append\nshell = os.system\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import own_homes  # type: ignore[import-not-found]

    for name in ("fine", "cached", "tokens", "tokens.of", "Tokens"):
        assert load_function(f"own_homes:{name}", "dataset.tokenizer", ["own_homes"])
    for name in ("run", "list_of", "shell", "os.system"):
        with pytest.raises(ConfigError, match="is not allowed: it is defined in"):
            load_function(f"own_homes:{name}", "dataset.tokenizer", ["own_homes"])
    assert home_of(own_homes.run) == "posix"


def test_plugins_are_said_on_the_command_line_and_are_no_part_of_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="names 'mine', which is neither installed nor in"):
        refuse_plugins(["mine"], ["model.path=x", "plugins=[mine]"])
    Path("mine.py").write_text("raise AssertionError('nothing of it is run before it is asked for')")
    refuse_plugins(["mine"], ["model.path=x", "plugins=[mine]"])
    refuse_plugins([], [])
    with pytest.raises(ConfigError, match=r"is \[mine\] in a configuration file, .* add plugins=\[mine\]"):
        refuse_plugins(["mine"], ["model.path=x"])
    for name in ("os", "subprocess", "importlib.util", "builtins"):
        with pytest.raises(ConfigError, match="a module of Python itself"):
            refuse_plugins([name], [f"plugins=[{name}]"])


def test_targets_of_earlier_versions_go_on_working_with_one_note(caplog: pytest.LogCaptureFixture) -> None:
    package, before = "quantpipe", "search.greedy.Greedy"
    algorithm = load_dotted(f"{package}.{before}", "search.algorithm", ())
    assert algorithm is load_dotted("quantpipe.search.algorithms.greedy.Greedy", "search.algorithm", ())
    assert load_function(f"{package}.data.digits:digits_arrays", "dataset.target") is load_function(
        "quantpipe.data.sources.digits:digits_arrays", "dataset.target"
    )
    assert load_dotted(f"{package}.{before}", "search.algorithm", ()) is algorithm
    assert load_dotted(f"{package}.executors.Process", "executor", ()) is Process
    notes = [r.getMessage() for r in caplog.records if "deprecated" in r.getMessage()]
    assert len([n for n in notes if "Greedy" in n]) == 1 and "algorithms.greedy.Greedy" in notes[0]
    with pytest.raises(ConfigError, match=r"cannot be imported|is not allowed|no attribute"):
        load_dotted("quantpipe.search.greedier.Greedy", "search.algorithm", ())
