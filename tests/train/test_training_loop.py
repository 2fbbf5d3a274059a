"""Training from a plan back to a plan: nothing learned changes nothing, it learns, it resumes, and it may fail."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from quantpipe.plan import Overrides
from quantpipe.types import QuantPlan, Range
from tests.ops.line import Line, Net, line

torch = pytest.importorskip("torch")

from quantpipe.train import training_loop  # noqa: E402
from quantpipe.train.network import FloatNetwork, NotTrainable  # noqa: E402
from quantpipe.train.quantized_network import QuantizedNetwork  # noqa: E402
from quantpipe.train.train_options import TrainOptions  # noqa: E402
from quantpipe.train.training_blocks import blocks_of  # noqa: E402
from quantpipe.train.training_loop import NotConverged  # noqa: E402
from tests.train.nets import Memory, made, many, residual, state_of, trained  # noqa: E402

LSQ = TrainOptions(weights="lsq", activations="lsq", epochs=4, batch=16, learning_rate=1e-3, scale_rate=1e-2)
DEVICES = ("tensorrt", "ort_cpu", "vta", "tflite_int8", "fpga_shift", "snpe", "academic", "fbgemm", "esp32p4")


def numbers(plan: QuantPlan) -> dict[str, Any]:
    """All numbers of a plan that training could change."""
    found: dict[str, Any] = {f"w {t}": (w.values.tolist(), w.scale.tolist()) for t, w in plan.weights.items()}
    found |= {f"q {t}": (float(q.scale), q.zero_point, q.qmin, q.qmax) for t, q in plan.quantizers.items()}
    return found | {f"k {n}": np.asarray(getattr(k, "bias", None)).tolist() for n, k in plan.kernels.items()}


def moved(problem: Line, overrides: Overrides) -> Overrides:
    """Overrides of training with other integers in one weight: what a comparison must see."""
    tensor = next(iter(overrides.weights))
    weight = overrides.weights[tensor]
    values = weight.values.copy()
    values.flat[0] = values.flat[0] + 1 if values.flat[0] < 1 else values.flat[0] - 1
    return replace(overrides, weights={**overrides.weights, tensor: replace(weight, values=values)})


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("weights", ["lsq", "ste", "adaround"])
def test_nothing_learned_changes_no_number_of_the_plan(device: str, weights: str) -> None:
    problem = made(device, 8)
    strategy = problem.strategy()
    options = TrainOptions(weights=weights, activations="lsq", epochs=0)
    found = trained(problem, strategy, options)
    before = numbers(problem.planner.plan(strategy))
    assert numbers(problem.planner.plan(strategy, found.overrides)) == before
    assert numbers(problem.planner.plan(strategy, moved(problem, found.overrides))) != before


@pytest.mark.parametrize("device", DEVICES)
def test_the_network_of_training_computes_what_the_device_does(device: str) -> None:
    """Most integers of the outputs are equal: other roundings of the device (shifts, averages) are one step away."""
    problem = made(device, 8)
    strategy, plan = problem.strategy(), problem.plan()
    network = QuantizedNetwork(state_of(problem, strategy), replace(LSQ, epochs=0), torch.device("cpu")).eval()
    name = problem.graph.outputs[0].name
    inputs = {n: torch.from_numpy(v) for n, v in problem.samples.inputs.items()}  # type: ignore[attr-defined]
    with torch.no_grad():
        fake = network(inputs, [name])[name].numpy()
    real = problem.outputs(problem.realize(plan, "integer" if device != "academic" else "qdq").model)[name]
    spread = np.ptp(real)
    assert np.abs(fake - real).max() <= 0.02 * spread
    unquantized = problem.outputs()[name]
    assert np.abs(fake - real).mean() < 0.5 * np.abs(unquantized - real).mean()


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_learned_runs_on_the_device_as_it_is_simulated(device: str) -> None:
    problem = made(device, 8)
    strategy = problem.strategy()
    found = trained(problem, strategy, replace(LSQ, epochs=2), many(problem))
    plan = problem.planner.plan(strategy, found.overrides)
    assert numbers(plan) != numbers(problem.planner.plan(strategy))
    for tensor, weight in found.overrides.weights.items():
        stored = plan.weights[tensor]
        np.testing.assert_array_equal(stored.centred().astype(int), weight.centred().astype(int))
        np.testing.assert_array_equal(stored.scale, weight.scale)
    backend = problem.spec.realize if problem.spec.realize in ("integer", "qdq") else "integer"
    assert problem.agree(plan, backend).differing == 0


@pytest.mark.parametrize("activations", ["lsq", "pact", "dsq"])
@pytest.mark.parametrize("factor", [10.0, 0.1])
def test_a_planted_range_comes_back(activations: str, factor: float) -> None:
    """A range of 4 bits, ten times too large or small, comes back at least half of the way; all else has 8 bits."""
    problem = made("tensorrt", 8)
    right = problem.strategy(8)
    key = problem.topology.group_of["relu2_out"].key
    ranges = {**right.ranges, key: _times(right.ranges[key], factor)}
    wrong = replace(right, ranges=ranges, bits={**right.bits, key: 4})
    # A range that is too large has no values beyond it: PACT and DSQ need the decay of ranges.
    decay = 0.0 if activations == "lsq" or factor < 1 else 1e-3
    options = TrainOptions(
        weights="none", activations=activations, epochs=260, batch=64, scale_rate=3e-2, range_decay=decay
    )
    found = trained(problem, wrong, options, many(problem, 128))
    ratio = found.overrides.ranges[key].threshold / right.ranges[key].threshold
    assert found.curve[-1] < found.curve[0] / 4
    assert 10**-0.5 < ratio < 10**0.5
    assert not found.overrides.weights


def test_a_range_far_beyond_its_values_comes_back_at_once() -> None:
    """No gradient is needed: after the first epoch it is at most twice as large as the values."""
    problem = made("tensorrt", 8)
    right = problem.strategy(8)
    key = problem.topology.group_of["relu2_out"].key
    wrong = replace(right, ranges={**right.ranges, key: _times(right.ranges[key], 1000.0)})
    found = trained(problem, wrong, replace(LSQ, epochs=2, learning_rate=0.0, scale_rate=1e-9), many(problem, 32))
    assert found.overrides.ranges[key].threshold < 4 * right.ranges[key].threshold


def _times(found: Range, factor: float) -> Range:
    return Range(found.low * factor, found.high * factor)


@pytest.mark.parametrize("weights", ["ste", "lsq", "dsq", "qil", "dorefa"])
def test_every_algorithm_lowers_the_loss_at_few_bits(weights: str) -> None:
    problem = made("tensorrt", 3)
    found = trained(problem, problem.strategy(3), replace(LSQ, weights=weights, epochs=25), many(problem, 96))
    assert found.curve[-1] < 0.7 * found.curve[0]


def test_blocks_lower_the_loss_and_end_at_integers() -> None:
    problem = made("tensorrt", 3)
    strategy = problem.strategy(3)
    options = TrainOptions(
        weights="adaround", activations="lsq", scope="blocks", epochs=30, batch=16, learning_rate=2e-2, drop=0.5
    )
    samples = many(problem, 96)
    found = trained(problem, strategy, options, samples)
    blocks = blocks_of(problem.graph, {"first", "second", "dense"}, {"relu1", "relu2", "relu3"})
    assert [tuple(n.name for n in b.nodes) for b in blocks] == [
        ("first", "relu1"),
        ("second", "relu2", "add", "relu3"),
        ("pool", "flat", "dense"),
    ]
    assert len(found.curve) == len(blocks) * 30
    own = [_loss(problem, strategy, o, samples) for o in (Overrides({}, {}), found.overrides)]
    assert own[1] < 0.9 * own[0]


def _loss(problem: Line, strategy: Any, overrides: Overrides, samples: Any) -> float:
    """KL of the realized model on samples."""
    from quantpipe.metrics.outputs import kl_divergence

    there = replace(problem, samples=samples)
    plan = problem.planner.plan(strategy, overrides)
    name = problem.graph.outputs[0].name
    return kl_divergence(there.outputs()[name], there.outputs(there.realize(plan, "integer").model)[name])


@pytest.mark.parametrize(
    "options",
    [
        LSQ,
        replace(LSQ, warmup=0.5),
        TrainOptions(weights="adaround", activations="lsq", scope="blocks", epochs=2, batch=16, drop=0.5, warmup=0.5),
    ],
)
@pytest.mark.parametrize("stop", [1, 2, 3])
def test_an_interrupted_training_ends_at_the_same_numbers(options: TrainOptions, stop: int) -> None:
    problem = made("tensorrt", 4)
    strategy, samples = problem.strategy(4), many(problem)
    whole = trained(problem, strategy, options, samples)
    kept = Memory(stop)
    with pytest.raises(KeyboardInterrupt):
        trained(problem, strategy, options, samples, kept=kept)
    again = trained(problem, strategy, options, samples, kept=kept)
    assert again.curve == whole.curve
    assert numbers(problem.planner.plan(strategy, again.overrides)) == numbers(
        problem.planner.plan(strategy, whole.overrides)
    )
    other = trained(problem, strategy, options, samples, seed=1)
    assert other.curve != whole.curve, "another seed takes the samples in another order"


def test_an_interrupted_training_knows_the_values_seen() -> None:
    """Ranges are bounded by them: here that of the samples before the interruption."""
    problem = made("tensorrt", 8)
    right, samples = problem.strategy(8), many(problem, 64)
    key = problem.topology.group_of["relu2_out"].key
    wrong = replace(right, ranges={**right.ranges, key: _times(right.ranges[key], 1000.0)})
    options = replace(LSQ, epochs=2, batch=2, learning_rate=0.0, scale_rate=1e-9)
    whole, kept = trained(problem, wrong, options, samples), Memory(1)
    with pytest.raises(KeyboardInterrupt):
        trained(problem, wrong, options, samples, kept=kept)
    again = trained(problem, wrong, options, samples, kept=kept)
    assert again.overrides.ranges[key] == whole.overrides.ranges[key]


def test_a_checkpoint_of_other_options_is_not_taken() -> None:
    problem = made("tensorrt", 4)
    strategy, samples, kept = problem.strategy(4), many(problem), Memory()
    trained(problem, strategy, LSQ, samples, kept=kept)
    other = trained(problem, strategy, replace(LSQ, learning_rate=2e-3), samples, kept=kept)
    assert other.curve == trained(problem, strategy, replace(LSQ, learning_rate=2e-3), samples).curve
    assert len(kept.found) == 2


def test_labels_are_learned() -> None:
    """Random labels of a few samples: only training by labels lowers their cross entropy."""
    problem = made("tensorrt", 8)
    samples = many(problem, 16, labels=5)
    options = replace(LSQ, loss="labels", epochs=80, learning_rate=1e-2, optimizer="adam")
    found = trained(problem, problem.strategy(), options, samples)
    assert found.curve[-1] < 0.5 * found.curve[0]


def test_cuda_computes_whole_products_that_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """TF32 would round operands to 10 bits. The settings of torch are the caller's again afterwards."""
    cudnn, seen = torch.backends.cudnn, list[tuple[bool, bool]]()

    def flags() -> tuple[bool, bool]:
        return cudnn.allow_tf32, cudnn.deterministic

    monkeypatch.setattr(training_loop, "device_of", lambda options: torch.device("cpu"))
    monkeypatch.setattr(training_loop, "_trained", lambda *_, **__: seen.append(flags()))
    before, problem = flags(), made("tensorrt", 4)
    for device in ("cuda", "cpu"):
        trained(problem, problem.strategy(4), replace(LSQ, device=device))
        assert flags() == before
    assert seen == [(False, True), before] and before != (False, True)


