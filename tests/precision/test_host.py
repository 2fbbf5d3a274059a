"""What the device has in integers alone may run in float on the host, where there is one."""

from __future__ import annotations

from dataclasses import replace

from quantpipe.annotate.choices import choice_space
from quantpipe.annotate.conditions import AnnotateOptions
from quantpipe.annotate.variants import Topologies
from quantpipe.types.choice_key import ChoiceKind, choice_key
from quantpipe.types.hardware_fields import FloatOn
from quantpipe.types.structure import FLOAT
from tests.ops.line import Net, line


def net() -> Net:
    made = Net()
    x = made.conv(made.input(None, 3, 6, 6), 3, 4, 3, 3)
    y = made.conv(x, 4, 4, 1, 1)
    made.output(made.conv(made.node("Add", x, y, name="sum"), 4, 2, 1, 1))
    return made


def test_an_addition_in_integers_alone_is_the_hosts_by_choice() -> None:
    made = line(net(), "vta")
    given = (made.graph, made.spec, made.schema, AnnotateOptions())
    usual = Topologies(*given)
    assert "sum" in usual.may_host and "sum" not in usual.may_float
    assert not set(usual.may_host) & set(usual.may_float)
    offered = Topologies(*given, floatable=("sum",))
    key = choice_key(ChoiceKind.FLOAT, "sum")
    assert [choice.key for choice in offered.choices] == [key]
    space = choice_space(offered.base, AnnotateOptions(), structural=offered.choices)
    start = space.decode(space.start)
    assert "sum" not in offered.topology_of(start).float_nodes
    assert "sum" in offered.topology_of({**start, key: FLOAT}).float_nodes


def test_a_device_without_a_host_has_none() -> None:
    made = line(net(), "vta")
    given = (made.graph, replace(made.spec, float_on=FloatOn.NONE), made.schema, AnnotateOptions())
    assert Topologies(*given).may_host == ()
