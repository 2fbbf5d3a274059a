"""Threshold estimators: pure functions (statistics, bits, schema) -> clip range, one small frozen dataclass per file.

Hydra instantiates them from conf/threshold/NAME.yaml (`activations._target_`). A new one needs a class with the
`Estimator` call and a YAML file; nothing here has to know it.
"""

from quantpipe.calibrate.estimators.kl import KL
from quantpipe.calibrate.estimators.legal import Estimator
from quantpipe.calibrate.estimators.max_range import MaxRange
from quantpipe.calibrate.estimators.mean_range import MeanRange
from quantpipe.calibrate.estimators.moving_average import MovingAverage
from quantpipe.calibrate.estimators.mse import MSE
from quantpipe.calibrate.estimators.output_error import OutputError
from quantpipe.calibrate.estimators.percentile import Percentile
from quantpipe.calibrate.estimators.power2_range import Power2Range
from quantpipe.calibrate.estimators.searched import Searched, clip_percents

__all__ = [
    "KL",
    "MSE",
    "Estimator",
    "MaxRange",
    "MeanRange",
    "MovingAverage",
    "OutputError",
    "Percentile",
    "Power2Range",
    "Searched",
    "clip_percents",
]
