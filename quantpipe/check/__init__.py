"""Predict a device's treatment of a model before anything is calibrated: `command=check`."""

from quantpipe.check.compatibility import DeviceVerdict, Fit, Loading, check, check_model
from quantpipe.check.sample import made_up
