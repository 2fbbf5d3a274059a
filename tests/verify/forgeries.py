"""Forgeries of written models, each with what the checker has to find: tests/verify/test_grammar.py plants them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Forgery = Callable[[onnx.ModelProto], object]


def kernel_node(model: onnx.ModelProto, *ops: str) -> onnx.NodeProto:
    floats = ("front", "norm")
    return next(n for n in model.graph.node if n.name not in floats and (not ops or n.op_type in ops))


def node_of(model: onnx.ModelProto, name: str) -> onnx.NodeProto:
    return next(n for n in model.graph.node if n.name == name)


def in_a_foreign_domain(model: onnx.ModelProto) -> None:
    """A function under the name of the op that a kernel is written in, which computes something else."""
    node = kernel_node(model, "Conv", "QLinearConv", "ConvInteger")
    node.domain = "elsewhere"
    inner = helper.make_node(node.op_type, list(node.input), ["made"])
    inner.attribute.extend(node.attribute)
    ports = [f"i{number}" for number in range(len(node.input))]
    inner.input[:] = ports
    last = helper.make_node("Identity", ["made"], ["out"])
    opsets = [helper.make_opsetid("", 17)]
    model.functions.append(helper.make_function("elsewhere", node.op_type, ports, ["out"], [inner, last], opsets))
    model.opset_import.append(helper.make_opsetid("elsewhere", 1))


def redefined(model: onnx.ModelProto) -> None:
    """A function in ONNX's own domain takes the place of a kernel."""
    body = [helper.make_node("Identity", ["x"], ["y"])]
    model.functions.append(
        helper.make_function("", "Clip", ["x", "a", "b"], ["y"], body, [helper.make_opsetid("", 17)])
    )


def sparse(model: onnx.ModelProto) -> None:
    held = max(model.graph.initializer, key=lambda t: len(t.raw_data))
    values = helper.make_tensor(held.name, held.data_type, [1], [1])
    model.graph.sparse_initializer.append(
        helper.make_sparse_tensor(values, helper.make_tensor("at", TensorProto.INT64, [1], [0]), list(held.dims))
    )


def held_twice(model: onnx.ModelProto) -> None:
    first = max(model.graph.initializer, key=lambda t: len(t.raw_data))
    other = onnx.TensorProto()
    other.CopyFrom(numpy_helper.from_array(np.zeros_like(numpy_helper.to_array(first)), first.name))
    model.graph.initializer.insert(0, other)


def held_and_made(model: onnx.ModelProto) -> None:
    name = kernel_node(model, "QuantizeLinear", "Clip", "Cast").output[0]
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(1, np.int8), name))


def held_and_fed(model: onnx.ModelProto) -> None:
    model.graph.input.append(helper.make_tensor_value_info(model.graph.initializer[0].name, 1, [1]))


def made_twice(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("Identity", [model.graph.input[0].name], [model.graph.node[-1].output[0]]))


def named_twice(model: onnx.ModelProto) -> None:
    model.graph.node[-1].name = model.graph.node[-2].name


def trained(model: onnx.ModelProto) -> None:
    model.training_info.add()


def annotated(model: onnx.ModelProto) -> None:
    model.graph.quantization_annotation.add().tensor_name = "x"


def described(model: onnx.ModelProto) -> None:
    model.metadata_props.add(key="author", value="somebody")


def other_opset(model: onnx.ModelProto) -> None:
    model.opset_import[0].version -= 1


def unknown_field(model: onnx.ModelProto) -> None:
    model.graph.node[0].MergeFromString(b"\xf2\x3f\x01x")  # field 1022


def attribute_added(model: onnx.ModelProto) -> None:
    kernel_node(model).attribute.append(helper.make_attribute("turbo", 1))


def attribute_twice(model: onnx.ModelProto) -> None:
    node = kernel_node(model, "Conv", "QLinearConv", "ConvInteger")
    node.attribute.append(next(a for a in node.attribute if a.name == "kernel_shape"))


STRUCTURES: dict[Forgery, str] = {
    in_a_foreign_domain: "which the certificate does not name",
    redefined: "it defines the function Clip in the domain ai.onnx",
    sparse: "it has sparse_initializer",
    held_twice: "2 times",
    held_and_made: "2 times",
    held_and_fed: "2 times",
    made_twice: "2 times",
    named_twice: "2 times",
    trained: "it has training_info",
    annotated: "it has quantization_annotation",
    described: "the key 'author'",
    other_opset: "its opsets are",
    unknown_field: "a field that the ONNX format does not define",
    attribute_added: "no form writes its attribute turbo",
    attribute_twice: "it has an attribute twice",
}


