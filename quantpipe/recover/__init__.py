"""Recover: better integer weights, biases and ranges, from unlabeled samples and without gradients.

Steps (`steps`), each a pure function from one state of the network to the next, are tried in order and kept only if
they help on samples they were not fitted to (`accept_steps`). `rescale`: exact rewrites of channels (cross-layer
equalization, bias absorption, smoothing, rotation). `reconstruct`: layer by layer, moments of the float and the
quantized input, then target, scale, GPTQ rounding, bias. `ranges`: other ranges of activations.
"""

from quantpipe.recover.accept_steps import RecoveryResult, StepLoss, accept_steps
from quantpipe.recover.named_steps import STEPS, TRAIN
from quantpipe.recover.reconstruct.float_moments import float_moments
from quantpipe.recover.reconstruct.layer import LayerOptions
from quantpipe.recover.reconstruct.layerwise import Recovery, recover
from quantpipe.recover.reconstruct.moments import Moments
from quantpipe.recover.reconstruct.variants import Variants
from quantpipe.recover.recovery_cost import pass_limit
from quantpipe.recover.recovery_steps import RecoverOptions, StepItem
from quantpipe.recover.rescale.edge_copies import with_edge_copies
from quantpipe.recover.rescale.outlier_channels import outlier_channels
from quantpipe.recover.rescale.rescale_channels import rescale_channels
from quantpipe.recover.rescale.split_channels import with_split_channels
from quantpipe.recover.stored import overrides_arrays, overrides_from_arrays
from quantpipe.recover.work import NotApplicable, State, Work
