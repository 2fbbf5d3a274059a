"""Search over points and scores: a budgeted, logged, resumable evaluator and one small file per algorithm.

Nothing here knows what a point means; the caller gives a `ChoiceSpace` and a function that measures points.
"""

from quantpipe.search.algorithm import Algorithm, Evaluate, Measure
from quantpipe.search.annealing import Annealing
from quantpipe.search.evaluator import Evaluator
from quantpipe.search.evolutionary import Evolutionary
from quantpipe.search.finalists import finalists
from quantpipe.search.greedy import Greedy
from quantpipe.search.greedy_backward import GreedyBackward
from quantpipe.search.greedy_edge import GreedyEdge
from quantpipe.search.grid import Grid
from quantpipe.search.knapsack import Knapsack
from quantpipe.search.log import JsonlLog, LoggedTrial, TrialLog, find_trial
from quantpipe.search.objective import CostKind, Form, Metric, Objective
from quantpipe.search.origin import search_origin
from quantpipe.search.pareto import Pick, front
from quantpipe.search.random_search import RandomSearch
from quantpipe.search.run import SearchResult, Stopped, run_search
from quantpipe.search.surrogate import Surrogate
from quantpipe.search.tpe import Tpe
from quantpipe.search.uniform import Uniform

__all__ = [
    "Algorithm",
    "Annealing",
    "CostKind",
    "Evaluate",
    "Evaluator",
    "Evolutionary",
    "Form",
    "Greedy",
    "GreedyBackward",
    "GreedyEdge",
    "Grid",
    "JsonlLog",
    "Knapsack",
    "LoggedTrial",
    "Measure",
    "Metric",
    "Objective",
    "Pick",
    "RandomSearch",
    "SearchResult",
    "Stopped",
    "Surrogate",
    "Tpe",
    "TrialLog",
    "Uniform",
    "finalists",
    "find_trial",
    "front",
    "run_search",
    "search_origin",
]
