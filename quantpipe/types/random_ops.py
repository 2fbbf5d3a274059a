"""What replaces ops that draw random numbers."""

from enum import StrEnum


class RandomOps(StrEnum):
    """Select what replaces an op that draws random numbers."""

    INPUT = "input"
    """An input of the model, which the samples fill; else drawn by the seed."""
    ZERO = "zero"
    """The mean of what it draws."""
