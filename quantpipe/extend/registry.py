"""Install extensions: only from the packages that the command line names."""

from __future__ import annotations

import fnmatch
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any

import onnx

from quantpipe.errors import ConfigError, brief
from quantpipe.extend.device_op import DeviceOp, Extension
from quantpipe.types.layer_views import Calibrator

GROUP = "quantpipe.extensions"
"""Entry point group: a package names its `Extension` there, e.g. `npu = "my_npu.quantpipe:EXTENSION"`."""

OURS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")
"""Domains whose ops are ONNX's own and onnxruntime's."""


@dataclass(frozen=True, eq=False)
class Installed:
    """Hold a package, where its extension is (`module:attribute`), and the extension."""

    package: str
    source: str
    extension: Extension


@dataclass(eq=False)
class _Registry:
    packages: dict[str, Installed] = field(default_factory=dict)
    ops: dict[str, DeviceOp] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    functions: dict[tuple[str, str], onnx.FunctionProto] = field(default_factory=dict)
    forms: dict[str, Callable[[], Any]] = field(default_factory=dict)
    calibrators: list[tuple[str, str, Calibrator]] = field(default_factory=list)
    """(package, pattern of ops, calibrator), in order."""


_KNOWN = _Registry()


def qualified(domain: str, name: str) -> str:
    """Return how hardware files and reports name an op: with its domain, where that is not ONNX's own."""
    return f"{domain}.{name}" if domain else name


def op_of(name: str) -> DeviceOp | None:
    """Return an installed op by its qualified name."""
    return _KNOWN.ops.get(name)


def ops() -> Mapping[str, DeviceOp]:
    """Return all installed ops by qualified name."""
    return _KNOWN.ops


def forms() -> Mapping[str, Callable[[], Any]]:
    """Return all installed output forms by name."""
    return _KNOWN.forms


def calibrator_of(op: str) -> tuple[str, Calibrator] | None:
    """Return the first installed calibrator for an op, by its qualified name, with its package; None without one."""
    found = (c for c in _KNOWN.calibrators if fnmatch.fnmatchcase(op, c[1]))
    return next(((package, calibrator) for package, _, calibrator in found), None)


def has_calibrators() -> bool:
    """Return whether some installed package has a calibrator."""
    return bool(_KNOWN.calibrators)


def functions() -> Mapping[tuple[str, str], onnx.FunctionProto]:
    """Return the definitions of installed ops, by domain and name."""
    return _KNOWN.functions


def package_of(name: str) -> str:
    """Return the package that an installed op or form is from."""
    return _KNOWN.owners[name]


def installed() -> tuple[tuple[str, str | Extension], ...]:
    """Return (package, source) of all that is installed: what another process needs for `ensure`.

    The source of an extension that was given as an object is the object itself.
    """
    return tuple((found.package, found.source or found.extension) for found in _KNOWN.packages.values())


def install(packages: Sequence[str]) -> None:
    """Install the extensions of packages that name one by an entry point; other packages have no extension.

    Raises:
        ConfigError: naming the package, where its extension cannot be imported or used.
    """
    wanted = [name for name in packages if name not in _KNOWN.packages]
    if not wanted:
        return
    for entry in entry_points(group=GROUP):
        package = entry.value.split(":")[0].split(".")[0]
        if package in wanted:
            install_object(package, entry.value, _imported(package, entry.value))


def ensure(sources: Sequence[tuple[str, str | Extension]]) -> None:
    """Install, in another process, what the first one has."""
    for package, source in sources:
        if isinstance(source, Extension):
            install_given(source)
        elif package not in _KNOWN.packages:
            install_object(package, source, _imported(package, source))


def install_given(extension: Extension) -> str:
    """Install an extension that no package has, and return the name it is known by: what it adds.

    It replaces one of the same name. Raises ConfigError as `install_object` does.
    """
    added = [*(qualified(op.domain, op.name) for op in extension.ops), *extension.forms, *extension.calibrators]
    name = f"given: {', '.join(map(str, added))}"
    known = _KNOWN.packages.get(name)
    if known is not None and known.extension is not extension:
        forget(name)
    install_object(name, "", extension)
    return name


def install_object(package: str, source: str, found: Any) -> None:
    """Install an extension that is at hand.

    Raises:
        ConfigError: naming the package, where it is no extension, or one of its ops or forms cannot be used.
    """
    if package in _KNOWN.packages:
        return
    if not isinstance(found, Extension):
        raise refused(package, f"{source} is a {type(found).__name__}; legal is a quantpipe.extend.Extension")
    names = {}
    for op in found.ops:
        name = _checked(package, op)
        if name in names:
            raise refused(package, f"it has two ops {name}; legal is one of a name")
        names[name] = op
    if clash := next((name for name in found.forms if name in _KNOWN.forms), None):
        raise refused(package, f"its form {clash!r} is also one of {_KNOWN.owners[clash]}; legal is another name")
    for pattern, calibrator in found.calibrators.items():
        if not callable(calibrator):
            raise refused(package, f"its calibrator of {pattern} is a {type(calibrator).__name__}; legal is a callable")
    _KNOWN.calibrators += [(package, *entry) for entry in found.calibrators.items()]
    _KNOWN.packages[package] = Installed(package, source, found)
    _KNOWN.ops |= names
    _KNOWN.forms |= found.forms
    _KNOWN.owners |= dict.fromkeys([*names, *found.forms], package)
    for op in found.ops:
        for definition in (op.reference, op.integers, op.written):
            _KNOWN.functions[definition.domain, definition.name] = definition


