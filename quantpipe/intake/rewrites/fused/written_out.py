"""The table of fused ops: the attributes that each has, and what writes it as ops of ONNX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import onnx_ir as ir
import onnx_ir.passes.common as common_passes

from quantpipe.errors import ModelError, nearest
from quantpipe.graph.external_weights import copied
from quantpipe.graph.symbolic_axes import axes_of, plain_axes_and_types_of
from quantpipe.intake.rewrites.fused import attention, blocked, cached, dense, norms, pointwise, rotary
from quantpipe.intake.rewrites.fused.body import NORM_OPSET, FusedBody
from quantpipe.intake.rewrites.fused.dense import CONV, PARAMETERS, POOL, TRANSPOSED

STAGE = "model"
MOST_PASSES = 16
ACTIVATION = ("activation", "activation_params")


@dataclass(frozen=True)
class FusedOp:
    """Hold an op's attributes, and its writer, which returns False where it leaves the node as it is."""

    write: Callable[[FusedBody], bool]
    attributes: tuple[str, ...] = ()
    activations: frozenset[str] | None = None
    """The functions that `activation` may name; None without such an attribute."""


_OF_CONV = frozenset({"Relu", "Tanh", "Sigmoid", "LeakyRelu", "Clip", "HardSigmoid"})
_OF_ATTENTION = ("mask_filter_value", "num_heads", "scale", "unidirectional")
_OF_ROTARY = ("interleaved", "num_heads", "rotary_embedding_dim")
_OF_GEMM = frozenset(PARAMETERS) - {"Clip"}

_MS: Mapping[str, FusedOp] = {
    "FusedConv": FusedOp(dense.conv, (*CONV, *ACTIVATION), _OF_CONV),
    "NhwcConv": FusedOp(dense.channels_last_conv, CONV),
    "NhwcFusedConv": FusedOp(dense.channels_last_conv, (*CONV, *ACTIVATION), _OF_CONV),
    "NhwcMaxPool": FusedOp(dense.channels_last_pool, POOL),
    "FusedGemm": FusedOp(
        dense.gemm,
        ("alpha", "beta", *TRANSPOSED, "activation", *(f"activation_{n}" for n in ("alpha", "beta", "gamma"))),
        _OF_GEMM,
    ),
    "FusedMatMul": FusedOp(dense.matmul, ("alpha", *TRANSPOSED, "transBatchA", "transBatchB")),
    "TransposeMatMul": FusedOp(dense.matmul, ("alpha", *TRANSPOSED)),
    "Gelu": FusedOp(pointwise.gelu),
    "BiasGelu": FusedOp(pointwise.gelu),
    "FastGelu": FusedOp(pointwise.fast_gelu),
    "QuickGelu": FusedOp(pointwise.quick_gelu, ("alpha",)),
    "BiasSplitGelu": FusedOp(pointwise.split_gelu),
    "BiasAdd": FusedOp(pointwise.bias_add),
    "SkipLayerNormalization": FusedOp(norms.skip_layer_norm, ("epsilon",)),
    "SkipSimplifiedLayerNormalization": FusedOp(norms.skip_simplified_layer_norm, ("epsilon",)),
    "EmbedLayerNormalization": FusedOp(norms.embed_layer_norm, ("epsilon", "mask_index_type")),
    "Attention": FusedOp(
        attention.attention,
        (*_OF_ATTENTION, "do_rotary", "past_present_share_buffer", "qkv_hidden_sizes", "rotary_embedding_dim"),
    ),
    "MultiHeadAttention": FusedOp(attention.multi_head_attention, _OF_ATTENTION),
    "GroupQueryAttention": FusedOp(
        cached.group_query_attention,
        (
            "causal",
            "do_rotary",
            "k_norm_epsilon",
            "k_quant_type",
            "kv_cache_bit_width",
            "kv_num_heads",
            "local_window_size",
            "num_heads",
            "q_norm_epsilon",
            "qk_norm_epsilon",
            "qk_output",
            "rotary_interleaved",
            "scale",
            "sliding_window_cache",
            "smooth_softmax",
            "softcap",
            "v_quant_type",
        ),
    ),
    "RotaryEmbedding": FusedOp(rotary.ms_rotary_embedding, (*_OF_ROTARY, "is_packed_batching", "scale")),
}

_BLOCKED: Mapping[str, FusedOp] = {
    "Conv": FusedOp(blocked.conv, (*CONV, *ACTIVATION), _OF_CONV),
    "MaxPool": FusedOp(blocked.pool, (*POOL, "storage_order")),
    "AveragePool": FusedOp(blocked.pool, blocked.AVERAGED),
    "GlobalMaxPool": FusedOp(blocked.pool),
    "GlobalAveragePool": FusedOp(blocked.pool),
    "Upsample": FusedOp(blocked.enlarge, ("coordinate_transformation_mode", "mode", "scales")),
    "ReorderInput": FusedOp(blocked.blocks_made, ("channels_last",)),
    "ReorderOutput": FusedOp(blocked.blocks_undone, ("channels", "channels_last")),
}

