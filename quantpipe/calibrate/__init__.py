"""Calibration: streamed statistics of every tensor, and the clip ranges estimated from them. NumPy only."""

from quantpipe.calibrate.collector import StatsCollector, merge
from quantpipe.calibrate.profile import profile_from_arrays, stats_arrays
from quantpipe.calibrate.weights import weight_ranges
from quantpipe.calibrate.yaml_profile import profile_from_yaml, profile_yaml
