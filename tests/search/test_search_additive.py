"""The additive model of a search where it is taken to another base point."""

from __future__ import annotations

import math
from itertools import product

from hypothesis import given
from hypothesis import strategies as st
from search_toys import make_space

from quantpipe.search.algorithms.additive import Additive, Option, weighed
from quantpipe.types import Choice, ChoiceSpace, Point, Score

SIZES = (4, 3, 4, 2)
POINTS = st.tuples(*(st.integers(0, n - 1) for n in SIZES))
ALL = [(i, o) for i, n in enumerate(SIZES) for o in range(n)]
TABLE = st.lists(st.tuples(st.integers(-64, 64), st.integers(0, 64)), min_size=len(ALL), max_size=len(ALL))
"""(loss, saved) of every option: whole numbers, so that float sums of them are exact."""

Effects = dict[tuple[int, int], tuple[float, float]]


def score_of(effects: Effects, point: Point) -> Score:
    parts = [effects[pair] for pair in enumerate(point)]
    return Score(100.0 - sum(loss for loss, _ in parts), 1000.0 - sum(saved for _, saved in parts))


def probed(effects: Effects, base: Point, asked: list[tuple[int, int]], space: ChoiceSpace) -> Additive:
    """What probes of these options, from `base`, teach."""
    model = Additive(space, base, score_of(effects, base))
    for i, o in asked:
        if o != base[i]:
            model.learn(i, o, score_of(effects, (*base[:i], o, *base[i + 1 :])))
    return model


@given(TABLE, POINTS, POINTS, st.sets(st.sampled_from(ALL)))
def test_knowledge_moves_as_if_it_had_been_probed_there(
    table: list[tuple[int, int]], old: Point, new: Point, some: set[tuple[int, int]]
) -> None:
    space = make_space(*SIZES)
    effects: Effects = dict(zip(ALL, table, strict=True))
    asked = sorted({*some, *enumerate(new)})  # the new base's own options are known
    moved = probed(effects, old, asked, space).moved(new, score_of(effects, new))
    direct = probed(effects, new, sorted({*asked, *enumerate(old)}), space)
    assert moved.measured == direct.measured
    assert moved.table() == direct.table()
    assert moved.unmeasured() == direct.unmeasured()


@given(TABLE, POINTS, POINTS, st.data())
def test_what_is_broken_moves_as_broken(
    table: list[tuple[int, int]], old: Point, new: Point, data: st.DataObject
) -> None:
    """An option without a value stays without one; where the new base itself has such an option, nothing is known."""
    broken = data.draw(st.sets(st.sampled_from([(i, o) for i, o in ALL if o != old[i]]), max_size=6))
    effects: Effects = {
        p: (math.nan if p in broken else loss, saved) for p, (loss, saved) in zip(ALL, table, strict=True)
    }
    space = make_space(*SIZES)
    moved = probed(effects, old, ALL, space).moved(new, Score(0.0, 0.0))
    for i, o in ALL:
        if o == new[i] or (i, new[i]) in broken:
            assert (i, o) not in moved.measured
        else:
            loss, saved = moved.measured[i, o]
            assert math.isnan(loss) == ((i, o) in broken)
            assert math.isnan(loss) or loss == effects[i, o][0] - effects[i, new[i]][0]
            assert saved == effects[i, o][1] - effects[i, new[i]][1]
    planned = {(i, option.index) for i, options in enumerate(moved.table()) for option in options}
    assert planned.isdisjoint(broken - set(enumerate(new)))


def test_an_option_between_measured_ones_is_the_new_base_by_its_estimate() -> None:
    """Losses 1 and 16 of options 1 and 3: geometrically 4 of option 2, with half of what they save between them."""
    model = Additive(make_space(4), (0,), Score(0.0, 100.0))
    model.learn(0, 1, Score(-1.0, 90.0))
    model.learn(0, 3, Score(-16.0, 70.0))
    moved = model.moved((2,), Score(-5.0, 81.0))
    assert moved.measured == {(0, 0): (-4.0, -20.0), (0, 1): (-3.0, -10.0), (0, 3): (12.0, 10.0)}


def test_nothing_moves_where_the_new_base_has_an_unknown_option() -> None:
    """Options without an order are not estimated from each other."""
    space = ChoiceSpace(tuple(Choice(f"step:{i}", "step", (0, -1, 1), graded=False) for i in range(2)))
    model = Additive(space, (0, 0), Score(0.0, 0.0))
    for i in range(2):
        model.learn(i, 1, Score(-1.0 - i, 0.0))
    moved = model.moved((2, 1), Score(-3.0, 0.0))
    assert moved.measured == {(1, 0): (-2.0, 0.0)}
    assert moved.unmeasured() == [(0, 0), (0, 1), (1, 2)]


@given(TABLE, st.integers(0, 8))
def test_what_is_weighed_is_the_best_of_all_combinations(table: list[tuple[int, int]], price: int) -> None:
    """The choices are independent, so that the best combination is found by trying all of them."""
    effects: Effects = dict(zip(ALL, table, strict=True))
    options = [[Option(o, *effects[i, o]) for o in range(n)] for i, n in enumerate(SIZES)]
    taken = weighed(options, price)
    best = min(sum(o.loss - price * o.saved for o in every) for every in product(*options))
    assert sum(o.loss - price * o.saved for o in taken) == best
