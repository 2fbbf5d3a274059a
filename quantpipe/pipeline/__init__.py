"""The staged runner: the only place that moves values between stages and files, and files and MLflow."""

from quantpipe.pipeline.context import SearchDecision
from quantpipe.pipeline.run import open_run, run
from quantpipe.pipeline.steps import Steps
