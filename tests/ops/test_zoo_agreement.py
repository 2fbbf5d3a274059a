"""The zoo's models: simulated and realized integers agree on every element."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from quantpipe.graph.view import Graph
from quantpipe.intake.load import load_graph
from tests.ops.line import ArraySamples, Line, line
from tests.zoo import requires_zoo, zoo

pytestmark = requires_zoo

MODELS = ("cifar10_resnet20", "cifar10_resnet20_bn", "cifar10_resnet8_mlperf", "kws_dscnn", "vww_mobilenet_v1_025",
          "ad_autoencoder")  # fmt: skip
MEAN, STD = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
SAMPLES = 3


def samples_for(name: str, graph: Graph) -> ArraySamples:
    """A handful: CIFAR-10 images for the models made for them, else noise in the range of their inputs."""
    info = graph.inputs[0]
    if name.startswith("cifar10"):
        with np.load(zoo("data/cifar10_val.npz")) as archive:
            images = next(archive[k] for k in archive.files if archive[k].ndim == 4)[:SAMPLES]
        if "resnet20" in name:
            return ArraySamples({info.name: ((images / np.float32(255) - MEAN) / STD).transpose(0, 3, 1, 2)})
        return ArraySamples({info.name: images.astype(np.float32)})
    rng = np.random.default_rng(0)
    shape = (SAMPLES, *[d or 1 for d in info.shape[1:]])
    values = rng.standard_normal(shape) if "vww" not in name else rng.random(shape) * 2 - 1
    return ArraySamples({info.name: values.astype(np.float32)})


@cache
def graph_of(name: str) -> Graph:
    return load_graph(zoo(f"models/{name}.onnx"), lambda raw: next(iter(samples_for(name, raw).batches(2))).inputs)


@cache
def line_of(name: str, spec: str) -> Line:
    return line(graph_of(name), spec, samples=samples_for(name, graph_of(name)))


@pytest.mark.sliced(36)
@pytest.mark.parametrize(("spec", "backend"), [("ort_cpu", "qdq"), ("vta", "integer")])
@pytest.mark.parametrize("name", MODELS)
def test_zoo_models_agree(name: str, spec: str, backend: str) -> None:
    made = line_of(name, spec)
    assert not made.graph.notes, "the clean-up of a zoo model went wrong"
    found = made.agree(made.plan((8, 7, 6, 5), seed=1), backend)
    assert found.differing == 0 and found.max_lsb <= 1, found
    assert found.tensors > 8


@pytest.mark.sliced(3)
@pytest.mark.parametrize("name", MODELS)
def test_zoo_models_run_whole(name: str) -> None:
    """Nothing but a softmax, and what only moves the input, stays in float on onnxruntime."""
    made = line_of(name, "ort_cpu")
    computing = {
        made.graph.by_name[n].op for n, why in made.topology.float_nodes.items() if "producers" not in why.text
    }
    assert computing <= {"Softmax"}, made.topology.float_nodes
    moving = {made.graph.by_name[n].op for n in made.topology.float_nodes} - computing
    assert moving <= {"Transpose", "Reshape"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["imagenet_efficientnet_lite0", "imagenet_efficientnet_lite0_bn"])
@pytest.mark.parametrize(("spec", "backend"), [("ort_cpu", "qdq"), ("ort_cpu", "qoperator"), ("vta", "integer")])
def test_efficientnet_agrees(name: str, spec: str, backend: str) -> None:
    made = line_of(name, spec)
    found = made.agree(made.plan(8), backend)
    assert found.differing == 0 and found.max_lsb <= 1, found


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["qoperator", "integer"])
@pytest.mark.parametrize("name", MODELS)
def test_zoo_models_agree_in_the_other_forms(name: str, backend: str) -> None:
    made = line_of(name, "ort_cpu")
    assert made.agree(made.ties(8), backend).differing == 0


@pytest.mark.sliced(2)
@pytest.mark.parametrize("schema", ["symmetric", "symmetric_with_uint8"])
def test_symmetric_activations_in_qdq_form(schema: str) -> None:
    graph = graph_of("cifar10_resnet20")
    made = line(graph, "ort_cpu", schema, samples=samples_for("cifar10_resnet20", graph))
    assert made.agree(made.plan(8), "qdq").differing == 0