def test_a_loss_that_is_no_number_ends_the_training() -> None:
    problem = made("tensorrt", 4)
    options = replace(LSQ, scale_rate=1e6, epochs=5)
    with pytest.raises(NotConverged, match=r"not converged: the loss is .* in epoch"):
        trained(problem, problem.strategy(4), options, many(problem))


@pytest.mark.parametrize(
    ("device", "weights", "factor"),
    [("tensorrt", "lsq", 0), ("vta", "dorefa", 0), ("fbgemm", "dorefa", -1), ("fbgemm", "qil", -1)],
)
def test_weights_of_one_sign_or_none(device: str, weights: str, factor: int) -> None:
    """Zeros have an empty range; asymmetric integers of negative weights have 0 at their upper end."""
    net = Net(7)
    constant = net.constant(np.float32(factor * np.abs(np.random.default_rng(1).standard_normal((6, 8)))))
    first = net.node("MatMul", net.input(None, 6), constant, name="first")
    net.output(net.dense(net.node("Relu", first, name="relu"), 8, 4, name="dense"))
    problem = line(net, device)
    found = trained(problem, problem.strategy(), replace(LSQ, weights=weights, epochs=1), many(problem))
    assert 0 <= found.curve[0] < 0.01
    assert problem.agree(problem.planner.plan(problem.strategy(), found.overrides), "integer").differing == 0


