"""Resolve a dotted name of the configuration, and check that its object is defined where names may lead.

Attributes of a module include everything it imports: `quantpipe.graph.execute.os.system` is a path through quantpipe to
a shell. So the start of a path does not count; the end of the path, and every step to it, must be defined in an allowed
package.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from functools import cache, partial
from importlib.machinery import PathFinder
from importlib.metadata import entry_points
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

from quantpipe.app.renamed import as_now_named
from quantpipe.errors import ConfigError

PLUGINS = "quantpipe.conf"
"""Entry point group: a plug-in package names its conf package there, e.g. `npu = "my_npu.conf"`."""
OWN = "quantpipe"


def allowed_packages(plugins: Sequence[str] = ()) -> tuple[str, ...]:
    """Return top-level packages whose classes and functions configuration may name.

    `plugins` are those that the configuration allows itself.
    """
    return (OWN, *sorted(_announced() | set(plugins)))


@cache
def _announced() -> frozenset[str]:
    """Return the packages that are installed as plug-ins (reading the installed packages takes milliseconds)."""
    return frozenset(entry.value.split(".")[0] for entry in entry_points(group=PLUGINS))


def refuse_plugins(plugins: Sequence[str], overrides: Sequence[str]) -> None:
    """Raise ConfigError for plug-ins that must not be allowed.

    These are parts of Python itself, which run commands for anybody, and those that no override of the command line
    names: a configuration file from elsewhere would allow itself what it likes.
    """
    for name in plugins:
        if name.split(".")[0] in sys.stdlib_module_names:
            raise ConfigError(
                f"names {name!r}, a module of Python itself; legal are packages of your own, with functions of their "
                "own that call it",
                where="plugins",
            )
        if not _can_be_imported(name):
            raise ConfigError(
                f"names {name!r}, which is neither installed nor in {Path.cwd()}; legal are packages that can be "
                "imported",
                where="plugins",
            )
    if plugins and not any(text.lstrip("+").startswith("plugins") for text in overrides):
        raise ConfigError(
            f"is [{','.join(plugins)}] in a configuration file, but only the command line may allow code: "
            f"add plugins=[{','.join(plugins)}] there if you trust them",
            where="plugins",
        )


def _can_be_imported(name: str) -> bool:
    """Return whether a package is installed or is in the launch folder; none of its code is run."""
    top = name.split(".")[0]
    return PathFinder.find_spec(top, [*sys.path, str(Path.cwd())]) is not None


def refuse_other_packages(target: str, package: str, key: str, plugins: Sequence[str], *, kind: str) -> None:
    """Reject a target in a package that is not allowed, with a ConfigError."""
    if package not in allowed_packages(plugins):
        raise ConfigError(
            f"the target {target!r} is not allowed; legal are {kind} of "
            f"{', '.join(allowed_packages(plugins))}. A plug-in package announces itself by an entry point in the "
            f"group {PLUGINS!r}; any other must be allowed by name: plugins=[{package}]",
            where=key,
        )


def load(module: str, path: Sequence[str], key: str, plugins: Sequence[str], *, kind: str) -> Any:
    """Return the object at the attributes `path` of a module; `kind` names it in errors.

    Raises ConfigError where the module or the object cannot be loaded, or where any object on the path was defined
    outside the allowed packages.
    """
    module = as_now_named(module)
    refuse_other_packages(f"{module}:{'.'.join(path)}", module.split(".")[0], key, plugins, kind=kind)
    return _walk(_imported(module, key), module, path, key, allowed=allowed_packages(plugins))


def load_dotted(target: str, key: str, plugins: Sequence[str]) -> Any:
    """Return the object of a name with only dots between modules and attributes, as in `_target_`.

    Raises ConfigError as `load` does.
    """
    target = as_now_named(target)
    parts = target.split(".")
    if not all(part.isidentifier() for part in parts):
        raise ConfigError(f"is {target!r}; legal is package.module.Class", where=key)
    refuse_other_packages(target, parts[0], key, plugins, kind="classes")
    found: Any = _imported(parts[0], key)
    for number, part in enumerate(parts[1:], 1):
        name = ".".join(parts[:number])
        below = _module_below(found, part, f"{name}.{part}", key)
        found = below or _walk(found, name, [part], key, allowed=allowed_packages(plugins))
    return found


def home_of(thing: Any) -> str | None:
    """Return the top-level package that an object was defined in; None if it is unknown.

    A function or a class has its own package, a `partial` or a cache the package of its callee, and any other object
    the package of its class. A bound method has two packages, its function's and its object's: None unless they are
    one.
    """
    if isinstance(thing, ModuleType):
        return thing.__name__.split(".")[0]
    if isinstance(thing, partial):
        return home_of(thing.func)
    if isinstance(thing, MethodType):
        homes = {home_of(thing.__func__), home_of(thing.__self__)}
        return homes.pop() if len(homes) == 1 else None
    wrapped = getattr(thing, "__wrapped__", None)
    if wrapped is not None and not isinstance(thing, FunctionType | type):
        return home_of(wrapped)
    owner = thing if isinstance(thing, FunctionType | type) or _is_built_in(thing) else type(thing)
    module = getattr(owner, "__module__", None)
    return module.split(".")[0] if isinstance(module, str) else None


def _is_built_in(thing: Any) -> bool:
    """Return whether it is a C function: their class does not reveal where they are defined."""
    return type(thing).__module__ == "builtins" and callable(thing)


def _walk(found: Any, name: str, path: Sequence[str], key: str, *, allowed: Sequence[str]) -> Any:
    """Follow attributes, and reject the first one that was defined elsewhere."""
    for part in path:
        try:
            found = getattr(found, part)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a module or a class may have a __getattr__ of its own
            raise _not_imported(f"{name}.{part}", error, key) from error
        name = f"{name}.{part}"
        leads = callable(found) or isinstance(found, ModuleType)
        home = home_of(found) if leads else None
        if part.startswith("__") or (leads and home not in allowed):
            raise ConfigError(
                f"the target {name!r} is not allowed: it is defined in {home or 'no package'}, and what a module "
                f"imports does not become its own; legal is what {', '.join(allowed)} define themselves",
                where=key,
            )
    return found


def _imported(module: str, key: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the module is the user's own code, and may raise SystemExit
        raise _not_imported(module, error, key) from error


def _module_below(found: Any, part: str, name: str, key: str) -> ModuleType | None:
    """Return the module `name`, if `found` is its package without an attribute of that name; else None."""
    if not isinstance(found, ModuleType) or hasattr(found, part):
        return None
    try:
        return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the module is the user's own code, and may raise SystemExit
        if not isinstance(error, ModuleNotFoundError) or error.name != name:
            raise _not_imported(name, error, key) from error
        return None


def _not_imported(target: str, error: BaseException, key: str) -> ConfigError:
    return ConfigError(
        f"{target!r} cannot be imported: {type(error).__name__}: {' '.join(str(error).split())[:300]}", where=key
    )
