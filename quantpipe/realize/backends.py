"""The output forms by name: our own, then those of installed plug-in packages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from quantpipe import extend
from quantpipe.lowering import Dialect
from quantpipe.realize.integer import Integer
from quantpipe.realize.qdq import Qdq
from quantpipe.realize.qoperator import QOperator

OWN: Mapping[str, Callable[[], Dialect]] = {"qdq": Qdq, "qoperator": QOperator, "integer": Integer}
"""Name in the configuration -> dialect."""


class _Backends(Mapping[str, Callable[[], Dialect]]):
    """Our own forms and those of plug-in packages, as one mapping."""

    def __getitem__(self, name: str) -> Callable[[], Dialect]:
        return OWN[name] if name in OWN else extend.forms()[name]

    def __iter__(self) -> Iterator[str]:
        yield from OWN
        yield from extend.forms()

    def __len__(self) -> int:
        return len(OWN) + len(extend.forms())


BACKENDS: Mapping[str, Callable[[], Dialect]] = _Backends()


def refuse_clashes() -> None:
    """Raise ConfigError for a plug-in package that gives a form the name of one of ours."""
    for name in extend.forms():
        if name in OWN:
            raise extend.refused(
                extend.package_of(name),
                f"its form {name!r} has the name of one that quantpipe has; legal is another one than {', '.join(OWN)}",
            )