def test_a_learned_number_that_is_not_finite_ends_the_training() -> None:
    """The root of 0 has no finite gradient, and no step follows whose loss would show it."""
    net = Net(7)
    x = net.node("Sqrt", net.node("Relu", net.dense(net.input(None, 6), 6, 8, name="before"), name="relu"), name="root")
    net.output(net.dense(x, 8, 4, name="after"))
    problem = line(net, "tensorrt")
    with pytest.raises(NotConverged, match="not converged: a learned number is not finite after epoch 1"):
        trained(problem, problem.strategy(), replace(LSQ, epochs=1, batch=64), many(problem))


def test_dropping_keeps_some_elements_in_float_only_in_training() -> None:
    problem = made("tensorrt", 3)
    state, name = state_of(problem, problem.strategy(3)), problem.graph.outputs[0].name
    inputs = {n: torch.from_numpy(v) for n, v in problem.samples.inputs.items()}  # type: ignore[attr-defined]
    network = QuantizedNetwork(state, replace(LSQ, drop=0.5), torch.device("cpu"))
    with torch.no_grad():
        first, second = (network.train()(inputs, [name])[name] for _ in range(2))
        third, fourth = (network.eval()(inputs, [name])[name] for _ in range(2))
    assert not torch.equal(first, second) and torch.equal(third, fourth)