def forget(package: str) -> None:
    """Take an extension away again."""
    found = _KNOWN.packages.pop(package, None)
    _KNOWN.calibrators = [c for c in _KNOWN.calibrators if c[0] != package]
    for op in found.extension.ops if found is not None else ():
        _KNOWN.ops.pop(qualified(op.domain, op.name), None)
        _KNOWN.owners.pop(qualified(op.domain, op.name), None)
        for definition in (op.reference, op.integers, op.written):
            _KNOWN.functions.pop((definition.domain, definition.name), None)
    for form in found.extension.forms if found is not None else ():
        _KNOWN.forms.pop(form, None)
        _KNOWN.owners.pop(form, None)


def called(name: str, part: str, function: Callable[..., Any], *given: Any) -> Any:
    """Return the result of a part of an installed op.

    Raises:
        ConfigError: naming the package, where it raises.
    """
    try:
        return function(*given)
    except Exception as error:  # the package is the user's own code
        raise refused(
            package_of(name), f"{part} of its op {name} raised {type(error).__name__}: {brief(error)}"
        ) from error


def refused(package: str, why: str) -> ConfigError:
    """Return the error that names a plug-in package."""
    return ConfigError(f"the plug-in package {package}: {why}", where="plugins")


def _imported(package: str, source: str) -> Any:
    module, _, attribute = source.partition(":")
    try:
        found = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the package is the user's own code, and may raise SystemExit
        raise refused(package, f"{source} cannot be imported: {type(error).__name__}: {brief(error)}") from error
    return found


def _checked(package: str, op: Any) -> str:
    """Return the op's qualified name; ConfigError for what no stage could use."""
    if not isinstance(op, DeviceOp):
        raise refused(package, f"its ops hold a {type(op).__name__}; legal are quantpipe.extend.DeviceOp")
    name = qualified(op.domain, op.name)
    if op.domain in OURS:
        raise refused(
            package,
            f"its op {name} is in the domain {op.domain!r}, whose ops are already known; legal is a domain of the "
            "package's own",
        )
    if name in _KNOWN.ops:
        raise refused(package, f"its op {name} is also one of {_KNOWN.owners[name]}; legal is another domain or name")
    for definition in (op.reference, op.integers, op.written):
        _check_function(package, name, op, definition)
    named = [op.weight] if op.weight is not None else []
    for wanted in (*named, *op.constants):
        if wanted not in op.inputs:
            raise refused(
                package, f"its op {name} names the input {wanted!r}; its reference has {', '.join(op.inputs)}"
            )
    activations = [op.inputs[port] for port in op.data]
    for tied in op.same_scale:
        if tied not in activations:
            raise refused(package, f"its op {name} ties {tied!r} to its result (same_scale); legal are its activations "
                          f"{', '.join(activations)}")  # fmt: skip
    for port in op.derive:
        if port not in (legal := [*activations, *op.reference.output]):
            raise refused(package, f"its op {name} derives the range of {port!r}; legal are {', '.join(legal)}")
        if port in op.same_scale:
            raise refused(package, f"its op {name} derives the range of {port!r} and ties it to its result "
                          "(same_scale); legal is one of the two")  # fmt: skip
    if not op.data:
        raise refused(package, f"its op {name} reads no activation; legal is a reference with an input that is neither "
                      "`weight` nor in `constants`")  # fmt: skip
    return name


def _check_function(package: str, name: str, op: DeviceOp, definition: Any) -> None:
    if not isinstance(definition, onnx.FunctionProto):
        raise refused(package, f"its op {name} has a {type(definition).__name__} for a definition; legal is an "
                      "onnx.FunctionProto, as quantpipe.extend.function makes it of text")  # fmt: skip
    try:
        onnx.checker.check_function(definition)
    except Exception as error:  # onnx raises several types
        raise refused(package, f"the function {definition.name} of its op {name}: {brief(error)}") from error
    if definition.domain != op.domain or len(definition.output) != 1:
        raise refused(
            package,
            f"the function {definition.name} of its op {name} has the domain {definition.domain!r} and "
            f"{len(definition.output)} outputs; legal are the op's own domain and one output",
        )
    known = _KNOWN.functions.get((definition.domain, definition.name))
    if known is not None and known.SerializeToString() != definition.SerializeToString():
        raise refused(package, f"two functions of the domain {definition.domain} have the name {definition.name}; "
                      "legal is one definition for each")  # fmt: skip
    if definition is not op.reference and definition.name == op.name:
        raise refused(package, f"its op {name} gives its integer form the name of its reference; legal is another one")
