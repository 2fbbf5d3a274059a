"""Configuration without Hydra is what Hydra makes of the same files."""

from __future__ import annotations

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from quantpipe.app.compose import OPTION, composed, defaults, option, option_names, schemas
from quantpipe.app.files import asset, folder_of
from quantpipe.app.settings import GROUPS, shipped_schemas
from quantpipe.errors import ConfigError


def test_configuration_is_what_hydra_makes_of_the_files() -> None:
    """Hydra would do more with an option's file only if it had a defaults list or a package directive: none has, so two
    configurations with other options in every group show that the rest is the same."""
    assert tuple(defaults()) == GROUPS
    every = {group: option_names(group) for group in GROUPS}
    for group, options in every.items():
        assert options == sorted(path.stem for path in (folder_of("conf") / group).glob("*.yaml"))
        for name in options:
            text = (folder_of("conf") / group / f"{name}.yaml").read_text()
            assert "@package" not in text and "defaults" not in option(group, name), (group, name)
    OmegaConf.register_new_resolver("asset", asset, replace=True)
    with initialize_config_dir(str(folder_of("conf")), version_base="1.3"):
        assert schemas() == shipped_schemas()
        for chosen in (defaults(), {group: options[len(options) // 2] for group, options in every.items()}):
            theirs = compose("config", overrides=[f"{group}={name}" for group, name in chosen.items()])
            ours, names = composed({}, chosen)
            assert ours == OmegaConf.to_container(theirs, resolve=True)
            assert names == chosen
    assert not GlobalHydra.instance().is_initialized()


def test_no_option_has_a_key_that_is_ours() -> None:
    assert not [(g, name) for g in GROUPS for name in option_names(g) if OPTION in option(g, name)]


def test_mappings_change_what_they_name_and_nothing_is_remembered() -> None:
    changes = {"search": {OPTION: "greedy", "max_evaluations": 9, "algorithm": {"order": "topological"}}, "seed": 3}
    config, names = composed({}, changes)
    assert (names["search"], config["seed"]) == ("greedy", 3)
    assert (config["search"]["max_evaluations"], config["search"]["algorithm"]["order"]) == (9, "topological")
    assert config["search"]["algorithm"]["_target_"] == "quantpipe.search.algorithms.greedy.Greedy"
    another = {"threshold": {"activations": {"_target_": "quantpipe.calibrate.estimators.MaxRange"}}}
    assert composed({}, another)[0]["threshold"]["activations"] == another["threshold"]["activations"]
    assert composed({}, {"search": "greedy"})[0]["search"]["max_evaluations"] == 400
    assert composed({}, {})[0]["seed"] == 0
    with pytest.raises(ConfigError, match="below search there are"):
        composed({}, {"search": {"order": "topological"}})
