"""Hydra's refusals of a command line in our words: which key, what was meant perhaps, what would be legal."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from quantpipe.errors import nearest

_NO_KEY = re.compile(r"Could not override '([^']+)'")
_NO_OPTION = re.compile(
    r"Could not find '([^'/]+)/([^']+)'.*?Available options in '[^']+':\s*(.*?)\s*Config search path", re.S
)
_NO_MERGE = re.compile(r"Error merging override \+{0,2}([^=\s]+)=(.*)", re.S)


def _lacking(package: str, extra: str) -> str:
    return f'needs the package {package} (in the checkout: pip install -e ".[{extra}]")'


PLUGINS = {
    "hydra/launcher/joblib": _lacking("hydra-joblib-launcher", "joblib"),
    "hydra/launcher/submitit_local": _lacking("hydra-submitit-launcher", "submitit"),
    "hydra/launcher/submitit_slurm": _lacking("hydra-submitit-launcher", "submitit"),
    "hydra/launcher/ray": _lacking("hydra-ray-launcher", "ray-launcher"),
    "hydra/sweeper/optuna": (
        "is of a package that needs an older optuna than quantpipe does; docs/howto/sweeps.md has a study without it"
    ),
}
"""Options of Hydra that packages bring -> what is to be said where they are missing."""
_NO_VARIABLE = re.compile(r"Environment variable '([^']+)' not found")
_NO_REFERENCE = re.compile(r"Interpolation key '([^']+)' not found")


def no_reference(error: OmegaConfBaseException, overrides: Sequence[str]) -> str | None:
    """Return a paragraph about an unresolved reference, `${oc.env:NAME}` or `${KEY}`; None for other errors.

    `overrides` are as given; one of them may hold the reference.
    """
    text = str(error)
    variable, reference = _NO_VARIABLE.search(text), _NO_REFERENCE.search(text)
    name = variable or reference
    if name is None:
        return None
    key = error.full_key or next((o.partition("=")[0].lstrip("+") for o in overrides if name[1] in o), "")
    where = f"{key}: " if key else ""
    if variable is not None:
        return (
            f"{where}refers to {name[1]}, and the environment has no variable of that name; set it, or say what to "
            f"take then: ${{oc.env:{name[1]},VALUE}}"
        )
    return f"{where}refers to ${{{name[1]}}}, and there is no such key; legal are keys of the configuration (--cfg job)"


def in_our_words(error: HydraException, folder: str, overrides: Sequence[str]) -> str | None:
    """Return a paragraph about a key, option or kind of value that does not fit; None for other errors.

    It covers unknown keys and options, a mapping where a list is expected, and a list where a mapping is expected.
    `overrides` are those without a mistake, such as the search path and the options of groups.
    """
    text = str(error)
    if (found := _NO_OPTION.search(text)) is not None:
        group, option, legal = found[1], found[2], found[3].split()
        if (plugin := PLUGINS.get(f"{group}/{option}")) is not None:
            return f"{group}/{option.partition('/')[0]}: {option.partition('/')[2]} {plugin}; legal without it is basic"
        return f"{group}: has no option {option!r}{nearest(option, legal)}; legal are {', '.join(legal)}"
    if (found := _NO_KEY.search(text)) is not None:
        return _no_key(found[1], list(_keys(_plain(composed(folder, overrides)))))
    if (found := _NO_MERGE.search(text)) is not None:
        return _no_merge(found[1], found[2], OmegaConf.select(composed(folder, overrides), found[1]))
    return None


def no_option(overrides: Sequence[str], groups: Mapping[str, Path]) -> str | None:
    """Return a paragraph about the first group that is given something else than options' names, or None.

    Hydra ends with a traceback for these. `groups`: the folders of their options.
    """
    parser = OverridesParser.create()
    for text in overrides:
        try:
            override = parser.parse_override(text)
        except HydraException:
            continue  # its own message says where
        group, value = override.key_or_group, override.value()
        if group not in groups or override.is_delete():
            continue
        given = value.list if isinstance(value, ChoiceSweep) else value if isinstance(value, list) else [value]
        if any(v is None or v == "" or isinstance(v, bool | int | float | dict) for v in given):
            legal = sorted(path.stem for path in groups[group].glob("*.yaml"))
            return f"{group}: is {text.partition('=')[2]!r}; legal is the name of an option, such as {', '.join(legal)}"
    return None


def no_text(arguments: Sequence[str]) -> str | None:
    """Return a paragraph about the first argument or folder that is no UTF-8 text, or None.

    No configuration file can hold such a text.
    """
    for argument in arguments:
        try:
            argument.encode("utf-8")
        except UnicodeEncodeError:
            shown = argument.encode("utf-8", "backslashreplace").decode()
            return f"{shown!r} is no UTF-8 text; legal are names of files and folders that are: rename it"
    return None


FOLDERS = ("hydra.run.dir", "hydra.sweep.dir")
"""Keys of the folders that runs write into."""


def no_folder(arguments: Sequence[str]) -> str | None:
    """Return a paragraph about the first run folder that is an address of an object store, or None.

    Runs lock files, sync them and rename them, which object stores do not offer.
    """
    for argument in arguments:
        key, _, value = argument.lstrip("+").partition("=")
        if key in FOLDERS and (address := re.match(r"""['"]?(?P<scheme>[A-Za-z][\w+.-]*)://""", value)) is not None:
            return (
                f"{key}: is an address ({address['scheme']}://…), and a run writes into a folder of a file system, "
                "where it locks and renames files; legal is a path, such as one on a shared or mounted disk. For "
                "copies in an object store give MLflow an artifact location there (docs/howto/several_machines.md)"
            )
    return None


def _no_key(key: str, known: Sequence[str]) -> str:
    parent = key.rpartition(".")[0]
    inside = [k[len(parent) + 1 :] for k in known if k.startswith(f"{parent}.")] if parent else list(known)
    siblings = ", ".join(sorted({k.split(".")[0] for k in inside}))
    legal = f"; {f'below {parent}' if parent else 'at the top'} there are {siblings}" if siblings else ""
    near = nearest(key, known if parent else [*known, "experiment", "experiments"])
    return f"{key}: is no key{near}{legal}"


def _no_merge(key: str, given: str, there: Any) -> str | None:
    if OmegaConf.is_list(there):
        example = f", such as {_plain(there)}" if there else ""
        return f"{key}: is {given}; legal is a list{example}"
    if OmegaConf.is_dict(there):
        return f"{key}: is {given}; legal is a mapping of {', '.join(map(str, there))}"
    return None


def _plain(node: Any) -> Any:
    return OmegaConf.to_container(node, resolve=False)


def composed(folder: str, overrides: Sequence[str]) -> Any:
    """Return the configuration of some overrides, composed by Hydra in a folder; raises what Hydra raises."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(folder, version_base="1.3"):
        return compose("config", overrides=list(overrides))


def _keys(node: Any, prefix: str = "") -> Iterator[str]:
    """Yield every dotted key of a configuration, inner ones included."""
    if isinstance(node, Mapping):
        for name, value in node.items():
            yield f"{prefix}{name}"
            yield from _keys(value, f"{prefix}{name}.")
