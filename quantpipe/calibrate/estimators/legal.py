"""The common part of every estimator: its call, and the form of a clip range under a schema."""

from __future__ import annotations

from typing import Protocol

from quantpipe.types import Range, Symmetry, TensorSchema, TensorStats


class Estimator(Protocol):
    """Choose the real interval that `bits` bits represent; values outside saturate.

    `needs_histogram`: it reads the histogram; `needs_batches`: it reads what single batches had. One that needs neither
    works from the extremes alone, which a calibration can be restricted to and every imported profile has.
    """

    @property
    def needs_histogram(self) -> bool:
        """Return whether the estimator reads the histogram of a tensor."""

    @property
    def needs_batches(self) -> bool:
        """Return whether the estimator reads the extremes of each batch."""

    def __call__(self, stats: TensorStats, bits: int, schema: TensorSchema) -> Range:
        """Return the range of a tensor, in real units, for so many bits."""


def one_sided(stats: TensorStats, schema: TensorSchema) -> bool:
    """Return whether the integers of this tensor all serve one side of zero.

    They do for data of one sign under a schema that uses it.
    """
    if schema.symmetry is Symmetry.SYMMETRIC:
        return False
    return stats.minimum >= 0.0 or (stats.maximum <= 0.0 and schema.symmetry is Symmetry.ASYMMETRIC)


def mirrored(stats: TensorStats, schema: TensorSchema) -> bool:
    """Return whether the range is [-T, T]: symmetric, or symmetric_with_uint8 for a tensor with negative values."""
    return schema.symmetry is Symmetry.SYMMETRIC or (
        schema.symmetry is Symmetry.SYMMETRIC_UNSIGNED and stats.minimum < 0.0
    )


def legal_range(low: float, high: float, stats: TensorStats, schema: TensorSchema) -> Range:
    """Return the range an estimator means by low and high: [-T, T] where the schema mirrors, T = max(-low, high).

    symmetric_with_uint8 on non-negative data: [0, high]. asymmetric: cut to [min(0, minimum), max(0, maximum)]. All
    values are in real units.
    """
    if mirrored(stats, schema):
        threshold = max(-low, high)
        return Range(-threshold, threshold)
    if schema.symmetry is Symmetry.SYMMETRIC_UNSIGNED:
        return Range(0.0, high)
    return Range(max(low, min(0.0, stats.minimum)), min(high, max(0.0, stats.maximum)))
