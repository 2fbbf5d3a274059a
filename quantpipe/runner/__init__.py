"""The staged runner: the only place that moves values between stages and files, and files and MLflow."""

from quantpipe.runner.job import Found
from quantpipe.runner.run import open_run, run
from quantpipe.runner.steps import Steps

__all__ = ["Found", "Steps", "open_run", "run"]
