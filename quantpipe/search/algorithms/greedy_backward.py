"""Greedy from the other end: everything at its last option, then raised where that is expected to gain most."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quantpipe.option_checks import number
from quantpipe.search.algorithm import Evaluate
from quantpipe.search.algorithms.begin import begin
from quantpipe.search.algorithms.free_choices import settled_in_turns
from quantpipe.search.algorithms.local_search import stepped
from quantpipe.search.algorithms.raised import DECAY, raised
from quantpipe.search.objective import Objective, ObjectiveForm
from quantpipe.types import ChoiceSpace


@dataclass(frozen=True)
class GreedyBackward:
    """Walks up from the last options, one choice by one option at a time; the most precise point is asked first.

    What each choice loses alone at its last option orders the walk: one probe per choice, at the precise end, as near
    the coarse end everything is broken and a single raise gains nothing. Each raise is expected to leave 1 / `decay` of
    the loss (4: the squared error of one bit less). Within a tolerance the walk ends as soon as the value is near
    enough. Within a cost it goes on while the cost fits, and leaves a choice alone that no longer fits. Where cost and
    value are weighed against each other, it goes all the way. A choice that saves nothing stays at its first option.
    Choices that cost nothing (ranges) are settled first where the tolerance is missed, and at the end. If it is still
    missed, single steps of the other choices follow, up or down.
    """

    decay: float = DECAY

    def __post_init__(self) -> None:
        number("search.algorithm.decay", self.decay, least=1.0)

    def __call__(self, space: ChoiceSpace, evaluate: Evaluate, objective: Objective, rng: np.random.Generator) -> None:
        """Start from the coarsest options and raise the choice that loses most, until the objective is met."""
        point, score, start = begin(space, evaluate, objective)
        within_tolerance = objective.form is ObjectiveForm.LEAST_COST_WITHIN_TOLERANCE
        first = space.start
        if within_tolerance and not objective.feasible(score):
            first, start = settled_in_turns(space, evaluate, objective, point, score=score)
            first, start = stepped(space, evaluate, objective, first, score=start)
        elif objective.open_ended:
            first, start = settled_in_turns(space, evaluate, objective, first, score=start)
        priced = [i for i, choice in enumerate(space) if not choice.free]
        point, score = raised(space, evaluate, objective, first, start=start, choices=priced, decay=self.decay)
        best = max(((first, start), (point, score)), key=lambda found: objective.key(found[1]))
        if not objective.open_ended:
            settled_in_turns(space, evaluate, objective, best[0], score=best[1])
