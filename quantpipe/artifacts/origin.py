"""Record what an artifact was made from, and how two such records differ."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from quantpipe.artifacts.digest import digest_plain, plain

_SHOWN_CHARACTERS = 60
_ABSENT = object()


@dataclasses.dataclass(frozen=True)
class Origin:
    """Hold the sources of an artifact; two artifacts with equal origins are interchangeable.

    `kind` is the stage and the artifact (`calibrate/profile`); `inputs` maps names (model, data, …) to digests.
    `config` is the slice of configuration that mattered; `format` grows when the way the artifact is written changes.
    """

    kind: str
    inputs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    format: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", {str(name): str(digest) for name, digest in self.inputs.items()})
        object.__setattr__(self, "config", plain(self.config))

    @property
    def digest(self) -> str:
        """Return the digest of all four parts."""
        return digest_plain([self.format, self.kind, self.inputs, self.config])

    def header(self, content: str | None = None) -> dict[str, Any]:
        """Return the header of the artifact; `content` is the digest of the artifact's own content.

        `config` comes last: in a text file it ends the header, so that a header cut short is noticed.
        """
        head = {"format": self.format, "kind": self.kind} | ({} if content is None else {"content": content})
        return head | {"digest": self.digest, "inputs": self.inputs, "config": self.config}

    @classmethod
    def from_header(cls, header: Mapping[str, Any]) -> Origin:
        """Return the inverse of `header`; KeyError, TypeError, ValueError or AttributeError when it is not one."""
        return cls(str(header["kind"]), header["inputs"], header["config"], int(header["format"]))

    def differences(self, found: Origin) -> list[str]:
        """Return one phrase per part in which the origin found in a file differs from this, the expected one."""
        parts = [("format", found.format, self.format), ("kind", found.kind, self.kind)]
        names = _union(found.inputs, self.inputs)
        parts += [(name, found.inputs.get(name, _ABSENT), self.inputs.get(name, _ABSENT)) for name in names]
        # Another format tells the configuration in other words: that these differ says nothing.
        same = found.format == self.format
        old, new = (dict(_leaves(origin.config)) if same else {} for origin in (found, self))
        parts += [(f"config {key}", old.get(key, _ABSENT), new.get(key, _ABSENT)) for key in _union(old, new)]
        return [
            f"{name} is {_short(there)} in the file, {_short(here)} here"
            for name, there, here in parts
            if there != here
        ]


def _union(*mappings: Mapping[str, Any]) -> list[str]:
    return sorted({key for mapping in mappings for key in mapping})


def _leaves(config: Any, prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Yield dotted key and value of every leaf of a nested mapping; an empty mapping is a leaf."""
    if isinstance(config, Mapping) and (config or not prefix):
        for key, value in config.items():
            yield from _leaves(value, f"{prefix}.{key}" if prefix else key)
    else:
        yield prefix, config


def _short(value: Any) -> str:
    if value is _ABSENT or value is None:
        return "absent" if value is _ABSENT else "null"
    text = str(value)[:19] + "…" if str(value).startswith("sha256:") else repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"
