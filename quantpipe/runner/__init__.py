"""The staged runner: the only place that moves values between stages and files, and files and MLflow."""

from quantpipe.runner.run import run

__all__ = ["run"]
