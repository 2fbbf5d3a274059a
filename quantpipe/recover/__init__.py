"""Recover: better integer weights and biases for the same plan, from unlabeled samples and without gradients.

Layer by layer in graph order: moments of the layer's float and quantized input -> target -> scale -> rounding -> bias.
"""

from quantpipe.recover.changed import changed
from quantpipe.recover.float_moments import float_moments
from quantpipe.recover.ladder import Climbed, RecoverOptions, climb
from quantpipe.recover.layer import LayerOptions
from quantpipe.recover.moments import Moments
from quantpipe.recover.partial import Kept, KeptLayers, NothingKept
from quantpipe.recover.stored import overrides_arrays, overrides_from_arrays
from quantpipe.recover.variants import Variants
from quantpipe.recover.walk import Recovery, recover

__all__ = [
    "Climbed",
    "Kept",
    "KeptLayers",
    "LayerOptions",
    "Moments",
    "NothingKept",
    "RecoverOptions",
    "Recovery",
    "Variants",
    "changed",
    "climb",
    "float_moments",
    "overrides_arrays",
    "overrides_from_arrays",
    "recover",
]
