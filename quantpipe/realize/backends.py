"""List the output forms by name: our own, then those that installed plug-in packages add."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial

from quantpipe import extend
from quantpipe.errors import QuantpipeError, brief
from quantpipe.graph.view import Graph
from quantpipe.lowering import Dialect, Rendered, render
from quantpipe.realize.integer import Integer
from quantpipe.realize.matmul_nbits import MatMulNBits
from quantpipe.realize.qdq import Qdq
from quantpipe.realize.qoperator import QOperator
from quantpipe.types import QuantPlan, Topology

OWN: Mapping[str, Callable[[], Dialect]] = {
    "qdq": Qdq,
    "matmul_nbits": MatMulNBits,
    "qoperator": QOperator,
    "integer": Integer,
}
"""Name in the configuration -> dialect."""

HERE: Mapping[str, Callable[[], Dialect]] = {"qdq": partial(Qdq, here=True)}
"""Form -> how it is written for a device that is onnxruntime itself (`runs_here`), and for no other tool."""


class _Backends(Mapping[str, Callable[[], Dialect]]):
    """Combine our own forms and the forms of plug-in packages into one mapping."""

    def __getitem__(self, name: str) -> Callable[[], Dialect]:
        return OWN[name] if name in OWN else extend.forms()[name]

    def __iter__(self) -> Iterator[str]:
        yield from OWN
        yield from extend.forms()

    def __len__(self) -> int:
        return len(OWN) + len(extend.forms())


BACKENDS: Mapping[str, Callable[[], Dialect]] = _Backends()


def write(
    form: str, graph: Graph, topology: Topology, plan: QuantPlan, *, stored: Collection[str] = (), here: bool = False
) -> Rendered:
    """Return the integer model in a form by its name.

    `stored` ports (of a section of a graph) carry integers; `here`: the device is onnxruntime itself. Raises
    ConfigError that names the package, if a plug-in's form fails.
    """
    if form in OWN:
        return render(graph, topology, plan, (HERE if here and form in HERE else OWN)[form](), stored=stored)
    try:
        return render(graph, topology, plan, extend.forms()[form](), stored=stored)
    except QuantpipeError:
        raise
    except Exception as error:  # the package is the user's own code
        raise extend.refused(
            extend.package_of(form), f"its form {form!r} raised {type(error).__name__}: {brief(error)}"
        ) from error


def refuse_clashes() -> None:
    """Raise ConfigError for a plug-in package that gives a form the name of one of ours."""
    for name in extend.forms():
        if name in OWN:
            raise extend.refused(
                extend.package_of(name),
                f"its form {name!r} has the name of one that quantpipe has; legal is another one than {', '.join(OWN)}",
            )
