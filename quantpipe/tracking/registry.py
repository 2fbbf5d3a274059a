"""MLflow's registry: the integer model of a run as the next version of a named model, with aliases."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from quantpipe.errors import ConfigError

_RESERVED = re.compile(r"latest|v\d+", re.IGNORECASE)
_LEGAL = re.compile(r"[\w.-]{1,255}")


def check_aliases(aliases: Sequence[str]) -> None:
    """Raise ConfigError for an alias that MLflow would reject at the end of the run."""
    for alias in aliases:
        if not isinstance(alias, str) or not _LEGAL.fullmatch(alias) or _RESERVED.fullmatch(alias):
            raise ConfigError(
                f"{alias!r} is no alias that MLflow takes: legal are letters, digits, '_', '-' and '.', but not latest "
                "and v1, v2, …",
                where="tracking.aliases",
            )


def check_name(name: str | None) -> None:
    """Raise ConfigError for a name that MLflow would reject at the end of the run."""
    if name is not None and (not name.strip() or {"/", ":"} & set(name)):
        raise ConfigError(
            f"{name!r} is no name of a registered model: legal is a word without '/' and ':', or null",
            where="tracking.register",
        )


def register(client: Any, name: str, aliases: Sequence[str], *, run_id: str, model: Any) -> str:
    """Make a logged model the next version of the registered model `name`, and return the version.

    The registered model is created if needed; `aliases` point to this version from now on.
    """
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    version = client.create_model_version(
        name, source=model.artifact_location, run_id=run_id, model_id=model.model_id, await_creation_for=0
    ).version
    for alias in aliases:
        client.set_registered_model_alias(name, alias, version)
    return str(version)
