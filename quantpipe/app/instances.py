"""The one place that turns `_target_` into objects, and refuses targets outside quantpipe and its plug-ins."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from quantpipe.errors import ConfigError, QuantpipeError

PLUGINS = "quantpipe.conf"


def allowed_packages() -> tuple[str, ...]:
    """Top-level packages whose classes configuration may name."""
    return ("quantpipe", *sorted({entry.value.split(".")[0] for entry in entry_points(group=PLUGINS)}))


def make(config: DictConfig, key: str, **extra: Any) -> Any:
    """The object that the configuration at `key` describes.

    Raises ConfigError for a target that is not allowed, cannot be imported, or does not take the given options.
    """
    _check(OmegaConf.to_container(config, resolve=True), key)
    try:
        return instantiate(config, **extra)
    except Exception as error:  # Hydra wraps constructors' errors; ours keep their own words
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, QuantpipeError):
            cause = cause.__cause__
        if cause is not None:
            raise cause from None
        raise ConfigError(f"cannot be built: {' '.join(str(error).split())[:300]}", where=key) from error


def _check(node: Any, key: str) -> None:
    if isinstance(node, dict):
        target = node.get("_target_")
        if target is not None and str(target).split(".")[0] not in allowed_packages():
            raise ConfigError(
                f"the target {target!r} is not allowed; legal are classes of {', '.join(allowed_packages())} "
                f"(a plug-in package announces itself by an entry point in the group {PLUGINS!r})",
                where=f"{key}._target_",
            )
        for name, value in node.items():
            _check(value, f"{key}.{name}")
    elif isinstance(node, list):
        for number, value in enumerate(node):
            _check(value, f"{key}[{number}]")
