"""Predict a device's treatment of a model before anything is calibrated: `command=check`."""

from quantpipe.check.compatibility import Fit, Loading, Verdict, check, check_model
from quantpipe.check.sample import made_up

__all__ = ["Fit", "Loading", "Verdict", "check", "check_model", "made_up"]
