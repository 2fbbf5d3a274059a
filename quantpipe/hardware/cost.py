"""Compute the cost of a choice of bits.

There are bits, weight bytes (at their bits, and as they are stored), BOPs, cycles of the device, and the most bytes of
activations at once. All are pure functions of (topology, graph, hardware, bits per tensor); none runs a model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import ceil, prod

from quantpipe.graph.view import Graph, Node
from quantpipe.hardware.gain import rate, real_rate
from quantpipe.hardware.predictor import PREDICTED, predicted
from quantpipe.hardware.storage import narrowest, storage_types, weight_only_types
from quantpipe.hardware.vectors import vector_steps
from quantpipe.oprules import rule_of
from quantpipe.oprules.work import multiply_accumulates
from quantpipe.types import Form, HardwareSpec, Kernel, LoopSite, Topology, WeightSite

Bits = Mapping[str, int]
CostFunction = Callable[[Topology, Graph, HardwareSpec, Bits], float]

FLOAT_BITS = 32
HALF_BITS = 16


def bit_sum(topology: Topology, graph: Graph, spec: HardwareSpec, bits: Bits) -> float:
    """Return the sum of the bits over all quantized edges (the RFC's measure).

    Edges that are left in float by choice count 32 bits. `spec` is not read: all costs have one signature.
    """
    groups = sum(bits[g.key] * len(g.edges) for g in topology.groups)
    weights = sum(bits[w.tensor] * len(w.edges) for w in topology.stored_constants)
    return float(groups + weights + FLOAT_BITS * len(topology.float_edges))


def weight_bytes(topology: Topology, graph: Graph, spec: HardwareSpec, bits: Bits) -> float:
    """Return the bytes of all quantized weights at their bits, and of weights left in float by choice.

    Biases and scales are not counted. `spec` is not read: all costs have one signature.
    """
    return _bytes_of_weights(topology, graph, bits)


def stored_bytes(topology: Topology, graph: Graph, spec: HardwareSpec, bits: Bits) -> float:
    """Return the bytes of all weights in the types that they are stored in.

    A weight that is left in float by choice counts 4 bytes a value, or 2 where its reader computes in float16.
    """
    types = storage_types(topology).at(bits)
    widths = {
        w.tensor: _stored_width(w, graph, spec, bits[w.tensor], width=types[w.tensor].bits) for w in topology.weights
    }
    tables = {t.tensor: bits[t.tensor] for t in topology.tables}
    return _bytes_of_weights(topology, graph, {**tables, **widths})


def _stored_width(site: WeightSite, graph: Graph, spec: HardwareSpec, bits: int, *, width: int) -> float:
    """Return the bits of a weight's value, `width` of its type; in blocks, its code and its share of a multiplier."""
    if site.block is None:
        return width
    shape = graph.shapes[site.tensor]
    elements = shape[1 - site.channel_axis] * prod(shape[2:])
    count = ceil(shape[1 - site.channel_axis] / site.block.size)
    if site.block.are_real:
        types = weight_only_types(spec, graph.by_name[site.nodes[0]].op)
        return narrowest(types, bits).bits + FLOAT_BITS * count / max(elements, 1)
    return (4 if bits <= 4 else 8) + site.block.multiplier_bits * count / max(elements, 1)


def _bytes_of_weights(topology: Topology, graph: Graph, bits: Mapping[str, float]) -> float:
    """Return all weights with so many bits a value, and those that are left in float by choice."""
    stored = [prod(graph.shapes[site.tensor]) * bits[site.tensor] for site in topology.weights]
    stored += [prod(graph.shapes[t.tensor]) * bits[t.tensor] for t in topology.tables if t.weight is None]
    left = (prod(graph.shapes[t]) * _real_bits(graph, topology, t) for t in topology.float_weights)
    return sum([*stored, *left]) / 8


RUN_BITS = 8
"""Of an input that gets a scale from the samples of each run."""


def _real_bits(graph: Graph, topology: Topology, tensor: str) -> int:
    """Return the bits of a float tensor: 16 if made in float16 or, for a constant, only read by such nodes."""
    made = graph.producers.get(tensor)
    around = [made] if made is not None else [node for node, _ in graph.consumers.get(tensor, ())]
    return HALF_BITS if around and all(n.name in topology.half_nodes for n in around) else FLOAT_BITS


def bops(topology: Topology, graph: Graph, spec: HardwareSpec, bits: Bits) -> float:
    """Return the bit operations per sample: Σ MACs · weight bits · activation bits.

    Float nodes count 32 x 32 (16 x 16 where they compute in float16), or 32 times the bits of an integer weight. Where
    the input gets a scale of each run, they count 8 times these bits.
    Products inside loops count by the bits of their weights and of the state.
    """
    total = 0.0
    for node in graph.nodes:
        kernel = topology.kernel_of.get(node.name) or topology.weighted_of.get(node.name)
        loop = topology.loop_of.get(node.name)
        real = HALF_BITS if node.name in topology.half_nodes else FLOAT_BITS
        width: float = _operand_bits(kernel, bits, real) if loop is None else _loop_bits(loop, bits)
        if node.name in topology.dynamic:
            width = RUN_BITS * bits[topology.weighted_of[node.name].weight or ""]
        elif (cell := topology.cell_of.get(node.name)) is not None:
            sizes = {weight: prod(graph.shapes[weight]) for weight in cell.weights}
            width = RUN_BITS * sum(bits[weight] * size for weight, size in sizes.items()) / sum(sizes.values())
        total += macs(node, graph) * width
    return total


def cycles(topology: Topology, graph: Graph, spec: HardwareSpec, bits: Bits) -> float:
    """Return the device cycles of one sample, of all nodes together (`node_cycles`)."""
    return sum(node_cycles(topology, graph, spec, bits).values())


def node_cycles(topology: Topology, graph: Graph, spec: HardwareSpec, bits: Bits) -> dict[str, float]:
    """Return the device cycles of one sample, by name of the node; nodes without cycles are left out.

    The cycles are the sum of four parts. MACs are divided by the rate of the operands' width. Loaded bytes are divided
    by the bandwidth: weights in the types that they are stored in (32 bits in float), and `scale_bytes` for each of
    their scales. Every kernel, every operand that is rescaled before one, and every float node that computes
    values costs `launch_cycles`; fused clamps cost nothing. A vector unit adds the steps of `vector_steps` where the
    hardware file describes them.

    Channels are padded to `channel_block`. A width without a rate runs at the next wider one. An operand counts by its
    bits, or by its type where its kernel holds it in a wider type.
    """
    storage = storage_types(topology)
    types = storage.at(bits)
    inside = {node for site in topology.sites for node in site.nodes[1:]}.union(topology.fused_into)
    total = {
        n.name: float(spec.cost.launch_cycles)
        for n in graph.nodes
        if n.name not in inside and graph.dtypes.get(n.outputs[0], "float32") == "float32"
    }
    for one in topology.kernels if spec.cost.launch_cycles else ():
        rescaled = sum(operand.rescaled for operand in one.operands)
        total[one.node] = total.get(one.node, 0.0) + rescaled * float(spec.cost.launch_cycles)
    for name, steps in vector_steps(topology, graph, spec).items():
        total[name] = total.get(name, 0.0) + steps
    device, costs = spec, _costs_of_sites(topology, spec)
    for node in graph.nodes:
        work = macs(node, graph)
        if not work:
            continue
        spec = costs.get(node.name, device)
        kernel = topology.kernel_of.get(node.name)
        loaded = 0.0
        if (loop := topology.loop_of.get(node.name)) is not None:
            held = [topology.weight_of[t] for t in dict.fromkeys(weight for _, weight in loop.products)]
            loaded = sum(prod(graph.shapes[w.tensor]) * w.dtype.bits / 8 for w in held)
            widest = max(topology.group_of[loop.state].dtype.bits, *(w.dtype.bits for w in held))
            found = work / rate(spec, widest)
        elif (cell := topology.cell_of.get(node.name)) is not None:
            loaded = sum(prod(graph.shapes[t]) * topology.weight_of[t].dtype.bits / 8 for t in cell.weights)
            found = work / rate(spec, RUN_BITS)
        elif kernel is None:
            rule = rule_of(node)
            weight = rule.weight_of(node, graph) if rule is not None else None
            real = HALF_BITS if node.name in topology.half_nodes else FLOAT_BITS
            loaded = prod(graph.shapes[weight]) * real / 8 if weight is not None else 0.0
            if node.name in topology.weighted_of:
                site = topology.weight_of[weight or ""]
                loaded *= _stored_width(site, graph, spec, bits[site.tensor], width=FLOAT_BITS) / FLOAT_BITS
            dynamic = node.name in topology.dynamic
            found = work / (rate(spec, RUN_BITS) if dynamic else real_rate(spec, real))
        elif kernel.weight is None:
            found = work / rate(spec, max(storage.width(o.tensor, bits[o.tensor], types) for o in kernel.operands))
        else:
            operands = (kernel.weight, kernel.operands[0].tensor)
            widest = max(storage.width(t, bits[t], types) for t in operands)
            found = work * alignment(node, graph, spec) / rate(spec, widest)
            site, shape = topology.weight_of[kernel.weight], graph.shapes[kernel.weight]
            scales = 1 if site.axis is None else shape[site.axis]
            width = _stored_width(site, graph, spec, bits[site.tensor], width=types[site.tensor].bits)
            loaded = prod(shape) * width / 8 + scales * spec.cost.scale_bytes
        total[node.name] = total.get(node.name, 0.0) + found + loaded / spec.cost.bytes_per_cycle
    return total


def _costs_of_sites(topology: Topology, spec: HardwareSpec) -> dict[str, HardwareSpec]:
    """Return node of a kernel with costs of its own -> the device with these."""
    own = {kernel.name: replace(spec, cost=kernel.cost) for kernel in spec.kernels if kernel.cost is not None}
    return {node: own[site.kernel] for site in topology.sites if site.kernel in own for node in site.nodes}


def peak_activation_bytes(topology: Topology, graph: Graph, spec: HardwareSpec, bits: Bits) -> float:
    """Return the maximum bytes of activations that live at once, per sample.

    The nodes run one after the other in their order. A tensor lives from the node that makes it (a model input: from
    the beginning) to its last reader (a model output: to the end). A node's inputs and outputs live together.

    Stored tensors count at their bits, and accumulators that another kernel reads at the accumulator's width. All
    others count at 32 bits, or 16 where they are made in float16. A kernel and the clamps fused into it are one step;
    tensors between them are never stored.
    """
    last: dict[str, int] = {}
    for step, node in enumerate(graph.nodes):
        last |= dict.fromkeys((t for t in (*node.inputs, *node.captured) if t and not graph.is_constant(t)), step)
    last |= dict.fromkeys(graph.output_names, len(graph.nodes))
    widths = {k.output: spec.accumulator.width for k in topology.kernels if k.form is Form.RAW}
    widths |= {t: bits[t] for t in topology.group_of}

    def size(tensor: str) -> float:
        width = widths[tensor] if tensor in widths else _real_bits(graph, topology, tensor)
        return prod(graph.shapes.get(tensor, (0,))) * width / 8

    live = {i.name: size(i.name) for i in graph.inputs if i.name in last}
    peak = sum(live.values())
    for step, node in enumerate(graph.nodes):
        if node.name not in topology.fused_into:
            kernel = topology.kernel_of.get(node.name)
            made = (kernel.output,) if kernel is not None else node.outputs
            live |= {t: size(t) for t in made if t}
            peak = max(peak, sum(live.values()))
        live = {t: b for t, b in live.items() if last.get(t, -1) > step}
    return peak


COSTS: Mapping[str, CostFunction] = {
    "bits": bit_sum,
    "weight_bytes": weight_bytes,
    "stored_bytes": stored_bytes,
    "bops": bops,
    "cycles": cycles,
    "peak_activation_bytes": peak_activation_bytes,
}


def cost_function(name: str) -> CostFunction | None:
    """Return the function of a cost by its name, fitted predictions included; None for a measured latency."""
    if name in PREDICTED:
        quantity = PREDICTED[name]
        return lambda topology, graph, spec, bits: predicted(quantity, topology, graph, spec, bits=bits)
    return COSTS.get(name)


ELEMENT = 24
"""Work of writing one element, in multiply-accumulates (a convolution with few channels is bound by memory)."""


def macs(node: Node, graph: Graph) -> int:
    """Return multiply-accumulates of a node per sample."""
    return multiply_accumulates(node, graph)


def _operand_bits(kernel: Kernel | None, bits: Bits, real: int) -> int:
    if kernel is None:
        return real * real
    if kernel.weight is None:
        return prod(bits.get(o.tensor, FLOAT_BITS) for o in kernel.operands)
    return bits[kernel.weight] * bits.get(kernel.operands[0].tensor, FLOAT_BITS)


def _loop_bits(loop: LoopSite, bits: Bits) -> int:
    return bits[loop.state] * max(bits[weight] for _, weight in loop.products)


def alignment(node: Node, graph: Graph, spec: HardwareSpec) -> float:
    """Return the device's work over the work that counts.

    That is padded channels over real ones, of both sides of the weight.
    """
    shape, block = graph.shapes[node.inputs[1]], spec.cost.channel_block
    return prod(ceil(c / block) * block / c for c in shape[:2])
