"""Recover: better integer weights, biases and ranges, from unlabeled samples and without gradients.

Steps, each a pure function from one state of the network to the next (`steps`), each kept only if it helps (`ladder`):
channels in other units (`links`, `changed`, `equalize`, `absorb`, `smooth`), a walk from layer to layer (`walk`:
moments of the layer's float and quantized input -> target -> scale -> rounding -> bias), other ranges (`ranges`).
"""

from quantpipe.recover.changed import changed
from quantpipe.recover.float_moments import float_moments
from quantpipe.recover.ladder import Climbed, climb
from quantpipe.recover.layer import LayerOptions
from quantpipe.recover.moments import Moments
from quantpipe.recover.options import RecoverOptions, StepItem
from quantpipe.recover.partial import Kept, KeptLayers, NothingKept
from quantpipe.recover.steps import STEPS
from quantpipe.recover.stored import overrides_arrays, overrides_from_arrays
from quantpipe.recover.variants import Variants
from quantpipe.recover.walk import Recovery, recover
from quantpipe.recover.work import NotApplicable, State, Work

__all__ = [
    "STEPS",
    "Climbed",
    "Kept",
    "KeptLayers",
    "LayerOptions",
    "Moments",
    "NotApplicable",
    "NothingKept",
    "RecoverOptions",
    "Recovery",
    "State",
    "StepItem",
    "Variants",
    "Work",
    "changed",
    "climb",
    "float_moments",
    "overrides_arrays",
    "overrides_from_arrays",
    "recover",
]
