"""The network that training sees: the float graph with every stored tensor rounded to its grid.

A kernel's result is rounded where it is stored; a result that stays an accumulator is not. What a float node makes is
rounded where a kernel reads it. Weights and biases of kernels are parameters. Everything starts at a plan's numbers,
and `overrides` gives the learned ones back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quantpipe.arrays import along
from quantpipe.graph.view import Node
from quantpipe.oprules import rule_of
from quantpipe.oprules.rule import Family
from quantpipe.plan import Overrides
from quantpipe.plan.bias import bias_step
from quantpipe.plan.pair_safe import in_own_type
from quantpipe.train.fake_quantize import (
    CLIP,
    SCALE,
    SOFT,
    TorchGrid,
    fake_quantize,
    nearest_rounding,
    scaled_gradient,
    straight_through,
)
from quantpipe.train.folded_convolutions import FoldedConvolution
from quantpipe.train.network import FloatNetwork
from quantpipe.train.range_parameters import RangeParameters
from quantpipe.train.train_options import TrainOptions, takes_any_factor
from quantpipe.train.trained_state import TrainedState, real_values, start_range, weight_start
from quantpipe.train.weight_parameters import ALGORITHMS, LearnedWeight
from quantpipe.types import (
    Accumulate,
    BiasScale,
    Form,
    Kernel,
    Rounding,
    WeightSite,
    WeightTensor,
)

GRADIENTS = {"none": SCALE, "ste": SCALE, "lsq": SCALE, "pact": CLIP, "dorefa": CLIP, "dsq": SOFT}
"""Algorithm for activations -> the gradient of rounding."""
SCALE_PARAMETERS = frozenset({"factor", "centre", "distance"})
"""Parameters of weights that are relative to their size."""
LEARNING = frozenset({"lsq", "pact", "dsq"})
"""Algorithms that learn ranges."""


class QuantizedNetwork(nn.Module):  # type: ignore[misc]
    """Compute the float graph with stored tensors on their grids; the hooks of a `FloatNetwork`."""

    def __init__(self, state: TrainedState, options: TrainOptions, device: torch.device) -> None:
        super().__init__()
        self.state, self.options = state, options
        self.network = FloatNetwork.of(state.graph, device)
        topology = state.problem.topology
        groups = {group.key: group for group in topology.groups}
        ranges = {key: start_range(options, group, state.applied.ranges[key]) for key, group in groups.items()}
        bits, schema = state.strategy.bits, state.problem.schema.activations
        self.ranges = RangeParameters(groups, ranges, bits, schema, learns=options.activations in LEARNING)
        self._kernels = {kernel.node: kernel for kernel in (*topology.kernels, *topology.weighted)}
        self._rounded_at = {k.output: k for k in topology.kernels if k.form is Form.QUANTIZED and not self._moves(k)}
        self._made_by = {k.output: k for k in topology.kernels}
        self._rounding = nearest_rounding(state.problem.spec.requantize.rounding)
        self._start_weights()
        self._start_biases()
        self.to(device)
        self._all_grids: dict[str, TorchGrid] = {}
        self._grids: dict[str, TorchGrid] = {}
        self._values: dict[str, Tensor] = {}
        self._read: dict[tuple[str, str], Tensor] = {}
        self._given: frozenset[str] = frozenset()
        self.generator = torch.Generator(device=device)

    # --- what is learned ------------------------------------------------------------------------------------------

    def _start_weights(self) -> None:
        self.weights, self.folded = nn.ModuleDict(), nn.ModuleDict()
        self._weight_names: dict[str, str] = {}
        self._folded_names: dict[str, str] = {}
        self._constants: dict[str, NDArray[np.float32]] = {}
        options, unit = self.options, self.options.weight_size == "unit"
        for number, site in enumerate(self.state.problem.topology.weights):
            stored = in_own_type(self.state.plan.weights[site.tensor], site.dtype)
            if options.weights == "none" or site.frozen or stored.block is not None:
                self._constants[site.tensor] = real_values(stored, site)
                continue
            node = self._folds(site)
            if node is None:
                start = weight_start(self.state, site, stored)
                self.weights[str(number)] = ALGORITHMS[options.weights](start, unit)
                self._weight_names[site.tensor] = str(number)
            else:
                self.folded[str(number)] = self._folded(site, stored, node)
                self._folded_names[node.name] = str(number)

    def _folds(self, site: WeightSite) -> Node | None:
        """Return the one convolution of a weight, where its BatchNormalization is to run with it."""
        if self.options.fold == 0 or len(site.nodes) != 1:
            return None
        node = self.state.graph.by_name[site.nodes[0]]
        norm = self.state.norms.get(node.outputs[0])
        channels = self.state.plan.weights[site.tensor].values.shape[site.channel_axis]
        if norm is None or channels != len(norm.gamma):  # a transposed convolution in groups shares its channels' axis
            return None
        takes_factors = site.axis == site.channel_axis and takes_any_factor(self.state.problem.schema.weights)
        return node if self.options.fold != -1 or takes_factors else None

    def _folded(self, site: WeightSite, stored: WeightTensor, node: Node) -> FoldedConvolution:
        norm, options = self.state.norms[node.outputs[0]], self.options
        factor = np.where(norm.factor == 0, 1.0, norm.factor)  # of such a channel the model's own weight is unknown
        bias = self.state.overrides.biases.get(node.name, norm.folded_bias)
        norm = replace(norm, beta=norm.beta + bias - norm.folded_bias)
        rank = stored.values.ndim
        start = weight_start(self.state, site, stored)
        latent = (start.value / along(factor, site.channel_axis, rank)).astype(np.float32)
        if options.fold == -1:
            sign = along(np.sign(factor).astype(np.int64), site.channel_axis, rank)
            scale = np.asarray(start.scale / np.abs(factor), np.float32)
            start = replace(start, real=latent, integers=start.integers * sign, scale=scale, qmin=-start.qmax)
        weight = ALGORITHMS[options.weights](start, options.weight_size == "unit")
        weight.latent = nn.Parameter(torch.from_numpy(latent))  # its grid is the folded weight's, but with strategy -1
        return FoldedConvolution(weight, norm, options.fold, channel_axis=site.channel_axis, parts=options.asynchronous)

    def _start_biases(self) -> None:
        self.biases = nn.ParameterDict()
        self._bias_names: dict[str, str] = {}
        learns = self.options.weights != "none"
        for number, (node, kernel) in enumerate(self._kernels.items()):
            real = self.state.overrides.biases.get(node)
            if real is None and kernel.bias is not None:
                real = self.state.graph.constant(kernel.bias).astype(np.float64).reshape(-1)
            if real is not None and node not in self._folded_names:
                value = torch.from_numpy(np.asarray(real, np.float32))
                self.biases[str(number)] = nn.Parameter(value, requires_grad=learns)
                self._bias_names[node] = str(number)

    @property
    def learned_nodes(self) -> frozenset[str]:
        """Return the nodes whose weights are learned."""
        weight_of = self.state.problem.topology.weight_of
        return frozenset(
            {n for tensor in self._weight_names for n in weight_of[tensor].nodes} | set(self._folded_names)
        )

    @property
    def fused_nodes(self) -> frozenset[str]:
        """Return the clamps that kernels have swallowed."""
        return frozenset(self.state.problem.topology.fused_into)

    def parameters_of(self, nodes: Sequence[Node]) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """Return the parameters of some nodes: weights and biases, and then scales and ranges.

        A scale group belongs to the nodes before which no node touches it.
        """
        names = {node.name for node in nodes}
        values: list[nn.Parameter] = []
        scales: list[nn.Parameter] = []
        for module in self._learned(names):
            for name, parameter in module.named_parameters():
                (scales if name.rsplit(".", 1)[-1] in SCALE_PARAMETERS else values).append(parameter)
        values += [self.biases[b] for n, b in self._bias_names.items() if n in names and self.biases[b].requires_grad]
        before = self._groups_of(self.state.graph.nodes[: self.state.graph.nodes.index(nodes[0])])
        scales += self.ranges.parameters_of(self._groups_of(nodes) - before)
        return values, scales

    def penalty(self, nodes: Sequence[Node], done: float) -> Tensor | None:
        """Return the mean penalty of the weights of some nodes after a share of the training; None for none."""
        modules = self._learned({node.name for node in nodes})
        found = [m.penalty(done) for m in modules if isinstance(m, LearnedWeight)]
        parts = [part for part in found if part is not None]
        return torch.stack(parts).mean() if parts else None

    @property
    def summary(self) -> str:
        """Return how many weights and ranges are learned."""
        topology, learned = self.state.problem.topology, len(self._weight_names) + len(self._folded_names)
        folded = f", {len(self._folded_names)} with their BatchNormalization" if self._folded_names else ""
        ranges = f"{len(self.ranges.learned)} of {len(topology.groups)} ranges"
        return f"{learned} of {len(topology.weights)} weights{folded}, {ranges}"

    def _learned(self, nodes: Collection[str]) -> list[nn.Module]:
        weight_of = self.state.problem.topology.weight_of
        found = [
            self.weights[w] for t, w in self._weight_names.items() if not set(nodes).isdisjoint(weight_of[t].nodes)
        ]
        return found + [self.folded[f] for n, f in self._folded_names.items() if n in nodes]

    def _groups_of(self, nodes: Sequence[Node]) -> frozenset[str]:
        """Return the keys of the scale groups of the tensors that some nodes read or make."""
        group_of = self.state.problem.topology.group_of
        return frozenset(group_of[t].key for node in nodes for t in (*node.inputs, *node.outputs) if t in group_of)

    # --- a pass ---------------------------------------------------------------------------------------------------

    def forward(
        self, values: Mapping[str, Tensor], wanted: Collection[str], nodes: Collection[Node] | None = None
    ) -> dict[str, Tensor]:
        """Return tensors of the quantized network, from the graph's inputs or from inner tensors."""
        self._all_grids = {}
        self._grids.clear()
        self._values.clear()
        self._read.clear()
        self._given = frozenset(values)
        found = self.network.run(values, wanted, self, None if nodes is None else list(nodes))
        self._values.clear()
        self._read.clear()
        return found

    def plain(
        self, values: Mapping[str, Tensor], wanted: Collection[str], nodes: Collection[Node] | None = None
    ) -> dict[str, Tensor]:
        """Return tensors of the float network."""
        with torch.no_grad():
            return self.network.run(values, wanted, None, None if nodes is None else list(nodes))

    def made(self, tensor: str, value: Tensor) -> Tensor:
        """Return a result on its grid, where it is stored; a given tensor is on its grid already."""
        if tensor in self._given:
            return value
        kernel = self._made_by.get(tensor)
        added = self._added_bias(tensor, value)
        stored = kernel is not None and tensor in self._rounded_at
        if tensor in self.state.problem.topology.brain_floats:
            return straight_through(added.to(torch.bfloat16).to(added), added)
        return self._on_grid(tensor, added, self._rounding) if stored else added

    def read(self, node: Node, port: int, value: Tensor) -> Tensor:
        """Return an operand on its grid, where a kernel reads in integers what no kernel has stored."""
        kernel = self._kernels.get(node.name)
        operand = None if kernel is None else next((o for o in kernel.operands if o.port == port), None)
        if kernel is None or operand is None or operand.form is not Form.QUANTIZED:
            return value
        tensor = operand.tensor
        if tensor not in self._made_by:
            value = self._once(tensor, tensor, value)
        return self._once(tensor, kernel.output, value) if operand.rescaled else value

    def constant(self, node: Node, port: int, value: Tensor) -> Tensor:
        """Return a weight on its grid, a learned bias, or a constant that a kernel reads as data on its grid."""
        tensor = node.inputs[port]
        kernel = self._kernels.get(node.name)
        if kernel is None:
            return value
        if tensor == kernel.weight and node.name not in self._folded_names:
            return self._weight(tensor, value)
        if tensor == kernel.bias and node.name in self._bias_names:
            return self._bias(node.name).reshape(value.shape).to(value)
        return self.read(node, port, value)

    def call(self, node: Node, operands: list[Tensor | None]) -> Tensor | None:
        """Return the result of a convolution that runs with its BatchNormalization."""
        name = self._folded_names.get(node.name)
        if name is None:
            return None
        found: Tensor = self.folded[name](
            operands[0],
            lambda *read: self.network.compute(node, list(read)),
            lambda bias, scale: self._in_steps(node.name, bias, scale),
        )
        return found

    def _weight(self, tensor: str, value: Tensor) -> Tensor:
        if tensor in self._constants:
            return torch.from_numpy(self._constants[tensor]).to(value)
        if tensor not in self._values:
            weight: LearnedWeight = self.weights[self._weight_names[tensor]]
            self._values[tensor] = weight().to(value)
        return self._values[tensor]

    def _bias(self, node: str) -> Tensor:
        """Return a bias as its kernel adds it."""
        kernel = self._kernels[node]
        real: Tensor = self.biases[self._bias_names[node]]
        return real if kernel.weight is None else self._in_steps(node, real, self._weight_scale(kernel.weight))

    def _weight_scale(self, tensor: str) -> Tensor:
        """Return the scale of a weight, `()` or shaped to broadcast, without gradients."""
        name = self._weight_names.get(tensor)
        if name is None:
            return torch.from_numpy(self.state.plan.weights[tensor].scale)
        weight: LearnedWeight = self.weights[name]
        with torch.no_grad():
            return weight.grid(weight.shaped(None)).scale

    def _in_steps(self, node: str, real: Tensor, weight_scale: Tensor) -> Tensor:
        """Return a bias in whole steps of the accumulator, where there is one, with the gradient of the real one."""
        group = self.state.problem.topology.group_of.get(self._kernels[node].operands[0].tensor)
        grid = None if group is None else self._grids.get(group.key)
        if grid is None or not isinstance(self.state.plan.kernels.get(node), Accumulate):
            return real
        found, spec = real.detach().double(), self.state.problem.spec
        step = weight_scale.reshape(-1).to(found) * grid.scale.detach().double().reshape(-1)
        if spec.bias_scale is not BiasScale.PRODUCT:
            step = step if len(step) > 1 else step[0]
            step = torch.from_numpy(bias_step(spec, node, found.cpu().numpy(), step.cpu().numpy())).to(found)
        return straight_through((torch.round(found / step) * step).to(real), real)

    def _added_bias(self, tensor: str, value: Tensor) -> Tensor:
        """Return a result with the bias that recovery gave a kernel without one."""
        node = self.state.graph.producers.get(tensor)
        kernel = None if node is None else self._kernels.get(node.name)
        if node is None or kernel is None or kernel.bias is not None or node.name not in self._bias_names:
            return value
        rule = rule_of(node)
        shape = [1] * value.ndim
        shape[(1 if rule is None else rule.output_axis) % value.ndim] = -1
        return value + self._bias(node.name).reshape(shape).to(value)

    def _once(self, tensor: str, stored_as: str, value: Tensor) -> Tensor:
        if (key := (tensor, stored_as)) not in self._read:
            self._read[key] = self._on_grid(stored_as, value)
        return self._read[key]

    def _on_grid(self, tensor: str, value: Tensor, rounding: Rounding = Rounding.HALF_EVEN) -> Tensor:
        group = self.state.problem.topology.group_of.get(tensor)
        if group is None or not value.is_floating_point():
            return value
        if group.key not in self._grids:
            if not self._all_grids:
                self._all_grids = self.ranges.grids(value)
            self._grids[group.key] = self._seen(self._all_grids[group.key], value)
        if self.training:
            self.ranges.see(group.key, value)
        grid = replace(self._grids[group.key], rounding=rounding)
        rounded = fake_quantize(value, grid, GRADIENTS[self.options.activations])
        if self.training and self.options.drop > 0:
            kept = torch.rand(value.shape, generator=self.generator, device=value.device) < self.options.drop
            return torch.where(kept, value, rounded)
        return rounded

    def _seen(self, grid: TorchGrid, value: Tensor) -> TorchGrid:
        """Return a grid with the gradients that the algorithm gives its numbers."""
        if self.options.activations == "lsq":
            features = value.numel() / max(value.shape[0], 1) if value.ndim else 1
            factor = float(features * max(grid.qmax, 1)) ** -0.5
            return replace(grid, scale=scaled_gradient(grid.scale, factor), zero=scaled_gradient(grid.zero, factor))
        return grid if self.options.activations in LEARNING else grid.detached()

    def _moves(self, kernel: Kernel) -> bool:
        """Return whether a kernel moves integers of its operands' own scale, which stay on their grid."""
        rule, group_of = rule_of(self.state.graph.by_name[kernel.node]), self.state.problem.topology.group_of
        same = {group_of[o.tensor].key for o in kernel.operands if o.tensor in group_of}
        stored = all(o.form is Form.QUANTIZED and not o.rescaled for o in kernel.operands)
        moves = rule is not None and rule.family is Family.MOVE and kernel.bounds == (-np.inf, np.inf)
        return moves and stored and kernel.output in group_of and same == {group_of[kernel.output].key}

    # --- what comes out -------------------------------------------------------------------------------------------

    def overrides(self) -> Overrides:
        """Return the learned numbers, and the numbers of the start that training left as they were."""
        start, weights, biases = self.state.overrides, dict[str, WeightTensor](), dict(self.state.overrides.biases)
        for tensor, name in self._weight_names.items():
            weight: LearnedWeight = self.weights[name]
            weights[tensor] = self._stored(tensor, *weight.stored())
        for node, name in self._folded_names.items():
            conv: FoldedConvolution = self.folded[name]
            codes, scale, bias = conv.folded()
            tensor = self._kernels[node].weight or ""
            weights[tensor] = self._stored(tensor, codes, scale)
            biases[node] = bias.double().cpu().numpy()
        if self.options.weights != "none":
            biases |= {node: self.biases[name].detach().double().cpu().numpy()
                       for node, name in self._bias_names.items()}  # fmt: skip
        ranges = {key: self.ranges.range(key) for key in self.ranges.learned}
        if self.options.activations == "dorefa":
            groups = self.state.problem.topology.groups
            ranges = {group.key: self.ranges.range(group.key) for group in groups if group.fixed is None}
        return replace(
            start,
            weights={**start.weights, **weights},
            biases=biases,
            ranges={**start.ranges, **ranges},
        )

    def _stored(self, tensor: str, codes: Tensor, scale: Tensor) -> WeightTensor:
        site = self.state.problem.topology.weight_of[tensor]
        before = in_own_type(self.state.plan.weights[tensor], site.dtype)
        zero = before.zero_point
        values = codes.cpu().numpy().astype(np.int64) + along(zero, before.axis or 0, before.values.ndim)
        scales = scale.detach().float().cpu().numpy().reshape(-1)
        return WeightTensor(
            tensor,
            values.astype(site.dtype.numpy),
            scales if site.axis is not None else scales[0].reshape(()),
            site.axis,
            site.dtype,
            before.bits,
            zero,
        )
