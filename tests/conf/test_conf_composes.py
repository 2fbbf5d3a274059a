"""Every option of every group, and every experiment, composes and makes the objects it describes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException, MissingConfigException
from omegaconf import DictConfig, OmegaConf

from quantpipe.app.configfiles import check_config_files
from quantpipe.app.device_defaults import with_cost
from quantpipe.app.instances import make
from quantpipe.app.main import asset, search_path
from quantpipe.app.settings import GROUPS, shipped_schemas
from quantpipe.hardware.load import load_hardware
from quantpipe.hardware.schemas import resolve_schema
from quantpipe.realize import BACKENDS, FILE_FORMS
from quantpipe.scoring.workers import Process, Serial
from quantpipe.search import FloatFigures, Objective, ObjectiveOptions
from tests.zoo import ZOO, needs_zoo
from website.configuration import defaults, keys

ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "conf"
OPTIONS = sorted((p.parent.name, p.stem) for p in CONF.glob("*/*.yaml"))
EXPERIMENTS = sorted(p.stem for p in (ROOT / "experiments").glob("*.yaml"))


@pytest.fixture(autouse=True)
def hydra() -> Iterator[None]:
    OmegaConf.register_new_resolver("asset", asset, replace=True)
    check_config_files()  # hardware files that are like others are whole behind the app's reader
    with initialize_config_dir(str(CONF), version_base="1.3"):
        yield


def composed(*overrides: str) -> DictConfig:
    return compose("config", overrides=[*overrides, *search_path()])


def build(config: DictConfig) -> None:
    """Everything that the app makes of a configuration before it looks at model and data."""
    plain = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    assert isinstance(plain, dict)
    spec = load_hardware(plain["hardware"])
    resolve_schema(spec, plain["schema"], shipped_schemas())
    assert plain["realize"]["backend"] in (*BACKENDS, *FILE_FORMS, "auto")
    assert Path(plain["model"]["path"]).is_file()
    make(config.dataset, "dataset")
    make(config.threshold.activations, "threshold.activations")
    make(config.search.algorithm, "search.algorithm")
    make(config.executor, "executor")
    make(config.tracking, "tracking", launch_folder=".", parent_key=None)
    objective = ObjectiveOptions(**with_cost(plain["objective"], spec))
    Objective.of(objective, FloatFigures(accuracy=0.9, start_cost=100.0))


def test_candidates_are_measured_in_several_processes_unless_asked_otherwise() -> None:
    assert isinstance(make(composed().executor, "executor"), Process)
    assert isinstance(make(composed("executor=serial").executor, "executor"), Serial)


def test_every_group_is_known_to_the_app_and_explained_in_the_defaults_list() -> None:
    groups = {group for group, _ in OPTIONS}
    assert groups == set(GROUPS)
    lines = (CONF / "config.yaml").read_text().splitlines()
    for group in groups:
        assert "#" in entry(lines, group)


def entry(lines: list[str], group: str) -> str:
    """The line of a group in the defaults list, with the comment lines right above it."""
    (at,) = (number for number, text in enumerate(lines) if text.startswith(f"  - {group}: "))
    first = at
    while lines[first - 1].startswith("  # "):
        first -= 1
    return " ".join(lines[first : at + 1])


def test_the_defaults_list_names_every_option() -> None:
    lines = (CONF / "config.yaml").read_text().splitlines()
    for group, option in OPTIONS:
        if group == "schema":  # their names are in docs/numerics.md
            continue
        assert option in re.findall(r"\w+", entry(lines, group)), f"{group}={option}"


@pytest.mark.sliced(72)
@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_option(group: str, option: str) -> None:
    fitting = {
        ("schema", "symmetric_with_power2_scale"): ["hardware=vta"],
        ("objective", "callable"): ["objective.target='quantpipe.metrics.outputs:kl_divergence'"],
    }.get((group, option), [])
    build(composed(f"{group}={option}", *fitting))


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_option_begins_with_what_it_is(group: str, option: str) -> None:
    first = (CONF / group / f"{option}.yaml").read_text().splitlines()[0]
    assert first.startswith("# ")
    assert len(first) > 20


@pytest.mark.parametrize("group", ["effort", "model", "objective", "realize", "recover", "search", "threshold"])
def test_common_keys_of_a_group_are_explained_in_its_default_alone(group: str) -> None:
    usual = CONF / group / f"{defaults()[group]}.yaml"
    known = {key.path: key.comment for key in keys(usual, (group,))}
    assert all(known.values())
    for path in sorted((CONF / group).glob("*.yaml")):
        if path != usual:
            own = {key.path: key.comment for key in keys(path, (group,), common=False)}
            assert not [key for key, comment in own.items() if comment and comment == known.get(key)], path
            assert all(own.values()) or path.read_text().endswith(f"# Common keys: {usual.name}\n"), path


@pytest.mark.sliced(9)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if needs_zoo(name):
        if not ZOO.is_dir():
            pytest.skip(f"its model lies in the zoo, which is not at {ZOO}; set QUANTPIPE_ZOO")
        monkeypatch.setenv("QUANTPIPE_ZOO", str(ZOO))
    build(composed(f"+experiments={name}"))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_says_what_it_is_for(name: str) -> None:
    text = (ROOT / "experiments" / f"{name}.yaml").read_text()
    assert text.startswith("# @package _global_\n")
    for word in ("# Question:", "# Command:", f"experiments={name}", "# Expected:"):
        assert word in text
    assert yaml.safe_load(text)


def test_an_experiment_changes_only_what_it_names() -> None:
    plain, changed = composed(), composed("+experiments=vta_host_ends")
    differing = {key for key in plain if plain[key] != changed[key]}
    assert differing == {"hardware", "annotate"}


@pytest.mark.parametrize("group", sorted({group for group, _ in OPTIONS}))
def test_an_unknown_option_lists_the_legal_ones(group: str) -> None:
    with pytest.raises(MissingConfigException) as error:
        composed(f"{group}=nope")
    assert {option for g, option in OPTIONS if g == group} <= set(str(error.value).split())


def test_an_unknown_key_is_refused() -> None:
    with pytest.raises(ConfigCompositionException, match=r"search\.nope"):
        composed("search.nope=1")
