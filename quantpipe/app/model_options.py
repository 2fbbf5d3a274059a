"""The keys of the groups `model` and `import`, read one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quantpipe.errors import ConfigError
from quantpipe.graph.custom_ops import KEY, in_use, use_custom_ops
from quantpipe.option_checks import word_of
from quantpipe.types import Keep, RandomOps


def read_keep(given: Mapping[str, Any]) -> Keep:
    """Return what of a quantized model is kept."""
    return word_of(Keep, given.get("keep", Keep.ALL), "import.keep")


def read_fixed(value: Any) -> Mapping[str, Any]:
    """Return the inputs that are constant."""
    if value is not None and not isinstance(value, Mapping):
        raise ConfigError(f"is {value!r}; legal is null, or values by input such as {{sr: 16000}}", where="model.fixed")
    return value or {}


def read_random(value: Any) -> RandomOps | None:
    """Return what replaces ops that draw random numbers."""
    return None if value is None else word_of(RandomOps, value, "model.random", also="null, ")


def install_custom_ops(value: Any, launch: Path) -> None:
    """Make sessions register the libraries that the configuration names, one or several."""
    use_custom_ops([_placed(name, launch) for name in _libraries(value)])


def refuse_custom_ops(value: Any, overrides: Sequence[str]) -> None:
    """Raise ConfigError for libraries that no override of the command line names: loading one runs its code."""
    if _libraries(value) and not any(text.lstrip("+").startswith(f"{KEY}=") for text in overrides):
        raise ConfigError(f"is {value} in a configuration file, but only the command line may allow code: add "
                          f"{KEY}={_written(value)} there if you trust it", where=KEY)  # fmt: skip


def refuse_custom_ops_of_run(value: Any, launch: Path, key: str) -> None:
    """Raise ConfigError for libraries of a run's own configuration that nobody has allowed in this process."""
    if any(not in_use(_placed(name, launch)) for name in _libraries(value)):
        raise ConfigError(
            f"the run was made with {KEY}={_written(value)}; give that on the command line, or from Python to "
            "quantpipe.graph.custom_ops.use_custom_ops, if you trust it",
            where=key,
        )


def _libraries(value: Any) -> list[str]:
    names = [value] if isinstance(value, str) else value or []
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(f"is {value!r}; legal is null, the path of a library, or a list of them", where=KEY)
    return list(names)


def _placed(name: str, launch: Path) -> str:
    return str(launch / name) if (launch / name).is_file() else name


def _written(value: Any) -> str:
    return value if isinstance(value, str) else f"[{','.join(value)}]"
