"""Exact rewrites of channels: the same function of the inputs, with constants that lose less when they are rounded."""
