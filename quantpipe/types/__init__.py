"""The frozen types that travel between stages. Standard library and NumPy only."""

from quantpipe.types.choices import Choice, ChoiceSpace, Point, Score, Trial
from quantpipe.types.data import Batch, Samples, TensorInfo
from quantpipe.types.dtype import DType
from quantpipe.types.schema import Denominator, Granularity, PowerOfTwo, Schema, Symmetry, TensorSchema
from quantpipe.types.statistics import Profile, Range, TensorStats

__all__ = [
    "Batch",
    "Choice",
    "ChoiceSpace",
    "DType",
    "Denominator",
    "Granularity",
    "Point",
    "PowerOfTwo",
    "Profile",
    "Range",
    "Samples",
    "Schema",
    "Score",
    "Symmetry",
    "TensorInfo",
    "TensorSchema",
    "TensorStats",
    "Trial",
]