FUSED: Mapping[tuple[str, str], FusedOp] = MappingProxyType(
    {("com.microsoft", name): op for name, op in _MS.items()}
    | {(blocked.DOMAIN, name): op for name, op in _BLOCKED.items()}
    | {
        ("", "SimplifiedLayerNormalization"): FusedOp(norms.simplified_layer_norm, ("axis", "epsilon", "stash_type")),
        ("", "LayerNormalization"): FusedOp(norms.early_layer_norm, ("axis", "epsilon", "stash_type")),
        ("", "RotaryEmbedding"): FusedOp(rotary.rotary_embedding, _OF_ROTARY),
        ("", "Attention"): FusedOp(
            cached.standard_attention,
            (
                "is_causal",
                "kv_num_heads",
                "left_window_size",
                "q_num_heads",
                "qk_matmul_output_mode",
                "right_window_size",
                "scale",
                "softcap",
                "softmax_precision",
            ),
        ),
    }
)
"""Domain and name -> the op. The normalizations are onnxruntime's own in opsets without such an op."""


_PASTS: Mapping[tuple[str, str], tuple[int, int]] = MappingProxyType(
    {
        ("", "Attention"): (4, 5),
        ("com.microsoft", "GroupQueryAttention"): (3, 4),
        ("com.microsoft", "MultiHeadAttention"): (6, 7),
    }
)
"""Op -> the ports of its past."""


def refuse_undefined(model: ir.Model, path: Path) -> None:
    """Raise ModelError for a fused op with an attribute, an activation or a type of its past that nobody defined."""
    for node in model.graph.all_nodes():
        op = FUSED.get((node.domain, node.op_type))
        if op is None:
            continue
        fault = _undefined(node, op) or _past_of_wrong_type(node) or _of_two_types(node)
        if fault:
            raise ModelError(fault, stage=STAGE, where=f"{path}, node {node.name!r}")


def _undefined(node: ir.Node, op: FusedOp) -> str:
    name = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    for given in node.attributes:
        if given not in op.attributes:
            legal = ", ".join(op.attributes) or "none"
            return (
                f"{name} has the attribute {given!r}, which its definition does not "
                f"have{nearest(given, op.attributes)}; legal are {legal}"
            )
    activation = node.attributes.get("activation")
    if op.activations is not None and activation is not None and activation.value not in op.activations:
        return (
            f"{name} has the activation {activation.value!r}, which nobody defined; legal are "
            f"{', '.join(sorted(op.activations))}"
        )
    return ""


def _past_of_wrong_type(node: ir.Node) -> str:
    """Return what is wrong with the types of the inputs of the model that a node reads as its past."""
    ports = _PASTS.get((node.domain, node.op_type), ())
    given = [v for v in node.inputs if v is not None and node.inputs.index(v) in ports and v.is_graph_input()]
    types = {v.name: v.dtype for v in given if v.dtype is not None}
    one = len(set(types.values())) <= 1
    if one and ir.DataType.DOUBLE not in types.values():
        return ""
    named = " and ".join(f"{name!r} as {dtype.name.lower()}" for name, dtype in types.items())
    return (
        f"{node.op_type} reads the past {named}; legal is one type for both, that of its keys: float, float16 or "
        "bfloat16. Declare the inputs so, or put a Cast between"
    )


def _of_two_types(node: ir.Node) -> str:
    """Return what is wrong with an attention whose keys and values are declared in two types."""
    known = [v for v in node.inputs[1:3] if v is not None and v.dtype is not None]
    if (node.domain, node.op_type) != ("", "Attention") or len({v.dtype for v in known}) <= 1:
        return ""
    named = " and ".join(f"{v.name!r} as {v.dtype.name.lower()}" for v in known if v.dtype is not None)
    return (
        f"Attention reads keys and values {named}. ONNX defines this, but onnxruntime, which runs the model here, does "
        "not run it; legal is one type for both. Put a Cast before one of them"
    )


def fused_written_out(model: ir.Model) -> ir.Model:
    """Return the model with fused ops written as ops of ONNX; itself where it has no such op.

    Shapes that a writer needs may be known only after an earlier op is written out, so several passes are made. A model
    with channels in blocks stays as it is unless all ops on blocks are written out.
    """
    found = model
    for _ in range(MOST_PASSES):
        newer = _one_pass(found)
        if newer is found:
            break
        found = newer
    return model if any(node.domain == blocked.DOMAIN for node in found.graph) else found


def _is_written(node: ir.Node, opset: int) -> bool:
    """Return whether a node is a fused op that is written out: not in float64, and not where ONNX has the op itself."""
    own = not node.domain and node.op_type == "LayerNormalization" and opset >= NORM_OPSET
    double = any(v is not None and v.dtype is ir.DataType.DOUBLE for v in node.inputs)
    return (node.domain, node.op_type) in FUSED and not own and not double


def _one_pass(model: ir.Model) -> ir.Model:
    """Return the model with the fused ops written out whose operands have known shapes; itself without such ops."""
    opset = int(model.graph.opset_imports.get("", 1))
    if not any(_is_written(node, opset) for node in model.graph):
        return model
    copy = copied(model)
    common_passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(copy)
    plain, types = plain_axes_and_types_of(copy)
    known = axes_of(copy) or plain
    changed = False
    for node in list(copy.graph):
        op = FUSED.get((node.domain, node.op_type)) if _is_written(node, opset) else None
        if op is not None and op.write(FusedBody(copy.graph, node, opset, axes=known.get, types=types.get)):
            copy.graph.remove(node, safe=True)
            changed = True
    common_passes.RemoveUnusedNodesPass()(copy)
    return copy if changed else model