def test_weights_of_pairs_stay_exact_on_every_processor() -> None:
    """ort_cpu adds pairs of products in int16 on some processors: no learned weight may break that."""
    problem = made("ort_cpu", 8)
    strategy = problem.strategy()
    found = trained(problem, strategy, replace(LSQ, epochs=3, learning_rate=1e-2), many(problem))
    plan = problem.planner.plan(strategy, found.overrides)
    assert not any("uint8" in row["reason"] for row in plan.raised)


def test_a_node_without_gradients_is_named() -> None:
    net = Net(1)
    net.output(net.node("Det", net.input(None, 3, 3), name="determinant"))
    with pytest.raises(NotTrainable, match="determinant"):
        FloatNetwork.of(line(net, "ort_cpu").graph, torch.device("cpu"))


def test_samples_of_several_shapes_are_trained_on() -> None:
    net = Net(5)
    x = net.node(
        "Relu", net.conv(net.input(None, 3, 8, None), 3, 6, 3, 3, name="first", pads=[1, 1, 1, 1]), name="relu1"
    )
    net.output(net.dense(net.node("Flatten", net.node("GlobalAveragePool", x)), 6, 4, name="dense"))

    class Mixed:
        labelled, digest = False, "mixed"

        def __len__(self) -> int:
            return 32

        def batches(self, size: int) -> Any:
            from quantpipe.types import Batch

            rng = np.random.default_rng(0)
            for width in (8, 12):
                for _ in range(0, 16, size):
                    values = rng.standard_normal((min(size, 16), 3, 8, width)).astype(np.float32)
                    yield Batch({"x": values}, None, np.arange(len(values)))

    problem = line(net, "tensorrt")
    found = trained(problem, problem.strategy(4), replace(LSQ, epochs=3), Mixed())  # type: ignore[arg-type]
    assert len(found.curve) == 3 and all(np.isfinite(found.curve))


