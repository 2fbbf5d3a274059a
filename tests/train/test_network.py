"""The float graph as torch: whole models and parts of them, hooks, gradients, and nodes that have no row."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from quantpipe.graph.execute import Session
from quantpipe.graph.normalize import expose
from quantpipe.graph.view import Graph, Node, view
from quantpipe.intake.load import load_graph
from tests.ops.cases import CASES
from tests.ops.line import Net, load, normal_samples
from tests.zoo import requires_zoo, zoo

torch = pytest.importorskip("torch")

from quantpipe.train.network import FloatNetwork, NotTrainable  # noqa: E402

ASSETS = Path(__file__).parents[2] / "quantpipe" / "assets"
CPU = torch.device("cpu")
Array = np.ndarray[Any, Any]


def feeds_of(graph: Graph) -> dict[str, Array]:
    """Three samples; of a mask, ones with some zeros at the end of one sample."""
    rng = np.random.default_rng(5)
    found = {}
    for info in graph.inputs:
        shape = [3, *(d or 6 for d in info.shape[1:])]
        found[info.name] = rng.standard_normal(shape).astype(info.dtype)
        if info.dtype == "int64":
            found[info.name] = np.ones(shape, np.int64)
            found[info.name][1, 4:] = 0
    return found


@cache
def graph_of(path: Path) -> Graph:
    return load_graph(path, feeds_of, isolate=False)


def tensors(arrays: dict[str, Array]) -> dict[str, Any]:
    return {name: torch.tensor(array) for name, array in arrays.items()}


def assert_near(found: dict[str, Any], expected: dict[str, Array], most: float = 1e-4) -> None:
    """Nearer than `most` of the output's maximum."""
    assert list(found) == list(expected)
    for name, array in expected.items():
        value = found[name].detach().numpy()
        assert value.shape == array.shape
        assert np.abs(value - array).max() <= most * np.abs(array).max(), name


class Recorder:
    """Hooks that write down what they were called with, and change nothing."""

    def __init__(self) -> None:
        self.tensors: list[str] = []
        self.reads: list[tuple[str, int]] = []
        self.constants: list[tuple[str, int]] = []
        self.called: list[str] = []

    def made(self, tensor: str, value: Any) -> Any:
        self.tensors.append(tensor)
        return value

    def read(self, node: Node, port: int, value: Any) -> Any:
        self.reads.append((node.name, port))
        return value

    def constant(self, node: Node, port: int, value: Any) -> Any:
        self.constants.append((node.name, port))
        return value

    def call(self, node: Node, operands: list[Any]) -> Any:
        self.called.append(node.name)
        assert len(operands) == len(node.inputs)
        return None


# --- whole models -----------------------------------------------------------------------------------------------------


def assert_runs(graph: Graph) -> None:
    feeds = feeds_of(graph)
    expected = Session(graph.model).run(feeds)
    with torch.no_grad():
        found = FloatNetwork.of(graph, CPU).run(tensors(feeds), list(expected))
    assert_near(found, expected)


@pytest.mark.parametrize("name", ["digits", "digits_vit", "digits_vit_masked", "digits_detect"])
def test_embedded_models(name: str) -> None:
    assert_runs(graph_of(ASSETS / f"{name}.onnx"))


@requires_zoo
@pytest.mark.parametrize(
    "name", ["cifar10_resnet20", "imagenet_efficientnet_lite0", "kws_dscnn", "vww_mobilenet_v1_025", "ad_autoencoder"]
)
def test_models_of_the_zoo(name: str) -> None:
    assert_runs(graph_of(zoo(f"models/{name}.onnx")))


@pytest.mark.sliced(6)
@pytest.mark.parametrize("name", CASES)
def test_clean_graphs_of_every_op(name: str) -> None:
    net = Net(seed=len(name))
    CASES[name](net)
    graph = load(net, declared=("Swish",) if name == "function_swish" else ())
    feeds = dict(next(iter(normal_samples(graph).batches(graph.inputs[0].shape[0] or 4))).inputs)
    expected = Session(graph.model).run(feeds)
    assert_near(FloatNetwork.of(graph, CPU).run(tensors(feeds), list(expected)), expected, 1e-5)


# --- parts ------------------------------------------------------------------------------------------------------------


@requires_zoo
def test_the_second_half_of_resnet_20_runs_from_an_inner_tensor() -> None:
    graph = graph_of(zoo("models/cifar10_resnet20.onnx"))
    middle, half = next((n.outputs[0], at) for at, n in enumerate(graph.nodes) if n.op == "Add" and at > 25)
    known = Session(expose(graph.model, [middle, "logits"])).run(feeds_of(graph), [middle, "logits"])
    network, recorder = FloatNetwork.of(graph, CPU), Recorder()
    for nodes in (None, graph.nodes[half + 1 :]):
        recorder = Recorder()
        found = network.run({middle: torch.tensor(known[middle])}, ["logits"], recorder, nodes)
        assert_near(found, {"logits": known["logits"]})
        assert recorder.called == [n.name for n in graph.nodes[half + 1 :]]
        assert recorder.tensors[0] == middle
    back = network.run(tensors(feeds_of(graph)), [middle], nodes=graph.nodes[: half + 1])
    assert_near(back, {middle: known[middle]})


