"""Additions left in float, since they get real numbers and give them to float nodes; and those that are not."""

from __future__ import annotations

import numpy as np

from quantpipe.annotate.conditions import AnnotateOptions, decide
from quantpipe.types import Form, Structure
from tests.ops.line import Net, hardware, line


def stream(blocks: int = 2, before: bool = True) -> Net:
    """A residual stream of dense layers with LayerNormalization in front of them, or behind the sums."""
    net = Net()
    x = net.dense(net.input(None, 8), 8, 8, name="front")
    x = x if before else normalized(net, x, "first")
    for block in range(blocks):
        inner = normalized(net, x, f"norm{block}") if before else x
        inner = net.dense(net.node("Relu", net.dense(inner, 8, 8, name=f"up{block}")), 8, 8, name=f"down{block}")
        x = net.node("Add", x, inner, name=f"sum{block}")
        x = x if before else normalized(net, x, f"norm{block}")
    net.output(net.dense(normalized(net, x, "norm") if before else x, 8, 4, name="last"))
    return net


def normalized(net: Net, x: str, name: str) -> str:
    return net.node("LayerNormalization", x, net.floats(8), net.floats(8), name=name, axis=-1)


def floats(net: Net, device: str = "ort_cpu", **options: object) -> set[str]:
    made = line(net, device, **options)  # type: ignore[arg-type]
    assert made.agree(made.plan(), "integer").differing == 0
    return {name for name in made.topology.float_nodes if name.startswith("sum")}


def test_the_sums_in_front_of_a_normalization_are_real() -> None:
    assert floats(stream(before=False)) == {"sum0", "sum1"}


def test_a_chain_of_sums_is_real_as_a_whole_or_not_at_all() -> None:
    """What one sum gives, the next one and a normalization read; the first one adds to what the front layer gives."""
    assert floats(stream()) == {"sum0", "sum1"}
    net = stream()
    net.output(net.dense("sum1_out", 8, 4, name="other"))
    assert floats(net) == set(), "the last sum is stored for a layer, so it takes in what the others gave"


def test_what_moves_between_a_layer_and_a_sum_in_float_is_real_too() -> None:
    net = Net()
    flat = net.dense(net.input(None, 8), 8, 8, name="one")
    rows = net.node("Reshape", flat, net.constant(np.int64([-1, 2, 4])), name="rows")
    total = net.node("Add", rows, net.node("Erf", rows, name="other"), name="sum")
    net.output(net.node("LayerNormalization", total, net.floats(4), net.floats(4), name="norm", axis=-1))
    made = line(net)
    assert {"rows", "sum"} <= set(made.topology.float_nodes)
    assert made.topology.kernel_of["one"].form is Form.RAW, "nothing is stored behind the layer"


def test_a_sum_that_an_integer_node_reads_stays_in_integers() -> None:
    net = Net()
    x = net.input(None, 8)
    total = net.node("Add", net.dense(x, 8, 8, name="one"), net.dense(x, 8, 8, name="two"), name="sum")
    net.output(normalized(net, total, "norm"), net.dense(total, 8, 4, name="last"))
    assert floats(net) == set()


def test_a_sum_of_one_tensor_that_is_stored_anyway_is_real() -> None:
    """A conversion of that tensor takes the place of the one of the sum."""
    net = Net()
    one = net.dense(net.input(None, 8), 8, 8, name="one")
    total = net.node("Add", one, net.dense(one, 8, 8, name="two"), name="sum")
    net.output(normalized(net, total, "norm"))
    assert floats(net) == {"sum"}, "`one` is read by a layer in integers, too"


def test_a_sum_of_two_tensors_that_are_stored_anyway_stays_in_integers() -> None:
    net = Net()
    one = net.dense(net.input(None, 8), 8, 8, name="one")
    two = net.dense(one, 8, 8, name="two")
    net.output(normalized(net, net.node("Add", one, two, name="sum"), "norm"), net.dense(net.dense(two, 8, 8), 8, 8))
    assert floats(net) == set()


def test_a_chain_that_takes_in_more_stored_tensors_than_it_gives_stays_in_integers() -> None:
    net = Net()
    one = net.dense(net.input(None, 8), 8, 8, name="one")
    two = net.dense(one, 8, 8, name="two")
    first = net.node("Mul", one, net.floats(8), name="sum_scaled")
    last = net.node("Add", first, two, name="sum_last")
    net.output(normalized(net, last, "norm"), net.dense(net.dense(two, 8, 8), 8, 8))
    assert floats(net) == set(), "`one` and `two` would be converted for the one result of the chain"


def test_a_square_of_which_only_a_mean_is_taken_is_real() -> None:
    """Variance as the mean of squares less the square of the mean: with eight bits its small values are gone."""
    net = Net()
    one = net.dense(net.input(None, 8), 8, 8, name="one")
    square = net.node("Mul", one, one, name="sum_square")
    axes = net.constant(np.int64([-1]))
    spread = net.node("Sub", net.node("ReduceSum", square, axes), net.node("ReduceSum", one, axes), name="difference")
    net.output(net.node("Softsign", spread), net.dense(one, 8, 4, name="last"))
    assert "sum_square" in floats(net)


def test_a_sum_of_what_is_moved_and_stored_for_another_is_real() -> None:
    net = Net()
    moved = net.node("Reshape", net.dense(net.input(None, 8), 8, 8, name="one"), net.constant(np.int64([-1, 4, 2])))
    other = net.node("LayerNormalization", moved, net.floats(2), net.floats(2), name="other", axis=-1)
    total = net.node("Add", moved, other, name="sum")
    net.output(net.node("LayerNormalization", total, net.floats(2), net.floats(2), name="norm", axis=-1))
    assert floats(net) == {"sum"}, "nothing stores what is moved"
    net.output(net.node("MatMul", moved, net.floats(2, 3), name="product"))
    assert floats(net) == {"sum"}, "a layer in integers reads it, too, and a normalization in float"


def test_a_device_without_additions_in_float_keeps_them_in_integers() -> None:
    assert floats(stream(before=False), "vta") == set()


def test_a_choice_of_how_to_add_is_kept() -> None:
    made = line(stream(before=False))
    given = (made.graph, hardware("ort_cpu"), AnnotateOptions())
    assert "sum0" not in decide(*given).integer
    assert "sum0" in decide(*given, Structure((("add:sum0", "both"),))).integer
