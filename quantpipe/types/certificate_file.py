"""Types of certificate.json. The comments are the meanings of the keys in docs/artifacts.md."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class AccumulatorClaim(TypedDict):
    """The size of a kernel's sums."""

    dtype: str
    bound: int
    overflow: str | None


class CarriedClaim(TypedDict):
    """How the simulated model holds the sums."""

    by: str
    data: NotRequired[list[int]]
    weight: NotRequired[list[int]]
    inputs: NotRequired[list[list[int]]]


class NarrowedClaim(TypedDict, total=False):
    """How often the stored integer departs from the exact product."""

    # over all channels, within the bound
    accumulators: int
    # number of accumulators for which the integer is not the rounded exact product with the multiplier. Null: not
    # counted, for results of 16 bits in more than 64 channels. In fixed point, the exact product is rounded once, with
    # ties away from zero
    departing: int | None
    # the first ranges of these, [channel, from, to]; the channel is null if all are alike
    first: list[list[int | None]]
    # only for an addition in float32: number of operand pairs for which the claim holds
    pairs: int


class TableFunction(TypedDict):
    """The function of a table."""

    op: str
    attributes: dict[str, Any]
    parameters: list[Any]


class TableClaim(TypedDict):
    """The entries of a lookup."""

    entries: int
    function: TableFunction | None


class ProgramClaim(TypedDict):
    """The steps of a function of rows."""

    steps: int
    bound: int
    formed: str
    shapes: NotRequired[list[list[int]]]


class PairsClaim(TypedDict):
    """Pairs of products in int16."""

    largest: int


class ShapeClaim(TypedDict, total=False):
    """Numbers that depend on the shape of the input."""

    elements: int
    products: int


class Claimed(TypedDict, total=False):
    """The claims of one kernel; its kind decides which there are."""

    # no sum exceeds `bound` in magnitude. `overflow` null: so every sum fits `dtype`. `wrap`, `saturate`: sums that do
    # not fit are modelled so
    accumulator: AccumulatorClaim
    # how the simulated model holds the sums exactly: `by`, and for some `data`, `weight`, `inputs`
    # ([below](#how-sums-are-carried))
    carried: CarriedClaim
    # the realized form stores the integer of the device's formula, for each of the `accumulators` within the bound
    requantize: NarrowedClaim
    # the same for an accumulator that is also stored
    narrowing: NarrowedClaim
    # each of the `entries` is the value of `function` (`op`, `attributes`, `parameters`) for its code
    table: TableClaim
    # for a function of rows: number of `steps`, the largest `bound` of a step, how it is `formed`. `shapes` of its
    # operands for one sample (if the model fixes them); verification draws rows of these shapes
    program: ProgramClaim
    # `largest`: the largest magnitude of two weights of equal sign that are multiplied next to each other (uint8 data,
    # int8 weights). With `isa: any` verification rejects a pair that leaves int16
    pairs: PairsClaim
    # values that depend on the input's shape, which the file does not contain: `elements` of an average, `products` of
    # a MatMul of two activations
    given: ShapeClaim
    # only if present: input port → digest of a constant that determines how an op moves values: a shape, ends of a
    # slice, repeats, indices
    parameters: dict[str, str]


class KernelClaims(Claimed):
    """The entry of one kernel."""

    # `proved`, `reason`: whether all claims hold for every input; if not, why it is only checked on samples
    proved: bool
    reason: str | None


class CertifiedKernel(KernelClaims):
    """The entry of one kernel with its op."""

    # `op`, `attributes`: how the node's window moves (pads, strides, dilations, groups), or how an op moves values
    # (axes, permutations); all attributes of functions with tables, transposed convolutions and ops of packages. The
    # model's nodes have the same
    op: str
    attributes: dict[str, Any]


class WrittenNode(TypedDict, total=False):
    """A node as the file has it."""

    op_type: str
    domain: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any]


class AuxiliaryNode(WrittenNode):
    """A node that belongs to a node in float."""

    node: str


class FloatNode(WrittenNode):
    """A node that stays in float; without an own node in the file it has no keys of `WrittenNode`."""

    node: str
    op: str
    reason: str


class DefinedFunction(TypedDict):
    """A function that the file defines."""

    domain: str
    name: str
    digest: str


class RealPart(TypedDict):
    """The part of the file that computes floats."""

    # `inputs`, `outputs`: names of the graph's inputs and outputs, in order
    inputs: list[str]
    outputs: list[str]
    # domain → version of each operator set
    opsets: dict[str, int]
    # name → digest of each constant that nodes in float read or that is an output
    constants: dict[str, str]
    # `domain`, `name`, `digest` of each function that the file defines (ops of plug-in packages)
    functions: list[DefinedFunction]
    # `node`, `op_type`, `domain`, `inputs`, `outputs`, `attributes` of nodes that belong to nodes in float: Casts to
    # and from float16, look-ups of rows, first states of loops
    auxiliary_nodes: list[AuxiliaryNode]
    # only if present: tensors that kernels return in bfloat16
    bfloat16: NotRequired[list[str]]


class ReadByUsers(TypedDict):
    """The part of the file that its users read."""

    # name → [ONNX's code of the type, axes] of each input and output
    ports: dict[str, tuple[int, list[int | str | None]]]
    # the entries of `metadata_props`: session options, preprocessing, origin
    metadata: dict[str, str]


class CertifiedFiles(TypedDict):
    """Digests of the files that the certificate is about."""

    model: str
    plan: str
    data: dict[str, str]
    source: str
    hardware: str


class CertificateSummary(TypedDict):
    """How much is proved."""

    kernels: int
    proved: int
    checked: int
    float_nodes: int


class ModelClaims(RealPart):
    """certificate.json without its origin, the digests of its files, and what is written into the model last."""

    # `qdq`, `matmul_nbits`, `qoperator`, `integer`
    form: str
    # tensor → the value of `model.onnx` that holds its integers; `T (accumulator)` if passed on as accumulator
    values: dict[str, str]
    # node → claims (below)
    kernels: dict[str, CertifiedKernel]
    # `node`, `op`, `reason` of each node that stays in float; the certificate claims nothing about its results.
    # `op_type`, `domain`, `inputs`, `outputs`, `attributes` as in `model.onnx` (tensors and graphs among the attributes
    # as digests): verification compares them
    float_nodes: list[FloatNode]
    # numbers of `kernels`, of `proved` ones, of those only `checked` on samples, and of `float_nodes`
    summary: CertificateSummary


class CertificateFile(ModelClaims, ReadByUsers):
    """certificate.json without its origin."""

    # SHA-256 of the files `model`, `plan`, each of `data` (name → digest; large models), and `source`, your model file.
    # `hardware`: digest of the hardware description in the origin of `plan.json` (canonical JSON: sorted keys, no
    # blanks)
    digests: CertifiedFiles
