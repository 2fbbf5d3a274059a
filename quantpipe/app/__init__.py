"""The command line: Hydra configuration in, a run out. The only package that knows Hydra."""
