"""Types of topology.json, choices.json, pareto.json and data.json, with the meanings of their keys."""

from __future__ import annotations

from typing import TypedDict

from quantpipe.types.choices import OptionValue


class ScaleGroupPart(TypedDict):
    """Tensors that share a scale."""

    key: str
    tensors: list[str]
    sources: list[str]
    dtype: str
    max_bits: int


class IntegerNodePart(TypedDict):
    """A kernel of the topology."""

    node: str
    op: str
    output: str
    form: str
    fused: list[str]


class TopologyFile(TypedDict):
    """topology.json without its origin."""

    # node → runs in integers
    node_conds: dict[str, bool]
    # `producer->consumer:port` → its consumer runs in integers
    edge_conds: dict[str, bool]
    # node → reason
    float_nodes: dict[str, str]
    # per scale group: `key` (its first tensor), `tensors`, `sources` (whose statistics count), `dtype`, `max_bits`
    groups: list[ScaleGroupPart]
    # per kernel: `node`, `op`, `output`, `form` (`quantized` or `raw`), `fused` (its fused clamps)
    kernels: list[IntegerNodePart]


class ChoicePart(TypedDict):
    """One decision of the search."""

    key: str
    kind: str
    options: list[OptionValue]
    edges: list[str]


class ChoicesFile(TypedDict):
    """choices.json without its origin."""

    # per choice `key`, `kind` and `options` ([kinds of choices](search.md#kinds-of-choices)), and the `edges` that
    # share it
    choices: list[ChoicePart]
    # number of points, as text, because it can exceed any float
    size: str


class FrontRow(TypedDict):
    """A point of a Pareto front."""

    # in `trials.jsonl`
    number: int
    # `value`, `cost`, `metrics`, `choices`: as in `trials.jsonl`
    value: float
    cost: float
    metrics: dict[str, float]
    choices: dict[str, OptionValue]
    # its file
    strategy: str
    # true for the point that became the strategy
    picked: bool


class ParetoFile(TypedDict):
    """pareto.json without its origin."""

    # the rule, `pick`
    pick: str | None
    # cheapest point first
    front: list[FrontRow]


class SkippedSample(TypedDict):
    """A sample that could not be read."""

    index: int
    name: str
    reason: str


class SourceRecord(TypedDict, total=False):
    """Which samples of a source a split has; a data set of a plug-in may lack all of these keys."""

    # file, folder or function
    source: str
    # positions in the source, in the order of use, as [[first, last], …]
    indices: list[list[int]]
    # [{`index`, `name`, `reason`}] of omitted samples (`dataset.on_error=skip`)
    skipped: list[SkippedSample]
    # [[first, last], …] positions of samples omitted because another split has them, too (`dataset.duplicates=drop`)
    duplicates: list[list[int]]
    # `state`, `sequences`: output → input, and the number of sequences, if state is carried
    state: dict[str, str]
    sequences: int
    # names of the inputs whose values are drawn at random, if there are any (`model.random`)
    drawn: list[str]


class SplitRecord(SourceRecord):
    """The entry of a split in data.json."""

    # how many
    samples: int
    # of content, order, labels and preprocessing; also in the origin of dependent artifacts
    digest: str
