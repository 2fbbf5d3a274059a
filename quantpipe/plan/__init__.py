"""Plan: turn a strategy into every number of the integer model.

The numbers are scales, zero points, multipliers, shifts, integer weights and biases, and bounds. The only inputs are
the graph, the topology, the hardware, the schema and the strategy; no data. Formulas are those of docs/numerics.md;
rounding is done in `intmath`. Float32 products are formed in the order in which the kernels form them, since the last
bit of a multiplier decides ties.
"""

from quantpipe.plan.overrides import NO_OVERRIDES, ChannelChange, Overrides
from quantpipe.plan.pair_safe import UNSIGNED, rounded_pairs
from quantpipe.plan.planner import Planner
from quantpipe.plan.problem import Problem
from quantpipe.plan.saturating_pairs import channels_of_file, data_of, kernel_order, kernels_with_wide_pairs, pair_limit
from quantpipe.plan.weights import MOST_BIAS_STEPS
