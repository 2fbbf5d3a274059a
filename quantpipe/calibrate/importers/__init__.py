"""Profiles from files: our own, and those of other tools, fitted to a model by tensor names."""

from quantpipe.calibrate.importers.match_tensors import load_profile

__all__ = ["load_profile"]
