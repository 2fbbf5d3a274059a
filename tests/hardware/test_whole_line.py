"""Every shipped hardware file through the whole line: the digits model for all, real models when slow tests run.

Simulated and realized integers are equal, and the integer model is still a classifier."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from quantpipe import assets
from quantpipe.data.sources.digits import DigitsDataset
from quantpipe.errors import HardwareError
from quantpipe.graph.view import Graph
from quantpipe.intake.load import load_graph
from quantpipe.types import ReasonKind
from tests.ops.line import CONF, ArraySamples, Line, hardware, hardware_data, line
from tests.ops.test_zoo_agreement import graph_of as zoo_graph
from tests.ops.test_zoo_agreement import samples_for
from tests.zoo import requires_zoo

SHIPPED = sorted(p.stem for p in (CONF / "hardware").glob("*.yaml"))
DIGITS = Path(assets.__file__).parent / "digits.onnx"
BITS = {"int4_weights": 8, "mixed_npu": 16}
NARROW = {"hago_int16_acc", "academic"}
"""Where 8 bits overflow, or 4 are all there are: 5 bits are taken, and what is left of the accuracy is a matter of
search and recovery."""
COARSE = {"int4_weights", "npu_w4_blocks"}
"""4-bit weights."""


@cache
def digits() -> tuple[Graph, ArraySamples]:
    """The graph and a hundred labelled images."""
    splits = []
    graph = load_graph(DIGITS, lambda raw: splits.append(DigitsDataset().splits(raw.inputs, 10, 0)) or first(splits[0]))
    batch = next(iter(splits[0].evaluate.batches(100)))
    return graph, ArraySamples(batch.inputs, batch.labels)


def first(splits):  # type: ignore[no-untyped-def]
    return next(iter(splits.calibrate.batches(2))).inputs


def digits_line(spec: str, **changes: object) -> Line:
    graph, samples = digits()
    return line(graph, hardware(spec, **changes), samples=samples)


def accuracy(made: Line, outputs: dict[str, np.ndarray]) -> float:
    (scores,) = outputs.values()
    return float(np.mean(np.argmax(scores, axis=1) == made.samples.labels))


def check(made: Line, name: str) -> None:
    spec = hardware_data(name)
    bits = 5 if name in NARROW else BITS.get(name, 8)
    plan = made.plan(bits)
    realized = made.realize(plan, spec["realize"])
    found = made.agree(plan, spec["realize"])
    assert found.differing == 0 and found.max_lsb <= 1, found
    assert found.tensors > 3
    if made.samples.labels is not None and name not in NARROW:
        real, whole = accuracy(made, made.outputs(realized.model)), accuracy(made, made.outputs())
        assert real >= whole - (0.3 if name in COARSE else 0.05), (real, whole)


CONVOLVING = [n for n in SHIPPED if any(s.is_integer for s in hardware(n).ops.get("Conv", ()))]
"""Devices that have convolutions in integers, as others take their weights alone."""


@pytest.mark.sliced(36)
@pytest.mark.parametrize("name", CONVOLVING)
def test_digits(name: str) -> None:
    made = digits_line(name)
    assert any(k.op == "Conv" for k in made.topology.kernels)
    check(made, name)


@pytest.mark.sliced(36)
@pytest.mark.parametrize("treatment", ["both", "residual_only", "none"])
@pytest.mark.parametrize("name", SHIPPED)
def test_the_three_treatments_of_additions(name: str, treatment: str) -> None:
    made = digits_line(name, add_inputs=treatment)
    adds = [n.name for n in made.graph.nodes if n.op == "Add"]
    assert adds
    kernels = {k.node: [o.form.value for o in k.operands] for k in made.topology.kernels if k.op == "Add"}
    if treatment == "none":
        assert not kernels and all(
            "adds in float" in made.topology.float_nodes[n].text
            or "does not declare" in made.topology.float_nodes[n].text
            for n in adds
        )
    elif kernels:
        wanted = ["quantized", "quantized"] if treatment == "both" else ["quantized", "raw"]
        assert all(sorted(forms) == wanted for forms in kernels.values()), kernels
    backend = "integer" if treatment == "residual_only" else hardware_data(name)["realize"]
    if name == "tflite_xnnpack" and treatment == "residual_only":
        with pytest.raises(HardwareError, match="XNNPACK's kernel takes no others"):
            made.plan(8)
        return
    assert made.agree(made.plan(5 if name in NARROW else 8), backend).differing == 0


@pytest.mark.sliced(27)
@pytest.mark.parametrize("name", CONVOLVING)
def test_parts_can_be_kept_in_float_by_pattern(name: str) -> None:
    graph, samples = digits()
    heavy = [n.name for n in graph.nodes if n.op in ("Conv", "Gemm")]
    made = line(graph, hardware(name), samples=samples, skip_first=True, skip_last=True, float_nodes=["block2.dep*"])
    kept = {n for n, why in made.topology.float_nodes.items() if why.kind is ReasonKind.KEPT}
    assert {heavy[0], heavy[-1]} < kept and any(n.startswith("block2.dep") for n in kept)
    backend = hardware_data(name)["realize"]
    found = made.agree(made.plan(5 if name in NARROW else 8), backend)
    assert found.differing == 0 and found.max_lsb <= 1, found


@requires_zoo
@pytest.mark.slow
@pytest.mark.parametrize("model", ["cifar10_resnet20", "kws_dscnn"])
@pytest.mark.parametrize("name", CONVOLVING)
def test_real_models(name: str, model: str) -> None:
    graph = zoo_graph(model)
    check(line(graph, name, samples=samples_for(model, graph)), name)


def test_the_academic_setting_is_that_of_papers() -> None:
    """One symmetric scale per weight, unsigned inputs after a Relu, 8 bits in the first and the last layer."""
    made = digits_line("academic")
    plan, ranges = made.plan(4), made.strategy(4).ranges
    assert {k.op for k in made.topology.kernels} == {"Conv", "Gemm"}
    assert all(w.axis is None and not w.has_zero_point for w in plan.weights.values())
    low = {t: ranges[g.key].low for g in made.topology.groups for t in g.tensors}
    layers = [k for k in made.topology.kernels if k.weight is not None]
    for kernel in layers:
        q, weight = plan.quantizers[kernel.operands[0].tensor], plan.weights[kernel.weight or ""]
        bits = 8 if kernel in (layers[0], layers[-1]) else 4
        assert (q.bits, weight.bits) == (bits, bits)
        assert q.zero_point == (0 if low[q.tensor] < 0 else q.qmin)
    assert len({low[k.operands[0].tensor] >= 0 for k in layers}) == 1 and len(layers) > 4  # all of them follow a Relu