def output_renamed(model: onnx.ModelProto) -> None:
    model.graph.output[1].name = kernel_node(model, "QuantizeLinear", "Cast").output[0]


def output_added(model: onnx.ModelProto) -> None:
    model.graph.output.append(helper.make_tensor_value_info(node_of(model, "norm").output[0], 1, None))


def output_removed(model: onnx.ModelProto) -> None:
    del model.graph.output[1]


def outputs_reordered(model: onnx.ModelProto) -> None:
    ports = [model.graph.output[1], model.graph.output[0]]
    del model.graph.output[:]
    model.graph.output.extend(ports)


def outputs_exchanged(model: onnx.ModelProto) -> None:
    """What makes the one has the name of the other."""
    first, second = (port.name for port in model.graph.output)
    makers = {node.output[0]: node for node in model.graph.node}
    makers[first].output[0], makers[second].output[0] = second, first


def entry_rewired(model: onnx.ModelProto) -> None:
    """What a kernel reads is quantized from another real tensor of the same shape."""
    front, norm = node_of(model, "front").output[0], node_of(model, "norm").output[0]
    reader = next(n for n in model.graph.node if n.op_type == "QuantizeLinear" and n.input[0] == norm)
    reader.input[0] = front


def input_rewired(model: onnx.ModelProto) -> None:
    norm, front = node_of(model, "norm"), node_of(model, "front")
    norm.input[0] = front.output[0]


def axis_changed(model: onnx.ModelProto) -> None:
    next(a for a in node_of(model, "norm").attribute if a.name == "axis").i = 2


def attribute_of_float_removed(model: onnx.ModelProto) -> None:
    del node_of(model, "front").attribute[:]


def float_op_changed(model: onnx.ModelProto) -> None:
    node_of(model, "norm").op_type = "Softmax"


def float_domain_changed(model: onnx.ModelProto) -> None:
    node_of(model, "norm").domain = "com.microsoft"


def constant_changed(model: onnx.ModelProto) -> None:
    name = node_of(model, "front").input[1]
    tensor = next(t for t in model.graph.initializer if t.name == name)
    tensor.CopyFrom(numpy_helper.from_array(np.asarray(3, np.int64).reshape(tuple(tensor.dims)), name))


def node_added(model: onnx.ModelProto) -> None:
    name = model.graph.input[0].name
    model.graph.node.insert(0, helper.make_node("Neg", [name], ["turned"], name="turn"))
    next(n for n in model.graph.node if n.name == "front").input[0] = "turned"


def metadata_added(model: onnx.ModelProto) -> None:
    """Users prepare samples and open sessions as the metadata name it."""
    entry = model.metadata_props.add()
    entry.key, entry.value = "quantpipe.preprocessing", '{"scale": 3}'


def port_narrowed(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1


def output_axis_changed(model: onnx.ModelProto) -> None:
    model.graph.output[0].type.tensor_type.shape.dim[-1].dim_value = 99


def attribute_given_twice(model: onnx.ModelProto) -> None:
    """Readers take one of the two or the other."""
    node = next(n for n in model.graph.node if n.attribute)
    node.attribute.add().CopyFrom(node.attribute[0])


def attribute_of_another_type(model: onnx.ModelProto) -> None:
    """Readers that go by the type read a float, others the integer."""
    held = next(a for a in node_of(model, "front").attribute if a.name == "reverse")
    held.type, held.f = onnx.AttributeProto.FLOAT, 1.0


def numbers_given_twice(model: onnx.ModelProto) -> None:
    """Readers take the one field or the other."""
    tensor = next(t for t in model.graph.initializer if t.data_type == TensorProto.FLOAT and t.raw_data)
    tensor.float_data.extend((2 * numpy_helper.to_array(tensor)).reshape(-1).tolist())


REAL: dict[Forgery, str] = {
    metadata_added: "its metadata quantpipe.preprocessing are",
    port_narrowed: "its type and axes are",
    output_axis_changed: "its type and axes are",
    attribute_given_twice: "it has an attribute twice",
    attribute_of_another_type: "its attribute reverse has another type than CumSum defines",
    numbers_given_twice: "it holds its numbers as raw_data, float_data",
    output_renamed: "its outputs are",
    output_added: "its outputs are",
    output_removed: "its outputs are",
    outputs_reordered: "its outputs are",
    outputs_exchanged: "",
    entry_rewired: "it is quantized from the float tensor",
    input_rewired: "norm: its inputs",
    axis_changed: "norm: its attributes",
    attribute_of_float_removed: "front: its attributes",
    float_op_changed: "norm: its op_type",
    float_domain_changed: "norm: its domain",
    constant_changed: "this constant of nodes in float",
    node_added: "front: its inputs",
}
