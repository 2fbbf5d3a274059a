"""Which moves are taken, on losses that are known exactly."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantpipe.scoring.precision import PrecisionMove, Selection

PARTS = tuple(PrecisionMove((f"{c}1", f"{c}2", f"{c}3", f"{c}4"), c.upper(), 0.0) for c in "abcd")
HARM = {"a": 0.5, "b": 0.001, "c": 0.0, "d": 0.002}


class Model:
    """A loss that is a sum over nodes in integers, and a cost that is the number of nodes in float."""

    def __init__(self, harm: dict[str, float], rest: float = 0.001, dear: float = 1.0) -> None:
        self.harm, self.rest, self.dear = harm, rest, dear
        self.asked: list[frozenset[str]] = []

    def __call__(self, nodes: frozenset[str]) -> tuple[float, float]:
        self.asked.append(nodes)
        lost = sum(harm for name, harm in self.harm.items() if name not in nodes)
        return self.rest + lost, self.dear * len(nodes)


def nodes(harm: dict[str, float], *moves: PrecisionMove) -> dict[str, float]:
    """The harm of each node, the same for all of a move."""
    return {name: harm[name[0]] / len(move.nodes) for move in moves for name in move.nodes}


def selection(model: Model, **changes: object) -> Selection:
    given = {
        "certain": frozenset(), "masks": frozenset(), "doubted": frozenset(), "light": PARTS, "heavy": (),
        "above": 0.1, "aim": 0.02,
    }  # fmt: skip
    return Selection(model, **(given | changes))  # type: ignore[arg-type]


def test_a_loss_that_is_small_enough_takes_one_measurement_and_no_node() -> None:
    model = Model({})
    found = selection(model)
    found.run()
    assert model.asked == [frozenset()] and not found.moved


def test_the_role_that_costs_the_loss_stays_in_float_and_the_others_go_back() -> None:
    found = selection(Model(nodes(HARM, *PARTS)))
    found.run()
    assert found.moved == set(PARTS[0].nodes)
    assert found.taken.loss == pytest.approx(0.001 + 0.003) and found.taken.cost == 4


def test_of_a_role_only_the_part_that_needs_it_stays_in_float() -> None:
    harm = nodes(HARM, *PARTS) | {"a1": 0.5, "a2": 0.0, "a3": 0.0, "a4": 0.0}
    found = selection(Model(harm))
    found.run()
    assert found.moved == {"a1"}


@pytest.mark.parametrize("kind", ["masks", "doubted"])
def test_masks_go_before_everything_else_and_may_be_enough(kind: str) -> None:
    model = Model(nodes({"a": 0.5, "b": 0.0, "c": 0.0, "d": 0.0}, *PARTS))
    found = selection(model, **{kind: frozenset(PARTS[0].nodes)})
    found.run()
    assert found.moved == set(PARTS[0].nodes) and len(model.asked) == 2


@pytest.mark.parametrize(("kind", "lost"), [("masks", 0.05), ("doubted", 0.05), ("masks", 0.01)])
def test_masks_alone_are_tried_wherever_the_aim_is_missed(kind: str, lost: float) -> None:
    model = Model(nodes({"a": lost, "b": 0.0, "c": 0.0, "d": 0.0}, *PARTS))
    found = selection(model, **{kind: frozenset(PARTS[0].nodes)})
    found.run()
    assert found.moved == (set(PARTS[0].nodes) if kind == "masks" and lost > 0.02 else set())


def test_masks_that_mend_nothing_stay_in_integers() -> None:
    found = selection(Model(nodes(HARM, *PARTS)), doubted=frozenset(PARTS[1].nodes))
    found.run()
    assert found.moved == set(PARTS[0].nodes)


def test_what_no_range_is_known_of_is_in_float_whatever_the_loss() -> None:
    found = selection(Model({}), certain=frozenset({"b1"}))
    found.run()
    assert found.moved == {"b1"}


def test_float_that_mends_nothing_is_not_taken() -> None:
    model = Model({}, rest=1.0)
    found = selection(model)
    found.run()
    assert not found.moved and len(model.asked) == 2


def test_of_layers_that_multiply_the_one_that_mends_most_is_taken_up_to_a_share() -> None:
    heavy = (PrecisionMove(("x",), "Conv", 0.2), PrecisionMove(("y",), "Conv", 0.1), PrecisionMove(("z",), "Conv", 0.7))
    model = Model({"x": 0.9, "y": 0.05, "z": 3.0}, rest=0.001)
    found = selection(model, light=(), heavy=heavy)
    found.run()
    assert not found.moved, "neither x nor y mends a good part while z, which is too much, loses most"
    model = Model({"x": 0.9, "y": 0.05, "z": 0.01}, rest=0.001)
    found = selection(model, light=(), heavy=heavy)
    found.run()
    assert found.moved == {"x"}, "y gains too little once x is in float"
    assert all("z" not in asked for asked in model.asked)


def test_a_budget_that_ends_leaves_the_best_answer_so_far() -> None:
    class Spent(Exception):
        pass

    inner = Model(nodes(HARM, *PARTS))

    def measure(asked: frozenset[str]) -> tuple[float, float]:
        if len(inner.asked) == 3:
            raise Spent
        return inner(asked)

    found = selection(inner)
    found.measure = measure
    with pytest.raises(Spent):
        found.run()
    assert found.moved == frozenset().union(*(m.nodes for m in PARTS))
    assert found.taken.loss == pytest.approx(0.001)


@settings(max_examples=200)
@given(
    st.lists(st.floats(0, 2), min_size=16, max_size=16),
    st.floats(0.0, 0.5),
    st.booleans(),
)
def test_the_answer_was_measured_and_is_never_worse_than_the_start(harm: list[float], rest: float, doubt: bool) -> None:
    names = [name for move in PARTS for name in move.nodes]
    model = Model(dict(zip(names, harm, strict=True)), rest=rest)
    found = selection(model, doubted=frozenset(names[:2]) if doubt else frozenset())
    found.run()
    assert found.moved in model.asked
    assert found.taken.loss <= found.tried[0].loss + 1e-12
    assert len(model.asked) <= 60
    if found.moved and not doubt:
        whole = min(tried.loss for tried in found.tried)
        assert found.taken.loss <= max(0.02, 1.25 * whole) + 1e-12


def test_a_loss_that_is_infinite_is_mended_too() -> None:
    def measure(asked: frozenset[str]) -> tuple[float, float]:
        return (0.01 if set(PARTS[0].nodes) <= asked else math.inf), float(len(asked))

    found = selection(Model({}))
    found.measure = measure
    found.run()
    assert found.moved == set(PARTS[0].nodes)


def test_what_reads_a_mask_goes_with_it_where_the_mask_alone_mends_nothing() -> None:
    """As a Softmax in integers, whose operand has the mask in its range still."""

    def measure(asked: frozenset[str]) -> tuple[float, float]:
        return (0.01 if {"mask", "reader"} <= asked else 1.0), float(len(asked))

    found = selection(Model({}), masks=frozenset({"mask"}), masked=frozenset({"reader"}))
    found.measure = measure
    found.run()
    assert found.moved == {"mask", "reader"} and len(found.tried) == 3


def test_nothing_is_taken_where_nothing_can_be_expressed() -> None:
    def measure(asked: frozenset[str]) -> tuple[float, float]:
        return math.inf, float(len(asked))

    given = {
        "masks": frozenset({"mask"}), "doubted": frozenset({"part"}), "masked": frozenset({"reader"}),
        "ranges": WIDE, "raised": (PrecisionMove(("bits:p",), "Conv", 0.0), PrecisionMove(("bits:q",), "Add", 0.0)),
        "heavy": (PrecisionMove(("x",), "Conv", 0.2), PrecisionMove(("y",), "Conv", 0.1)), "tail": frozenset({"boxes"}),
    }  # fmt: skip
    found = selection(Model({}), **given)
    found.measure = measure
    found.run()
    assert not found.moved
    assert all("range:" not in name for tried in found.tried for name in tried.nodes), "no range brings numbers nearer"


def test_more_bits_are_weighed_where_fewer_cannot_be_expressed() -> None:
    """Of two roles, one of which has to be raised for there to be a loss at all, the other stays as it is."""
    raised = (PrecisionMove(("bits:p",), "Conv", 0.0), PrecisionMove(("bits:q",), "Add", 0.0))

    def measure(asked: frozenset[str]) -> tuple[float, float]:
        return (0.01 if "bits:q" in asked else math.inf), 1.0 + len(asked)

    found = selection(Model({}), raised=raised)
    found.measure = measure
    found.run()
    assert found.moved == {"bits:q"}
    assert [t.nodes for t in found.tried[2:5]] == [{"bits:p"}, {"bits:q"}, {"bits:q"}], "what mends it comes first"


WIDE = (PrecisionMove(("range:p", "range:q"), "Conv", 0.0), PrecisionMove(("range:r",), "Add", 0.0))


def ranged(gains: dict[str, float], rest: float = 0.01) -> Model:
    """A loss that falls by a gain (or rises, where it is negative) for each whole range."""

    class Ranged(Model):
        def __call__(self, nodes: frozenset[str]) -> tuple[float, float]:
            self.asked.append(nodes)
            return self.rest - sum(gain for name, gain in gains.items() if name in nodes), 1.0

    return Ranged({}, rest=rest)


def test_whole_ranges_that_lose_more_cost_one_measurement() -> None:
    model = ranged({"range:p": 0.001, "range:q": 0.0, "range:r": -0.004})
    found = selection(model, ranges=WIDE)
    found.run()
    assert not found.moved and len(model.asked) == 2


def test_whole_ranges_are_taken_where_they_gain() -> None:
    found = selection(ranged({"range:p": 0.004, "range:q": 0.0, "range:r": -0.001}), ranges=WIDE)
    found.run()
    assert found.moved == {"range:p", "range:q"}
    found = selection(ranged({"range:p": 0.004, "range:q": 0.0, "range:r": 0.001}), ranges=WIDE)
    found.run()
    assert found.moved == {"range:p", "range:q", "range:r"}


def test_a_gain_that_the_samples_may_have_made_is_not_taken() -> None:
    found = selection(ranged({"range:p": 0.0005, "range:q": 0.0, "range:r": 0.0}), ranges=WIDE)
    found.run()
    assert not found.moved


def test_role_by_role_where_much_is_lost_though_all_together_lose_more() -> None:
    found = selection(ranged({"range:p": 0.4, "range:q": 0.0, "range:r": -0.6}, rest=0.5), ranges=WIDE, light=())
    found.run()
    assert found.moved == {"range:p", "range:q"}


RAISED = tuple(PrecisionMove((f"bits:{c}", f"bits:{c}.weight"), "Conv", 0.0) for c in "abcd")
WIDTHS = {"bits:a": 0.3, "bits:b": 0.001, "bits:c": 0.05, "bits:d": 0.0}


def test_more_bits_go_where_they_gain_most_and_no_farther_than_the_aim() -> None:
    found = selection(Model(WIDTHS, rest=0.002), light=(), raised=RAISED)
    found.run()
    assert found.moved == {"bits:a", "bits:c"} and found.taken.loss <= 0.02


def test_more_bits_go_before_float_and_what_recovery_may_mend_is_left_to_it() -> None:
    found = selection(Model({"bits:c": 0.2} | nodes(HARM, PARTS[1])), raised=RAISED)
    found.run()
    assert found.moved == {"bits:c"}
    model = Model({"bits:c": 0.05})
    left = selection(model, raised=RAISED)
    left.run()
    assert not left.moved and len(model.asked) == 1


def test_fewer_bits_that_save_nothing_are_not_taken_back() -> None:
    """A device that converts nothing runs all layers in the wider kernels as soon as one tensor has more bits."""

    class Whole(Model):
        def __call__(self, moved: frozenset[str]) -> tuple[float, float]:
            return super().__call__(moved)[0], 2.0 if moved else 1.0

    found = selection(Whole(WIDTHS), light=(), raised=RAISED)
    found.run()
    assert found.moved == {name for move in RAISED for name in move.nodes}


def test_bits_that_mend_little_are_left() -> None:
    model = Model({"bits:a": 0.005}, rest=0.15)
    found = selection(model, light=(), raised=RAISED)
    found.run()
    assert not found.moved and len(model.asked) == 2


@given(harm=st.lists(st.floats(0, 1), min_size=4, max_size=4), rest=st.floats(0, 0.02))
@settings(max_examples=60, deadline=None)
def test_with_more_bits_the_loss_is_within_what_is_aimed_at(harm: list[float], rest: float) -> None:
    model = Model(dict(zip(("bits:a", "bits:b", "bits:c", "bits:d"), harm, strict=True)), rest=rest)
    found = selection(model, light=(), raised=RAISED)
    found.run()
    start, least = rest + sum(harm), rest
    if start > 0.1 and least <= 0.7 * start:
        assert found.taken.loss <= max(0.02, 1.25 * least)
    assert found.taken.nodes == found.moved or not found.moved


def test_layers_that_multiply_little_are_tried_together_as_one_alone_mends_nothing() -> None:
    """A transcription net loses all in the filters of a spectral transform, in three roles: none alone gains."""

    class Filters(Model):
        def __call__(self, moved: frozenset[str]) -> tuple[float, float]:
            lost, cost = super().__call__(moved)
            return (lost if {"a1", "b1", "c1"} <= moved else 2.8), cost

    filters = [PrecisionMove((f"{c}1", f"{c}2"), "Conv", 0.03) for c in "abcd"]
    layer = PrecisionMove(("e1",), "Conv", 0.6)
    found = selection(Filters({"d1": 0.001}), light=(), heavy=[layer, *filters])
    found.run()
    assert {"a1", "b1", "c1"} <= found.moved and not {"d1", "d2", "e1"} & found.moved
    assert found.taken.loss <= 0.02


def test_layers_beyond_an_eighth_of_the_multiplications_are_not_tried_together() -> None:
    model = Model({"a1": 1.0, "b1": 1.0})
    heavy = [PrecisionMove((f"{c}1",), "Conv", 0.2) for c in "ab"]
    found = selection(model, light=(), heavy=heavy)
    found.run()
    assert frozenset({"a1", "b1"}) not in model.asked
