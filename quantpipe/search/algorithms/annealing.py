"""Simulated annealing with the schedule of HAGO.

`search.py` of ZihengJiang/tvm-hago, the code of the RFC: T from 0.5 to 5e-4, T *= 0.99 per step (688 steps); a
neighbour changes 10 % of the dimensions by uniform {-2..2}, clamped; a worse one is accepted with probability
exp(-(increase) / T). Here the increase is the share of all measured points that are between the two in the objective's
order. So it needs no unit, and it counts the loss among points of one cost. The walk starts at the most precise point
instead of a random one, so that the smallest budget has a safe answer.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from dataclasses import dataclass

import numpy as np

from quantpipe.option_checks import integer, number
from quantpipe.search.algorithm import Evaluate
from quantpipe.search.algorithms.begin import begin
from quantpipe.search.objective import Objective
from quantpipe.types import ChoiceSpace, Point


@dataclass(frozen=True)
class Annealing:
    """One walk. `share` of the choices (at least one) move by up to `reach` options per step."""

    start_temperature: float = 0.05
    end_temperature: float = 5e-4
    cooling: float = 0.99
    share: float = 0.1
    reach: int = 2

    def __post_init__(self) -> None:
        number("search.algorithm.start_temperature", self.start_temperature, above=0.0)
        number("search.algorithm.end_temperature", self.end_temperature, above=0.0)
        number("search.algorithm.cooling", self.cooling, above=0.0, most=0.9999)
        number("search.algorithm.share", self.share, above=0.0, most=1.0)
        integer("search.algorithm.reach", self.reach, least=1)

    def __call__(self, space: ChoiceSpace, evaluate: Evaluate, objective: Objective, rng: np.random.Generator) -> None:
        """Walk from the first point to random neighbours, taking worse ones less and less often."""
        point, score, _ = begin(space, evaluate, objective)
        key = objective.key(score)
        measured = {point}
        order = [key]  # sorted: the last is the best
        temperature = self.start_temperature
        while temperature > self.end_temperature and space.size > 1:
            neighbour = self._neighbour(space, point, rng)
            (score,) = evaluate([neighbour])
            attempt = objective.key(score)
            if neighbour not in measured:
                measured.add(neighbour)
                insort(order, attempt)
            increase = (bisect_left(order, key) - bisect_left(order, attempt)) / len(order)
            if attempt >= key or rng.random() < math.exp(-increase / temperature):
                point, key = neighbour, attempt
            temperature *= self.cooling

    def _neighbour(self, space: ChoiceSpace, point: Point, rng: np.random.Generator) -> Point:
        """May be the point itself: that step only cools, as in HAGO."""
        moved = list(point)
        count = max(1, int(self.share * len(space)))
        for choice in rng.choice(len(space), size=count, replace=False).tolist():
            step = int(rng.integers(-self.reach, self.reach + 1))
            moved[choice] = min(max(moved[choice] + step, 0), len(space.choices[choice].options) - 1)
        return tuple(moved)
