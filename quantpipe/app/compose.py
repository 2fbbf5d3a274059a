"""The configuration from the files of conf/, for callers that are not a command line.

Hydra keeps what it composes in objects of the whole process, which belong to the caller's own program (it may be a
Hydra program itself, or have several threads). The files need little of Hydra: a group's option is one file, and
config.yaml stands over all of them. So they are read here directly, with OmegaConf, and nothing global is touched. A
test compares this with what Hydra makes of every option of every group.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from functools import cache
from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from quantpipe.app.files import asset, folder_of
from quantpipe.app.renamed import config_as_now_named
from quantpipe.app.targets import PLUGINS
from quantpipe.artifacts import plain
from quantpipe.errors import ConfigError, HardwareError, nearest
from quantpipe.hardware.like import taken_over

HARDWARE = "hardware"
"""The group whose files may be like others."""
OPTION = "option"
"""The key of a given mapping that names the option whose keys it changes."""
SEVERAL = ("realize",)
"""Groups of which several options may be taken at once, as a list."""
LEFT_OUT = ("defaults", "hydra")
"""Parts of config.yaml that are about Hydra."""
_REFERENCE = "${"
_ASSET = re.compile(r"\$\{asset:([^}]+)\}")


def option_names(group: str) -> list[str]:
    """Return every option of a group, plug-ins included."""
    return sorted({path.stem for folder in _folders() for path in (folder / group).glob("*.yaml")})


def option(group: str, name: str) -> dict[str, Any]:
    """Return the content of one option's file.

    Raises ConfigError, with the legal names, for an unknown name.
    """
    for folder in _folders():
        path = folder / group / f"{name}.yaml"
        if "/" not in name and path.is_file():
            return deepcopy(_shipped_hardware(path) if group == HARDWARE else _shipped(path, group))
    legal = option_names(group)
    raise ConfigError(f"has no option {name!r}{nearest(name, legal)}; legal are {', '.join(legal)}", where=group)


def whole_hardware(content: Mapping[str, Any], beside: Path | None = None) -> dict[str, Any]:
    """Return the content of a hardware file with the content of the file that it is `like`, without `like`.

    `beside` is the folder of the file, which may hold others of its kind. Raises a QuantpipeError for an unknown name
    in `like`, and for a file that is like itself.
    """

    def read(name: str) -> Mapping[str, Any]:
        path = hardware_file(name, beside)
        if path is not None:
            return deepcopy(_shipped(path, HARDWARE)) if path.parents[1] in _folders() else read_yaml(path, HARDWARE)
        near = {path.stem for path in beside.glob("*.yaml")} if beside is not None else set()
        legal = sorted({*option_names(HARDWARE), *near})
        raise HardwareError(
            f"like is {name!r}{nearest(name, legal)}; legal are {', '.join(legal)}",
            stage=HARDWARE,
            where=str(content.get("name", "?")),
        )

    return taken_over(deepcopy(dict(content)), read)


def hardware_file(name: str, beside: Path | None = None) -> Path | None:
    """Return the hardware file of a name, in the folder `beside` or among the options; None for an unknown name."""
    folders = (*(() if beside is None else (beside,)), *(folder / HARDWARE for folder in _folders()))
    return next((path for folder in folders if "/" not in name and (path := folder / f"{name}.yaml").is_file()), None)


def read_hardware(path: Path) -> dict[str, Any]:
    """Return the whole content of a user's hardware file."""
    return whole_hardware(read_yaml(path, HARDWARE), path.parent)


def read_yaml(path: Path, key: str) -> dict[str, Any]:
    """Return a file as plain data, with its references to variables of the environment resolved.

    Raises ConfigError for a file that cannot be read, is no mapping, or builds upon others.
    """
    try:
        found = _with_assets(OmegaConf.to_container(OmegaConf.load(path), resolve=False))
        if _REFERENCE in path.read_text(encoding="utf-8"):
            found = OmegaConf.to_container(OmegaConf.create(found), resolve=True)
    except (OSError, ValueError, YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"{path} cannot be read: {' '.join(str(error).split())[:300]}", where=key) from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path} holds a {type(found).__name__}; legal is a mapping", where=key)
    if "defaults" in found:
        raise ConfigError(
            f"{path} has a defaults list, which only the command line composes; give the whole content", where=key
        )
    return {str(name): value for name, value in found.items()}


def defaults() -> dict[str, str]:
    """Return the default option of each group, as config.yaml's defaults list has them."""
    entries = _top()["defaults"]
    return {str(group): str(name) for entry in entries if isinstance(entry, Mapping) for group, name in entry.items()}


