"""The numbers of BatchNormalizations that the clean-up folds into the convolutions before them.

Takes the model as read, because the clean model has only the folded weights. Gives the numbers by the name of the
normalization's result, which is the convolution's result in the clean model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantpipe.graph.edit import attribute, is_op, only_user, operand
from quantpipe.graph.external_weights import place_of
from quantpipe.graph.view import Graph


@dataclass(frozen=True, eq=False)
class BatchNorm:
    """Hold the numbers of a BatchNormalization `[C]`, and the bias of the convolution before it.

    With f = γ/√(σ² + ε) the clean graph's convolution has the weight W·f along its output channels and the bias
    (b - μ)·f + β (Ioffe and Szegedy 2015, at inference).
    """

    gamma: NDArray[np.float64]
    beta: NDArray[np.float64]
    mean: NDArray[np.float64]
    variance: NDArray[np.float64]
    epsilon: float
    bias: NDArray[np.float64]

    @property
    def folded_bias(self) -> NDArray[np.float64]:
        """Return the bias of the clean graph's convolution, (b - μ)·f + β `[C]`."""
        return (self.bias - self.mean) * self.factor + self.beta

    @property
    def factor(self) -> NDArray[np.float64]:
        """Return γ/√(σ² + ε) `[C]`."""
        return self.gamma / np.sqrt(self.variance + self.epsilon)


def batch_norms(model: ir.Model) -> dict[str, BatchNorm]:
    """Return result of a BatchNormalization -> its numbers, where a convolution that nothing else reads is before it.

    `model` is as read, before the clean-up. Only the form for inference with constant parameters counts, after a Conv
    or ConvTranspose with constant weight and bias. The clean-up folds no other: not after a Gemm, and not into a
    ConvTranspose whose weight stays in its file. A result that a later step of the clean-up joins to another op has no
    tensor in the clean graph.
    """
    found = ((node, numbers_of(model.graph, node)) for node in model.graph)
    return {node.outputs[0].name or "": numbers for node, numbers in found if numbers is not None}


def has_folded_bias(graph: Graph, name: str, norm: BatchNorm) -> bool:
    """Return whether a tensor of the clean graph is a convolution's result with the bias that folding alone gives.

    A later step of the clean-up may have added a constant before the convolution to it.
    """
    node = graph.producers.get(name)
    bias = graph.constant(node.inputs[2]) if node is not None and len(node.inputs) > 2 else None
    return bias is not None and bool(np.allclose(bias.reshape(-1), norm.folded_bias, rtol=1e-4, atol=1e-6))


def numbers_of(graph: ir.Graph, node: ir.Node) -> BatchNorm | None:
    """Return the numbers of a BatchNormalization that the clean-up folds, None for any other node."""
    data = node.inputs[0] if is_op(node, "BatchNormalization") else None
    conv = data.producer() if data is not None else None
    if data is None or conv is None or not _folds(conv):
        return None
    if attribute(node, "training_mode", 0) or len(node.outputs) > 1:
        return None
    parameters = [_constant(value) for value in node.inputs[1:5]]
    given = operand(conv, 2)
    bias = np.zeros(1) if given is None else _constant(given)
    if bias is None or any(p is None for p in parameters) or only_user(data, graph) is None:
        return None
    gamma, beta, mean, variance = (np.asarray(p, np.float64) for p in parameters)
    added = np.array(np.broadcast_to(bias, gamma.shape))
    return BatchNorm(gamma, beta, mean, variance, attribute(node, "epsilon", 1e-5), added)


def _folds(conv: ir.Node) -> bool:
    """Return whether the clean-up folds a BatchNormalization into this node."""
    if not is_op(conv, "Conv", "ConvTranspose") or conv.inputs[1] is None:
        return False
    weight = ir.convenience.get_const_tensor(conv.inputs[1])
    return weight is not None and (conv.op_type == "Conv" or place_of(weight) is None)


def _constant(value: ir.Value | None) -> NDArray[np.float64] | None:
    """Return a constant as float64, from an initializer or a Constant node, else None."""
    tensor = ir.convenience.get_const_tensor(value) if value is not None else None
    return None if tensor is None else np.asarray(tensor.numpy(), np.float64)
