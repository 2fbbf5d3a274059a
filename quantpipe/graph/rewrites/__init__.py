"""Small rewrites of a model into ops that hardware runs in integers; each gives the same function.

A rewrite takes the graph and one of its nodes, and changes the graph in place when the node begins its pattern.
(`unsigned` is different: it rewrites weights for the runtime, when a session loads a model.)
"""

from collections.abc import Callable, Mapping

import onnx_ir as ir

from quantpipe.graph.rewrites.affine import batch_norm_to_conv, constant_difference, constant_quotient
from quantpipe.graph.rewrites.bags import rows_in_front
from quantpipe.graph.rewrites.branch import inline_known_branch
from quantpipe.graph.rewrites.cast_like import cast_like
from quantpipe.graph.rewrites.einsum import einsum_to_matmul
from quantpipe.graph.rewrites.exported_scores import factor_of_queries, unguarded_softmax
from quantpipe.graph.rewrites.finite_masks import finite_mask
from quantpipe.graph.rewrites.gelu import gelu
from quantpipe.graph.rewrites.gemm import plain_gemm, turned_weight
from quantpipe.graph.rewrites.hard_sigmoid import hard_sigmoid
from quantpipe.graph.rewrites.hard_swish import hard_swish
from quantpipe.graph.rewrites.layer_norm import layer_norm
from quantpipe.graph.rewrites.means import spatial_mean
from quantpipe.graph.rewrites.recurrent import weights_outside
from quantpipe.graph.rewrites.rms_norm import rms_norm
from quantpipe.graph.rewrites.rsqrt import rsqrt
from quantpipe.graph.rewrites.several import extreme_to_clip, fold_to_pairs, split_to_slices, top_values_apart
from quantpipe.graph.rewrites.swish import swish

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
    layer_norm,
    constant_difference,
    constant_quotient,
    factor_of_queries,
    spatial_mean,
    rows_in_front,
    weights_outside,
    batch_norm_to_conv,
)
