"""Load profiles from files, our own and other tools', and match them to a model by tensor names."""

from quantpipe.calibrate.importers.match_tensors import load_profile
