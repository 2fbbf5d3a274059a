"""The command line: Hydra configuration in, a run out. The only package that knows Hydra."""

from quantpipe.app.main import main

__all__ = ["main"]
