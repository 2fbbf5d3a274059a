"""Why onnxruntime rejects a model or a sample, in a sentence with the node or the input, and what would be legal.

The runtime's own text differs by version and quotes its source files. It stays the cause of the raised error, which
main.log shows; a message has the sentence of the first pattern that matches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

Words = Mapping[str, str]
"""Named parts of the runtime's text."""


def runtime_reason(error: Exception) -> str:
    """Return why onnxruntime rejects a model or a sample, in one sentence without a full stop."""
    raw = " ".join(str(error).split())
    return _described(_REASONS, raw) or (
        "its reason has no description here; main.log has its own text, and so has the cause of this error"
    )


def runtime_remedy(error: BaseException) -> str | None:
    """Return what makes a model legal that onnxruntime rejects, in one sentence; None if it depends on the model."""
    return next((found for raw in _texts(error) if (found := _described(_REMEDIES, raw)) is not None), None)


def failing_node(error: BaseException) -> tuple[str, str] | None:
    """Return the name and the op of the node that fails on a sample; None where it is another error."""
    for raw in _texts(error):
        if (match := re.search(_RUNNING, raw)) is not None:
            return match["node"].strip(" .'"), match["op"]
    return None


def _texts(error: BaseException | None) -> Iterator[str]:
    """Yield the texts of an error and of its causes, each on one line."""
    while error is not None:
        yield " ".join(str(error).split())
        error = error.__cause__


def lacks_kernel(error: BaseException) -> bool:
    """Return whether onnxruntime, in an error or its causes, lacks an op or a kernel for it."""
    return any(sign in raw for raw in _texts(error) for sign in _NO_KERNEL)


_NO_KERNEL = ("NOT_IMPLEMENTED", "Could not find an implementation", "is not a registered", "No Op registered")
"""What onnxruntime writes where it has no kernel."""


def _node(words: Words) -> str:
    """Return how a node is named: by its name if it has one, and its op."""
    name = words["node"].removesuffix("_nchwc")  # the runtime's own name in blocked layout; before it, the output
    return f"node '{name}' ({words['op']})" if name else f"a node of the op {words['op']}"


def _run(words: Words) -> str:
    """Return why a node does not run on a sample."""
    why = _described(_WHILE_RUNNING, words["status"]) or (
        "the shapes or values of its inputs are not legal for the op; an integer input or a constant often decides them"
    )
    return f"{_node(words)} fails on the sample: {why}"


def _attribute(words: Words) -> str:
    """Return what is wrong with the attributes or the number of inputs of a node."""
    what = {
        "Required": "lacks the attribute {name}, which the op requires",
        "Unrecognized": "has the attribute {name}, which the op does not have",
        "Mismatched": "has the attribute {name} of another type than the op",
    }.get(words["kind"], "has another number of inputs or outputs than the op")
    return f"{_node(words)} {what.format_map(words)}"


def _size(words: Words) -> str:
    """Return which sizes of an input of the sample are wrong."""
    pairs = re.findall(r"index: (\d+) Got: (\d+) Expected: (\d+)", words["pairs"])
    wrong = ", ".join(f"{got} instead of {expected} on axis {axis}" for axis, got, expected in pairs)
    return f"the sample's input {words['input']} has {wrong or 'another size than the model declares'}"


def _described(table: Iterable[tuple[str, str | Callable[[Words], str]]], raw: str) -> str | None:
    """Return the sentence of the first pattern that a text matches; None without a match."""
    for pattern, sentence in table:
        if (match := re.search(pattern, raw)) is not None:
            found = {key: part.strip(" .'[]") for key, part in match.groupdict(default="").items()}
            return sentence(found) if callable(sentence) else sentence.format_map(found)
    return None


_ROOM = (r"[Ff]ailed to allocate memory|bad_?alloc", "a tensor needs more memory than there is")

_OF_ARRAYS = "float32, float16, float64, bool, and integers of 8 to 64 bits"

_RUNNING = r"running (?P<op>\w+) node\. Name: ?'(?P<node>[^']*)'"

_REMEDIES = (
    (
        r"Numpy_type \d+ can't be converted",
        "Legal is a file that begins after the Cast or DequantizeLinear of this input (onnx.utils.extract_model)",
    ),
    (
        r"No corresponding Numpy type for Tensor Type",
        "Legal is a file that ends before the Cast or QuantizeLinear that makes it (onnx.utils.extract_model)",
    ),
    (
        r"Got invalid dimensions for input: (?P<input>.+?) for the following indices",
        "Legal are samples of the declared sizes, and a file that gives an axis of any size a name, not a number "
        "(onnx.tools.update_model_dims)",
    ),
    (
        r"Type '[^']*' of input parameter \((?P<tensor>[^)]*)\) of operator \((?P<op>[^)]*)\)",
        "Legal is a Cast of {tensor} to a type for which ONNX's definition of {op} holds, and which onnxruntime "
        "lists in its table of operator kernels",
    ),
    (
        r"\[(?:Shape|Type)InferenceError\]",
        "Legal are models that ONNX's checker accepts: onnx.checker.check_model(FILE, full_check=True) names what is "
        "wrong with the node",
    ),
)

