"""Copies of tensors for single readers, so that a search may give an edge a scale and bits of its own.

A tensor is stored once, and every reader takes it so. With `edges` in `annotate.choices`, each further reader of a
tensor gets an Identity in front. It moves values, so by default it has the scale of the tensor and rounds nothing. The
choice `rescale:NODE` of this Identity gives the edge a scale (and bits) of its own.
"""

from __future__ import annotations

from dataclasses import replace

from quantpipe.annotate.conditions import AnnotateOptions
from quantpipe.annotate.edge_copies import EDGES, copy_name
from quantpipe.annotate.fixed_operands import rescales
from quantpipe.annotate.topology import analyze
from quantpipe.errors import ConfigError
from quantpipe.graph.view import Graph
from quantpipe.intake.fixed import fixed_hash
from quantpipe.recover.rescale.constant_writer import Writer
from quantpipe.types import Form, HardwareSpec, Schema, Topology

KEY = "annotate.choices"


def with_edge_copies(graph: Graph, spec: HardwareSpec, schema: Schema, options: AnnotateOptions) -> Graph:
    """Return the graph with an Identity before each reader of a stored tensor but the first.

    It is another model than the file's; the graph itself where `annotate.choices` has no `edges`, or no tensor has two
    readers in integers. Raises ConfigError for a device that brings no stored integers to another scale.
    """
    if EDGES not in options.choices:
        return graph
    if not rescales(spec):
        raise ConfigError(
            f"has {EDGES}, and {spec.name} brings no stored integers to another scale (requantize.kind is "
            f"{spec.requantize.kind}); legal are a device with float_multiplier, or choices without {EDGES}",
            where=KEY,
        )
    topology = analyze(graph, spec, schema, replace(options, choices=()))
    writer, copies = Writer(graph), list[str]()
    for group in topology.groups:
        for tensor in group.tensors:
            readers = dict.fromkeys(reader for reader, _ in graph.consumers.get(tensor, ()))
            for reader in [r for r in readers if _takes_stored(topology, r.name, tensor)][1:]:
                copies.append(copy_name(tensor, reader.name))
                writer.identity_for(tensor, reader, copies[-1])
    if not copies:
        return graph
    made = writer.graph()
    names = ("model", "nodes", "shapes", "dtypes", "varying", "open_axes", "largest")
    changed = {name: getattr(made, name) for name in names}
    return replace(graph, **changed, model_hash=fixed_hash(graph.model_hash, {KEY: copies}), as_given=graph.timed)


def _takes_stored(topology: Topology, node: str, tensor: str) -> bool:
    """Whether a node runs in integers and reads the tensor as stored integers."""
    kernel = topology.kernel_of.get(node)
    return kernel is not None and any(o.tensor == tensor and o.form is Form.QUANTIZED for o in kernel.operands)
