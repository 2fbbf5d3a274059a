"""Small rewrites of a model into ops that hardware runs in integers; each gives the same function.

A rewrite takes the graph and one of its nodes, and changes the graph in place when the node begins its pattern.
(`fused` is different: it writes out ops of onnxruntime when a model is loaded.)
"""

from collections.abc import Callable, Mapping

import onnx_ir as ir

from quantpipe.intake.rewrites.affine import batch_norm_to_conv, constant_difference, constant_quotient
from quantpipe.intake.rewrites.bags import rows_in_front
from quantpipe.intake.rewrites.branch import inline_known_branch
from quantpipe.intake.rewrites.cast_like import cast_like
from quantpipe.intake.rewrites.einsum import einsum_to_matmul
from quantpipe.intake.rewrites.exported_scores import factor_of_queries, unguarded_softmax
from quantpipe.intake.rewrites.finite_masks import finite_mask
from quantpipe.intake.rewrites.gelu import gelu
from quantpipe.intake.rewrites.gemm import plain_gemm, turned_weight
from quantpipe.intake.rewrites.hard_sigmoid import hard_sigmoid
from quantpipe.intake.rewrites.hard_swish import hard_swish
from quantpipe.intake.rewrites.inner_windows import inner_windows
from quantpipe.intake.rewrites.layer_norm import layer_norm
from quantpipe.intake.rewrites.means import spatial_mean
from quantpipe.intake.rewrites.recurrent import weights_outside
from quantpipe.intake.rewrites.rms_norm import rms_norm
from quantpipe.intake.rewrites.rsqrt import rsqrt
from quantpipe.intake.rewrites.several import extreme_to_clip, fold_to_pairs, split_to_slices, top_values_apart
from quantpipe.intake.rewrites.swish import swish

Rewrite = Callable[[ir.Graph, ir.Node], None]

BRANCHES: tuple[Rewrite, ...] = (inline_known_branch,)
"""Run before everything else: what they bring up is cleaned with the rest."""

NUMBERS: tuple[Rewrite, ...] = (cast_like,)
"""Run before patterns are looked for, which read the numbers."""

FUNCTIONS: tuple[Rewrite, ...] = (gelu,)
"""Into ops of FUNCTIONS_OPSET."""

FUNCTIONS_OPSET = 20

DECLARED: Mapping[str, tuple[Rewrite, int]] = {"Swish": (swish, 24), "Pow": (rsqrt, 0)}
"""Op that a device must declare for it -> what joins several nodes to one of it, and the opset that has it."""

NORMS: tuple[Rewrite, ...] = (rms_norm,)
"""Into ops of NORMS_OPSET."""

NORMS_OPSET = 23

REWRITES: tuple[Rewrite, ...] = (
    plain_gemm,
    turned_weight,
    split_to_slices,
    top_values_apart,
    einsum_to_matmul,
    fold_to_pairs,
    finite_mask,
    unguarded_softmax,
    extreme_to_clip,
    hard_sigmoid,
    hard_swish,
    inner_windows,
    layer_norm,
    constant_difference,
    constant_quotient,
    factor_of_queries,
    spatial_mean,
    rows_in_front,
    weights_outside,
    batch_norm_to_conv,
)