def test_shared_weights_are_learned_once() -> None:
    net = Net(6)
    x = net.input(None, 8)
    weight, bias = net.floats(8, 8, scale=0.4), net.floats(8, scale=0.2)
    for number in range(2):
        x = net.node("Relu", net.node("Gemm", x, weight, bias, name=f"dense{number}", transB=1), name=f"relu{number}")
    net.output(net.dense(x, 8, 4, name="last"))
    problem = line(net, "tensorrt")
    strategy = problem.strategy(4)
    found = trained(problem, strategy, LSQ, many(problem))
    assert len(found.overrides.weights) == 2 and set(found.overrides.biases) == {"dense0", "dense1", "last"}
    plan = problem.planner.plan(strategy, found.overrides)
    assert problem.agree(plan, "integer").differing == 0


def test_residual_blocks_are_whole() -> None:
    problem = made("tensorrt", 8, residual(4))
    assert [
        len(b.nodes) for b in blocks_of(problem.graph, {"first", "second", "dense"}, {"relu1", "relu2", "relu3"})
    ] == [2, 4, 3]
    (whole,) = blocks_of(problem.graph, {"dense"})
    assert len(whole.nodes) == len(problem.graph.nodes)


def test_labels_judge_rounded_probabilities_as_probabilities() -> None:
    """Rows of a stored Softmax do not add up to 1 exactly; their logarithm is taken all the same."""
    from quantpipe.train.output_losses import label_loss

    labels = torch.tensor([0, 1, 2])
    exact = torch.softmax(torch.tensor([[2.0, 0.5, -1], [0.1, 1.7, 0.2], [-1, 0.3, 0.9]]), -1)
    rounded = torch.round(exact * 256) / 256 - 1 / 256
    assert float((rounded.sum(-1) - 1).abs().max()) > 1e-3
    expected = -np.log(np.maximum(rounded.numpy()[range(3), labels], 1e-12)).mean()
    np.testing.assert_allclose(label_loss(rounded, labels, probable=True).item(), expected, rtol=1e-5)
    net = Net(8)
    net.output(net.node("Softmax", net.dense(net.input(None, 6), 6, 4, name="dense"), name="softmax"))
    problem = line(net, "tflite_int8")
    samples = many(problem, 32, labels=4)
    options = replace(LSQ, loss="labels", epochs=1, learning_rate=1e-9, scale_rate=1e-9)
    found = trained(problem, problem.strategy(), options, samples)
    real = replace(problem, samples=samples).outputs()[problem.graph.outputs[0].name]
    entropy = -np.log(real[range(32), samples.labels]).mean()  # type: ignore[index,call-overload]
    assert found.curve[0] == pytest.approx(entropy, rel=0.05), "the loss of probabilities, not of their softmax"


def rows_per_sample(net: Net) -> str:
    """Three rows of scores for each sample, `[3·N, 4]`."""
    x = net.node("Relu", net.dense(net.input(None, 6), 6, 12, name="dense"), name="relu")
    return net.dense(net.node("Reshape", x, net.constant(np.int64([-1, 4]))), 4, 5, name="scores")


def time_first(net: Net) -> str:
    """Scores `[T, N, C]`, as CTC models have them."""
    x = net.node("Relu", net.conv(net.input(None, 3, 6), 3, 8, 3, name="conv"), name="relu")
    x = net.node("Transpose", x, perm=[2, 0, 1], name="move")
    return net.node("MatMul", x, net.floats(8, 5, scale=0.4), name="scores")


@pytest.mark.parametrize("build", [rows_per_sample, time_first])
@pytest.mark.parametrize("scope", ["network", "blocks"])
def test_outputs_without_a_row_per_sample_are_compared_with_their_own_reference(build: Any, scope: str) -> None:
    """At 8 bits the loss before any learning is that of rounding: tiny, if each sample meets its own reference."""
    net = Net(9)
    net.output(build(net))
    problem = line(net, "tensorrt")
    options = replace(LSQ, scope=scope, epochs=1, learning_rate=1e-9, scale_rate=1e-9)
    found = trained(problem, problem.strategy(), options, many(problem, 40))
    assert 0 < max(found.curve) < 0.01