_REASONS: tuple[tuple[str, str | Callable[[Words], str]], ...] = (
    (
        r"Could not find an implementation for (?P<op>[\w.:]+)\((?P<version>-?\d+)\) node with name '(?P<node>[^']*)'",
        lambda w: (
            f"{_node(w)} has no kernel for its types at version {w['version']} of the op; another opset or float32 may "
            "have one"
        ),
    ),
    (
        r"error: ?(?:(?P<domain>[\w.]*):)?(?P<op>\w+)\(-?\d+\) is not a registered",
        "the op {op} of the domain '{domain}' is unknown to it at the file's opset",
    ),
    (
        r"No Op registered for (?P<op>\w+) with domain_version of (?P<version>\d+)",
        "the op {op} is unknown to it at opset {version}",
    ),
    (
        r"Type '(?P<type>[^']*)' of input parameter \((?P<tensor>[^)]*)\) of operator \((?P<op>[^)]*)\) in node "
        r"\((?P<node>[^)]*)\) is invalid",
        lambda w: f"{_node(w)} does not take {w['type']}, the type of {w['tensor']}",
    ),
    (
        r"Type \((?P<own>\S*)\) of output arg \((?P<tensor>[^)]*)\) of node \((?P<node>[^)]*)\) does not match "
        r"expected type \((?P<type>\S*)\)",
        "the file declares {tensor} as {own}, but its node computes {type}",
    ),
    (
        r"Optype \((?P<op>\w+)\) bound to different types \((?P<one>\S+) and (?P<other>\S+\)) in node "
        r"\((?P<node>[^)]*)\)",
        lambda w: f"{_node(w)} has inputs of the types {w['one']} and {w['other']}, which have to be one type",
    ),
    (
        r"Node ?\((?P<node>[^)]*)\) Op ?\((?P<op>\w+)\) \[(?:Shape|Type)InferenceError\]",
        lambda w: f"{_node(w)}: its attributes, bodies and inputs do not fit together by ONNX's definition of the op",
    ),
    (_RUNNING + r" Status Message: (?P<status>.*)", _run),
    (
        r'In Node, \("(?P<node>[^"]*)", (?P<op>\w+),.* Error (?P<kind>Required|Unrecognized|Mismatched) attribute'
        r"(?: type in|:)? '?(?:.*: )?(?P<name>\w+)",
        _attribute,
    ),
    (
        r'In Node, \("(?P<node>[^"]*)", (?P<op>\w+),.* Error (?P<kind>Node)\b.*size',
        _attribute,
    ),
    (
        r"Invalid rank for input: (?P<input>.+?) Got: (?P<got>\d+) Expected: (?P<expected>\d+)",
        "the sample's input {input} has {got} axes instead of {expected}",
    ),
    (r"Got invalid dimensions for input: (?P<input>.+?) for the following indices(?P<pairs>.*)", _size),
    (
        r"Unexpected input data type\. Actual: \((?P<got>\S+)\) ?, expected: \((?P<expected>\S+)\)",
        "an input of the sample has the type {got} instead of {expected}",
    ),
    (
        r"No corresponding Numpy type for Tensor Type\. (?P<type>\w+)",
        f"an output has the type {{type}}, of which NumPy has no arrays; legal after a Cast are {_OF_ARRAYS}",
    ),
    (
        r"Numpy_type \d+ can't be converted",
        f"an input has a type of which onnxruntime takes no NumPy arrays; legal before a Cast are {_OF_ARRAYS}",
    ),
    (
        r"input with name: '?(?P<input>[^']+?)'? expected to be of type: \d+ but received a tensor",
        "the input {input} is a sequence, a map or optional; legal are tensors",
    ),
    (r"Required inputs \((?P<inputs>[^)]*)\) are missing", "the sample lacks the inputs {inputs}"),
    (
        r"Invalid (?:[Ff]eed )?[Ii]nput [Nn]ame: ?(?P<input>\S+)",
        "the model has no input {input}, which the sample gives",
    ),
    (r"[Pp]rotobuf parsing failed", "the file is damaged or no ONNX model"),
    (r"Duplicate definition of name \((?P<name>[^)]+)", "several nodes or inputs of the file have the result {name}"),
    (
        r"IR version: (?P<own>\d+), max supported IR version: (?P<most>\d+)",
        "the file has IR version {own}, and onnxruntime reads versions up to {most}",
    ),
    (r"only \*guarantees\* support|is under development and support", "the file has an opset newer than onnxruntime's"),
    (
        r"is not output of any previous nodes|not a graph input, initializer",
        "a node reads a tensor that no earlier node, input or constant gives",
    ),
    (r"graph is not acyclic", "its nodes form a circle"),
    (r"Graph output \((?P<name>[^)]*)\) does not exist", "no node computes the output {name}"),
    _ROOM,
    (
        r"Exception during initialization",
        "a node rejects its attributes or constants, or a setting of the system that it needs, such as a locale",
    ),
)

_WHILE_RUNNING = (
    (
        r"Input shape:\{(?P<own>[^}]*)\}, requested shape:\{(?P<wanted>[^}]*)\}",
        "a tensor of shape [{own}] cannot be reshaped to [{wanted}]",
    ),
    (
        r"(?P<tensor>initial_[hc]) must have shape \{(?P<wanted>[^}]*)\}\. ?Actual: ?\{(?P<own>[^}]*)\}",
        "its initial state {tensor} has the shape [{own}] instead of [{wanted}]; model.fixed={{INPUT: 0}} makes a "
        "constant of it, with 1 for free axes",
    ),
    (
        r"by a dimension other than 1\. (?P<one>\d+) by (?P<other>\d+)",
        "sizes {one} and {other} of an axis do not broadcast",
    ),
    (
        r"mismatched dimensions of (?P<one>\d+) and (?P<other>\d+)",
        "tensors that it joins have the sizes {one} and {other} on another axis",
    ),
    (
        r"MatMul dimension mismatch|GEMM: Dimension mismatch|Input channels C is not equal",
        "data and weight differ in the size that it sums over",
    ),
    (r"Conv.*Invalid input shape|^Invalid input shape", "the map is smaller than the window"),
    (r"indices element out of data bounds", "an index is outside the tensor that it selects from"),
    _ROOM,
)
