"""Turn a user function's result for one sample into named arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.data.preprocess import SourceLayout
from quantpipe.data.source import SINGLE, Rows, Source
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


def fields_of(samples: Iterable[Callable[[], Mapping[str, Any]]]) -> Mapping[str, SourceLayout]:
    """Return the fields of a function's results, by the first sample that it takes, or raise its first error."""
    first: DataError | None = None
    for sample in samples:
        try:
            return dict.fromkeys(sample(), SourceLayout.AS_IS)
        except DataError as error:
            first = first or error
    if first is not None:
        raise first
    return {SINGLE: SourceLayout.AS_IS}


def rows_of(
    source: Source,
    sample: Callable[[int], Mapping[str, NDArray[Any]]],
    indices: NDArray[np.int64],
    *,
    key: str,
    one: str,
) -> Mapping[str, Rows]:
    """Return a function's arrays for some samples, by field.

    `one` names a sample in errors. Raises DataError where the fields differ from the first sample's.
    """
    found = [sample(int(index)) for index in indices]
    for index, arrays in zip(indices, found, strict=True):
        if set(arrays) != set(source.fields):
            raise DataError(
                f"{key} gives {', '.join(arrays)} here, but {', '.join(source.fields)} for the first {one}.",
                stage="data",
                where=source.name(int(index)),
            )
    return {name: [arrays[name] for arrays in found] for name in source.fields}


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