def changed(content: Mapping[str, Any], changes: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the content of an option with some of its keys changed; ConfigError for an unknown key."""
    return _merged(dict(content), _plain(changes, where), where)


def composed(chosen: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return (the configuration as plain data, the option of each group).

    `chosen` is the whole content of a group, where it does not come from an option. `given` holds differences from the
    defaults, by top-level key. For a group it is the name of an option, or a mapping of keys of the default option (of
    another one if it has the key `option`). For anything else it is the value, or a mapping of keys.

    Raises ConfigError for options and keys that do not exist.
    """
    chosen, given = config_as_now_named(chosen), config_as_now_named(given)
    config = {key: value for key, value in deepcopy(_top()).items() if key not in LEFT_OUT}
    names = defaults()
    legal = (*names, *config)
    for key in given:
        if key not in legal:
            raise ConfigError(f"is no key{nearest(key, legal)}; legal are {', '.join(legal)}", where=key)
    for group in names:
        if group in chosen:
            names[group] = str(chosen[group].get("name", "given"))
            content = whole_hardware(chosen[group]) if group == HARDWARE else dict(chosen[group])
            config[group] = _merged(content, config.get(group, {}), group)
            continue
        names[group], changes = _of_option(group, given.get(group), names[group])
        config[group] = _merged({**_content(group, names[group]), **config.get(group, {})}, changes, group)
    for key, value in given.items():
        if key not in names and value is not None:
            config[key] = _value(config[key], _plain(value, key), key)
    return _resolved(config), names


def schemas() -> dict[str, Mapping[str, Any]]:
    """Return every option of the schema group but `auto`, by name."""
    return {name: option("schema", name) for name in option_names("schema") if name != "auto"}


def _resolved(config: dict[str, Any]) -> dict[str, Any]:
    """Return a node with its references resolved; OmegaConf makes a node of every number, which is slow without any."""
    if not _refers(config):
        return config
    found = OmegaConf.to_container(OmegaConf.create(config), resolve=True)
    return {str(key): value for key, value in found.items()} if isinstance(found, dict) else {}


def _refers(node: Any) -> bool:
    if isinstance(node, Mapping):
        return any(map(_refers, node.values()))
    if isinstance(node, list | tuple):
        return any(map(_refers, node))
    return isinstance(node, str) and _REFERENCE in node


def _content(group: str, name: str) -> dict[str, Any]:
    """Return the content of an option, or of several in brackets, `[qdq,c]`, one over the other as Hydra lays them."""
    if not name.startswith("["):
        return option(group, name)
    found: dict[str, Any] = {}
    for one in name.strip("[]").split(","):
        for key, value in option(group, one.strip()).items():
            both = isinstance(value, dict) and isinstance(found.get(key), dict)
            found[key] = {**found[key], **value} if both else value
    return found


def _of_option(group: str, given: Any, default: str) -> tuple[str, Mapping[str, Any]]:
    if given is None:
        return default, {}
    if isinstance(given, str):
        return given, {}
    if isinstance(given, list | tuple) and given and group in SEVERAL:
        return f"[{','.join(str(name) for name in given)}]", {}
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"is {given!r}; legal is the name of an option ({', '.join(option_names(group))}), or a mapping of the "
            "group's keys",
            where=group,
        )
    changes = {str(key): value for key, value in given.items() if key != OPTION}
    return str(given.get(OPTION, default)), _plain(changes, group)


def _merged(there: dict[str, Any], changes: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the content with the changes made, mapping by mapping; ConfigError for an unknown key."""
    for key, value in changes.items():
        if key not in there:
            raise ConfigError(
                f"is no key{nearest(str(key), there)}; below {where} there are {', '.join(there)}",
                where=f"{where}.{key}",
            )
        there[key] = _value(there[key], value, f"{where}.{key}")
    return there


def _value(there: Any, given: Any, where: str) -> Any:
    """Return the changed value: a mapping changes a mapping; one of another class, and any other value, replaces it.

    A section of a hardware file may be left out (None), if its reader allows it.
    """
    if isinstance(given, Mapping) and isinstance(there, dict):
        another = "_target_" in given and given["_target_"] != there.get("_target_")
        return dict(given) if another else _merged(dict(there), given, where)
    if isinstance(there, dict) and not (given is None and where.startswith(f"{HARDWARE}.")):
        raise ConfigError(f"is {given!r}; legal is a mapping of {', '.join(there)}", where=where)
    if isinstance(there, list) and not isinstance(given, list) and not isinstance(given, bool):
        raise ConfigError(f"is {given!r}; legal is a list{f', such as {there}' if there else ''}", where=where)
    return given


def _plain(value: Any, key: str) -> Any:
    try:
        return plain(value)
    except TypeError as error:
        raise ConfigError(f"{error}; legal are words, numbers, lists and mappings", where=key) from error


def _with_assets(node: Any) -> Any:
    """Return the content with package files by path: the command line registers a resolver, which would be global."""
    if isinstance(node, dict):
        return {key: _with_assets(value) for key, value in node.items()}
    if isinstance(node, str) and (name := _ASSET.fullmatch(node)) is not None:
        return asset(name[1])
    return node


@cache
def _shipped(path: Path, group: str) -> dict[str, Any]:
    """Return a shipped file, which never changes while the program runs; it is cached because parsing is slow."""
    return read_yaml(path, group)


@cache
def _shipped_hardware(path: Path) -> dict[str, Any]:
    return whole_hardware(_shipped(path, HARDWARE))


@cache
def _top() -> dict[str, Any]:
    """Return config.yaml as it is written: its Hydra section refers to values that only Hydra knows."""
    found = OmegaConf.to_container(OmegaConf.load(folder_of("conf") / "config.yaml"), resolve=False)
    return {str(key): value for key, value in found.items()} if isinstance(found, dict) else {}


@cache
def _folders() -> tuple[Path, ...]:
    return (folder_of("conf"), *_plugin_folders())


def _plugin_folders() -> Iterator[Path]:
    """Return the conf packages that plug-ins announce, if they are in a folder."""
    for entry in entry_points(group=PLUGINS):
        folder = Path(str(files(entry.value)))
        if folder.is_dir():
            yield folder
