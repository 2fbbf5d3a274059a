"""Return the parts of a run's settings that determine artifacts, as plain data.

Two ways to write one thing (an alias, a file that is `like` another one, `auto` and what it comes to) are one origin.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any

from quantpipe.annotate.conditions import STRUCTURAL
from quantpipe.artifacts import PlainMapping, plain
from quantpipe.data import GivenDataset
from quantpipe.pipeline.settings import Settings
from quantpipe.types import FloatType, HardwareSpec

KINDS = "annotate.choices"
"""The part that names which kinds of choices are on offer: of them the topology follows from the structural ones."""

_WORDS = ("description", "source", "device")
"""Of a device: what is said of it, and decides nothing."""
_OF_ONE_MODEL = ("placed", "joined")
"""Of a device: what annotation adds for the model at hand."""


_SINGLE = FloatType.FLOAT32.value
_LATER: Mapping[str, Any] = MappingProxyType(
    dict.fromkeys(("qdq_bias", "single_ratio", "split_channels", "raise_to", "cell_state", "given_sizes"))
    | {"float_type": _SINGLE, "float_types": [_SINGLE]}
)
"""Fields that came later, at any depth, and what they say that was so before: folders of then do not tell of them."""


def part(settings: Settings, key: str) -> Any:
    """Return a part of a run's settings as plain JSON data, by the words of the configuration.

    `key` is a key of `PARTS`, or a field of the settings. For an object without a JSON value (no dataclass of plain
    fields, or with a function), the configuration's own text of that part is returned.
    """
    if key not in settings.told:
        try:
            found = _told(plain(PARTS[key](settings) if key in PARTS else getattr(settings, key)))
            settings.told[key] = PlainMapping(found) if isinstance(found, dict) else found
        except TypeError:
            settings.told[key] = settings.config.get(key)
    return settings.told[key]


def device_part(spec: HardwareSpec) -> dict[str, Any]:
    """Return the parts of a device that determine artifacts: everything but words, and additions for one model."""
    return _fields(spec, without=(*_WORDS, *_OF_ONE_MODEL))


def _annotate(settings: Settings) -> dict[str, Any]:
    structural = [kind for kind in settings.annotate.choices if kind in STRUCTURAL]
    return _fields(settings.annotate) | {"choices": structural}


def _dataset(settings: Settings) -> Any:
    """Return the data set's settings without in-memory samples, which artifacts record by digest as an input."""
    dataset = settings.dataset
    return _fields(dataset, without=("given",)) if isinstance(dataset, GivenDataset) else dataset


def _threshold(settings: Settings) -> dict[str, Any]:
    rules = [_fields(rule) | {"estimator": _made(rule.estimator)} for rule in settings.rules]
    found = {"activations": _made(settings.estimator), "weights": {"method": settings.weight_method}}
    return found | ({"rules": rules} if rules else {})


def _search(settings: Settings) -> dict[str, Any]:
    """Return the search's settings without its start file, which counts by its content, not by its place."""
    return _fields(settings.search, without=("start",)) | {"algorithm": _made(settings.search.algorithm)}


PARTS: Mapping[str, Callable[[Settings], Any]] = MappingProxyType(
    {
        "dataset": _dataset,
        "hardware": lambda settings: device_part(settings.spec),
        "schema": lambda settings: settings.schema,
        "annotate": _annotate,
        KINDS: lambda settings: settings.annotate.choices,
        "choices": lambda settings: settings.limits,
        "threshold": _threshold,
        "precision": lambda settings: settings.precision,
        "search": _search,
        "objective": lambda settings: settings.objective,
        "detections": lambda settings: settings.detections,
        "recover": lambda settings: settings.recover,
        "train": lambda settings: settings.train,
        "realize": lambda settings: {"backend": settings.backend, "forms": settings.forms},
        "evaluate": lambda settings: settings.evaluate,
        "effort": lambda settings: settings.effort,
    }
)
"""Part -> the typed value that it is."""


def _fields(value: Any, without: Collection[str] = ()) -> dict[str, Any]:
    names = [field.name for field in dataclasses.fields(value) if field.name not in without]
    return {name: getattr(value, name) for name in names}


def _told(value: Any) -> Any:
    """Return plain data without later fields that have no effect."""
    if isinstance(value, Mapping):
        told = {name: _told(one) for name, one in value.items()}
        return {name: one for name, one in told.items() if name not in _LATER or (one and one != _LATER[name])}
    return [_told(one) for one in value] if isinstance(value, list) else value


def _made(value: Any) -> Any:
    """Return an object whose class the configuration chose, as its name and its fields.

    Raises TypeError for anything but a dataclass.
    """
    if not dataclasses.is_dataclass(value):
        raise TypeError(f"{type(value).__name__} is no dataclass")
    inner = {name: _made(v) if dataclasses.is_dataclass(v) else v for name, v in _fields(value).items()}
    return {"class": f"{type(value).__module__}.{type(value).__qualname__}", **inner}
