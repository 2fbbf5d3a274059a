"""Search over points and scores: a budgeted, logged, resumable evaluator and one small file per algorithm.

Nothing here knows what a point means; the caller gives a `ChoiceSpace` and a function that measures points.
"""

from quantpipe.search.algorithm import Algorithm, Measure
from quantpipe.search.algorithms.annealing import Annealing
from quantpipe.search.algorithms.evolutionary import Evolutionary
from quantpipe.search.algorithms.greedy import Greedy
from quantpipe.search.algorithms.greedy_backward import GreedyBackward
from quantpipe.search.algorithms.greedy_edge import GreedyEdge
from quantpipe.search.algorithms.grid import Grid
from quantpipe.search.algorithms.knapsack import Knapsack
from quantpipe.search.algorithms.random_search import RandomSearch
from quantpipe.search.algorithms.surrogate import Surrogate
from quantpipe.search.algorithms.tpe import Tpe
from quantpipe.search.algorithms.uniform import Uniform
from quantpipe.search.budget import Batching, Budget
from quantpipe.search.contributions import changed_choices, contributions
from quantpipe.search.evaluator import Evaluator
from quantpipe.search.finalists import finalists
from quantpipe.search.log import JsonlLog, LoggedTrial, TrialLog, find_trial, read_trials
from quantpipe.search.objective import (
    OWN_COST,
    CostKind,
    FloatFigures,
    Metric,
    Objective,
    ObjectiveForm,
    ObjectiveOptions,
    form_of,
    reaches,
)
from quantpipe.search.origin import search_origin
from quantpipe.search.pareto import Pick, front
from quantpipe.search.run_search import SearchResult, Stopped, run_search