def test_only_the_nodes_that_are_needed_run() -> None:
    graph = graph_of(ASSETS / "digits.onnx")
    recorder = Recorder()
    first = graph.nodes[0].outputs[0]
    found = FloatNetwork.of(graph, CPU).run(tensors(feeds_of(graph)), [first], recorder)
    assert list(found) == [first] and recorder.called == [graph.nodes[0].name]


def test_a_tensor_that_is_given_is_not_computed_again() -> None:
    graph = graph_of(ASSETS / "digits.onnx")
    first = graph.nodes[0].outputs[0]
    network, feeds = FloatNetwork.of(graph, CPU), tensors(feeds_of(graph))
    changed = 2 * network.run(feeds, [first])[first]
    recorder = Recorder()
    both = network.run(feeds | {first: changed}, ["logits", first], recorder)
    assert torch.equal(both[first], changed) and graph.nodes[0].name not in recorder.called
    assert recorder.tensors.count(first) == 1 and "image" not in recorder.tensors  # nothing reads the image
    assert not torch.equal(both["logits"], network.run(feeds, ["logits"])["logits"])


def test_a_given_result_of_a_node_that_runs_for_another_one_stays() -> None:
    net = Net()
    x = net.node("Relu", net.input(None, 4))
    net.split(x, ["left", "right"], [2, 2], 1)
    net.output(net.node("Add", "left", net.node("Exp", "right"), output="out"))
    recorder, given = Recorder(), {"x": torch.ones(1, 4), "left": torch.full((1, 2), 5.0)}
    graph = view(ir.from_proto(net.proto()), "", "net")  # as written: the clean-up writes a Split as two nodes
    found = FloatNetwork.of(graph, CPU).run(given, ["out"], recorder)
    assert torch.allclose(found["out"], torch.full((1, 2), 5.0 + np.e))
    assert recorder.tensors.count("left") == 1


def test_a_constant_can_be_wanted() -> None:
    graph = graph_of(ASSETS / "digits.onnx")
    weight = graph.nodes[0].inputs[1]
    found = FloatNetwork.of(graph, CPU).run({}, [weight])
    np.testing.assert_array_equal(found[weight].numpy(), graph.constant(weight))


def test_what_no_node_makes_is_named() -> None:
    graph = graph_of(ASSETS / "digits.onnx")
    network = FloatNetwork.of(graph, CPU)
    with pytest.raises(ValueError, match="neither given nor made by the nodes to run: image"):
        network.run({}, ["logits"])
    with pytest.raises(ValueError, match=f"to run: {graph.nodes[3].outputs[0]}"):
        network.run(tensors(feeds_of(graph)), ["logits"], nodes=graph.nodes[4:])


def test_a_value_is_freed_after_its_last_reader() -> None:
    import weakref

    graph = graph_of(ASSETS / "digits.onnx")
    alive: dict[str, Any] = {}
    most = 0

    class Watch(Recorder):
        def made(self, tensor: str, value: Any) -> Any:
            nonlocal most
            value = value + 0  # Relu and Flatten may return what they read
            alive[tensor] = weakref.ref(value)
            most = max(most, sum(ref() is not None for ref in alive.values()))
            return value

    with torch.no_grad():
        FloatNetwork.of(graph, CPU).run(tensors(feeds_of(graph)), ["logits"], Watch())
    assert len(alive) == len(graph.nodes) + 1 and most <= 4


# --- hooks ------------------------------------------------------------------------------------------------------------


# --- nodes without a row ----------------------------------------------------------------------------------------------


def _without_row() -> Graph:
    net = Net()
    x = net.node("Relu", net.input(None, 4), name="fine")
    x = net.node("CumSum", x, net.constant(np.int64(1)), name="running")
    net.output(net.node("Hardmax", net.node("Exp", x, name="exp"), name="most"))
    return load(net)


def test_the_first_node_without_a_row_is_named() -> None:
    graph = _without_row()
    with pytest.raises(NotTrainable, match=r"^node running \(CumSum\) cannot be trained: torch has no form"):
        FloatNetwork.of(graph, CPU)
    with pytest.raises(NotTrainable, match=r"^node most \(Hardmax\)"):
        FloatNetwork.of(graph, CPU, ["fine", "exp", "most"])


def test_some_nodes_can_be_asked_for() -> None:
    graph = _without_row()
    network = FloatNetwork.of(graph, CPU, ["fine", "exp"])
    middle = graph.by_name["running"].outputs[0]
    found = network.run({middle: torch.ones(1, 4)}, [graph.by_name["exp"].outputs[0]])
    assert torch.allclose(next(iter(found.values())), torch.full((1, 4), float(np.e)))
    with pytest.raises(NotTrainable, match="node running"):
        network.run({"x": torch.ones(1, 4)}, [middle])


def test_a_node_with_graphs_of_its_own_is_named() -> None:
    net = Net()
    x = net.input(None, 4)
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node(op, ["x"], [name])],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)],
        )
        for name, op in (("then", "Relu"), ("else", "Neg"))
    }
    mean = net.node("ReduceMean", x, axes=[0, 1], keepdims=0)
    net.output(net.node("If", net.node("Greater", mean, net.constant(np.float32(0))), name="branch", **branches))
    with pytest.raises(NotTrainable, match=r"node branch \(If\) cannot be trained: it holds graphs of its own"):
        FloatNetwork.of(load(net), CPU)
