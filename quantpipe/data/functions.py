"""Turn a user function's result for one sample into named arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.data.source import SINGLE
from quantpipe.errors import ConfigError, DataError


def arrays_of(value: Any, where: str) -> dict[str, NDArray[Any]]:
    """Return an array, a number or a list: one field without a name; a mapping: a field for each of its names.

    DataError for what is not made of numbers.
    """
    if isinstance(value, Mapping):
        if not value:
            raise DataError("is an empty mapping; legal is an array for each model input.", stage="data", where=where)
        return {str(name): _array(item, f"{where}[{name}]") for name, item in value.items()}
    return {SINGLE: _array(value, where)}


def _array(value: Any, where: str) -> NDArray[Any]:
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:  # ragged lists, tensors that cannot be converted
        raise DataError(f"cannot be made an array ({_short(error)}).", stage="data", where=where) from error
    if array.dtype.kind not in "biuf" or value is None:
        raise DataError(
            f"is {type(value).__name__} of {array.dtype}; legal are arrays, lists and numbers (integers, floats, "
            "booleans), or a mapping from model inputs to them.",
            stage="data",
            where=where,
        )
    return array


def checked_function(value: Any, key: str) -> Callable[..., Any]:
    """Return a function of the user's, already imported.

    Raises ConfigError for anything else.
    """
    if not callable(value):
        raise ConfigError(
            f"is {value!r}; it must name a function, as package.module:function (docs/data.md).", where=key
        )
    function: Callable[..., Any] = value
    return function


def name_of(function: Callable[..., Any]) -> str:
    """Return `package.module:function`, for messages and records."""
    module = getattr(function, "__module__", type(function).__module__)
    return f"{module}:{getattr(function, '__qualname__', type(function).__qualname__)}"


def called(function: Callable[..., Any], where: str, key: str, *arguments: Any, **named: Any) -> Any:
    """Return the function's value; DataError where it raises, SystemExit included."""
    try:
        return function(*arguments, **named)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # it is the user's own code
        raise DataError(
            f"{key}={name_of(function)} failed: {type(error).__name__}: {_short(error)}", stage="data", where=where
        ) from error


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
