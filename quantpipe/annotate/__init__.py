"""Annotate: model + hardware + schema -> topology and choice space. Pure functions, no numbers yet."""
