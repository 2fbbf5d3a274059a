"""Where a configuration file may write: an option of a group into its own section, no file into Hydra's settings.

Hydra makes what stands under `hydra` before the program is asked: handlers of logs open files, callbacks and launchers
run code. A file that somebody passes on must not name any of them; the command line may.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from quantpipe.errors import ConfigError

EXPERIMENTS = "experiments"
HARDWARE = "hardware"
OF_HYDRA: Mapping[str, tuple[str, ...]] = {
    "run": ("dir",), "sweep": ("dir", "subdir"), "sweeper": ("params",), "mode": (), "launcher": ("n_jobs",),
}  # fmt: skip
"""What files may set of Hydra's own settings: where runs are written, and what a sweep goes through."""
OWN_LEGAL = "legal is the group's own section, without a header"


def check_own_package(config: Any, header: Mapping[str, str | None], config_path: str, file: Path) -> None:
    """Reject a file that writes into other sections than its own.

    `config`: Its content, a configuration of OmegaConf. `header`: What its leading comment states, `package` among it.
    `config_path`: Its group and name, as Hydra has them. Raises ConfigError: Where its header or a key leads elsewhere,
    or its defaults list does.
    """
    group = config_path.strip("/").rpartition("/")[0]
    package = header.get("package")
    content = OmegaConf.to_container(config, resolve=False) if isinstance(config, DictConfig) else {}
    if not isinstance(content, dict):
        return
    if group.split("/")[0] == "hydra" and group not in ("hydra/launcher", "hydra/sweeper"):
        raise ConfigError(f"it is an option of {group}, and no file sets what Hydra itself runs; legal is the command "
                          "line", where=str(file))  # fmt: skip
    free = group in ("", EXPERIMENTS)
    legal = ("_global_", "_group_", "") if free else ("_group_", group.replace("/", "."))
    if package is not None and package not in legal:
        raise ConfigError(f"its header puts it into the package {package!r}; {OWN_LEGAL}", where=str(file))
    if free:
        _check_hydra(content, file)
    _check_defaults(content.get("defaults"), group, free=free, file=file)


def _check_hydra(content: Mapping[Any, Any], file: Path) -> None:
    """Of Hydra's settings only places and parameters, whichever way the key is written."""
    for key, value in content.items():
        if str(key).split(".")[0] != "hydra":
            continue
        if key != "hydra" or not isinstance(value, Mapping):
            raise _of_hydra(str(key), file)
        for name, inner in value.items():
            known = OF_HYDRA.get(str(name))
            if known is None or (known and not (isinstance(inner, Mapping) and set(map(str, inner)) <= set(known))):
                raise _of_hydra(f"hydra.{name}", file)


def _of_hydra(key: str, file: Path) -> ConfigError:
    names = [
        f"hydra.{name}{f'.{inner}' if inner else ''}" for name, keys in OF_HYDRA.items() for inner in keys or ("",)
    ]
    return ConfigError(f"it sets {key}, and what Hydra itself runs or writes is set on the command line; legal in a "
                       f"file are {', '.join(names)}", where=str(file))  # fmt: skip


def _check_defaults(defaults: Any, group: str, *, free: bool, file: Path) -> None:
    if defaults is None:
        return
    if not isinstance(defaults, list):
        raise ConfigError(f"its defaults are {defaults!r}; legal is a list of options", where=str(file))
    if group == HARDWARE:
        raise ConfigError("it has a defaults list, which hardware files do not take; legal is `like: NAME` with the "
                          "fields that differ", where=str(file))  # fmt: skip
    for entry in defaults:
        for name, option in _entries(entry):
            elsewhere = "@" in name or name.removeprefix("override ").strip().lstrip("/").split("/")[0] == "hydra"
            beside = not free and (name != "" or "/" in option or "@" in option)
            if elsewhere or beside or "@" in option or option.lstrip("/").split("/")[0] == "hydra":
                what = "options of this program's groups" if free else f"other options of {group}, by name, and _self_"
                raise ConfigError(f"its defaults list holds {entry!r}; legal are {what}", where=str(file))


def _entries(entry: Any) -> Iterator[tuple[str, str]]:
    """(group, option) of one entry of a defaults list; a name alone has no group."""
    if not isinstance(entry, Mapping):
        yield "", str(entry)
        return
    for name, options in entry.items():
        chosen: Sequence[Any] = options if isinstance(options, list | ListConfig) else [options]
        for option in chosen:
            yield str(name), str(option)
