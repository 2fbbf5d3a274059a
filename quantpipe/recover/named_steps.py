"""The steps of recovery by name: what each does to a state, and the parameters it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from quantpipe.option_checks import flag, integer, number, one_of
from quantpipe.plan import Problem
from quantpipe.recover.parameters import KEY, SEARCHED
from quantpipe.recover.ranges import Ranges, chosen_ranges
from quantpipe.recover.reconstruct.layer import LayerOptions
from quantpipe.recover.reconstruct.threads import one_thread_each
from quantpipe.recover.recovery_cost import SIMULATED, PassCounts
from quantpipe.recover.rescale.absorb import Absorption, absorbed
from quantpipe.recover.rescale.channel_regions import LayerPair
from quantpipe.recover.rescale.channel_stats import ChannelExtremes
from quantpipe.recover.rescale.equalize import FEW_BITS, UNEVEN_DB, Equalization, equalized, far_apart, uneven_db
from quantpipe.recover.rescale.rotate import Rotation, rotations
from quantpipe.recover.rescale.smooth import Smoothing, smoothed
from quantpipe.recover.work import NotApplicable, State, Work
from quantpipe.train.train_options import TrainOptions
from quantpipe.types import Granularity, WeightTensor

TRAIN = "train"
"""The step that learns by gradients; its parameters are the keys of conf/train."""


@dataclass(frozen=True)
class Walk:
    """State how a step walks through the layers.

    `rows`: most sampled rows per layer. `rounding`: gptq | coordinate_descent. `ridge`, `damping`: regularization of
    regression and rounding, as shares of the mean second moment; `shrinkage_factor`: how both grow where samples are
    few for a layer (0: not at all). `shortcuts`: where a walk regresses, whether a layer of few bits answers for the
    error of what its result is added to.
    """

    rows: int = 16384
    rounding: str = "gptq"
    ridge: float = 0.5
    damping: float = 0.05
    shrinkage_factor: float = 10.0
    shortcuts: bool = True

    def __post_init__(self) -> None:
        integer(f"{KEY}.rows", self.rows, least=64)
        one_of(f"{KEY}.rounding", self.rounding, SEARCHED)
        number(f"{KEY}.ridge", self.ridge, least=1e-6)
        number(f"{KEY}.damping", self.damping, least=1e-6)
        number(f"{KEY}.shrinkage_factor", self.shrinkage_factor, least=0)
        flag(f"{KEY}.shortcuts", self.shortcuts)


@dataclass(frozen=True)
class StepKind:
    """Describe a kind of step.

    `parameters` is the class of what `run` takes as its third argument. `count` gives the float passes of a run, from
    its parameters and the rows of the walk that it repeats, if there is one. `rescales`: the step puts channels in
    other units, so that a walk that was made before is repeated.
    """

    parameters: type[Any]
    run: Callable[[Work, State, Any], State]
    count: Callable[[PassCounts, Any, int | None], float]
    rescales: bool = False


def layer_options(step: str, options: Walk) -> LayerOptions:
    """Return how single layers are solved in a step that walks."""
    plain = step == "bias"
    return LayerOptions(
        propagate=step == "gptq_compensated",
        rounding="nearest" if plain else options.rounding,
        scale_search=not plain,
        own_bias=step == "gptq",
        ridge=options.ridge,
        damping=options.damping,
        shrinkage_factor=options.shrinkage_factor,
        shortcuts=options.shortcuts,
    )


def _walk(step: str) -> StepKind:
    def run(work: Work, state: State, options: Walk) -> State:
        found = work.walked(state, layer_options(step, options), options.rows)
        if not found.overrides.weights:
            raise NotApplicable("no layer of this model can be solved")
        return replace(found, note=f"{len(found.layers)} layers")

    return StepKind(Walk, run, lambda counts, options, _: counts.walk(options.rows))


def _rescaling(counts: PassCounts, options: Any, rows: int | None) -> float:
    """Extremes of channels and ranges."""
    return 2.0 + counts.walk(rows)


def _smoothing(counts: PassCounts, options: Smoothing, rows: int | None) -> float:
    """Extremes of channels and the float outputs; then ranges and a simulated pass for each alpha."""
    return 2.0 + len(options.alphas) * (1.0 + SIMULATED + counts.walk(rows))


def _choosing_ranges(counts: PassCounts, options: Ranges, rows: int | None) -> float:
    """Statistics, and the float and the simulated outputs on some of the samples."""
    some = min(options.samples * counts.sample, 1.0)
    return 1.0 + some * (1.0 + SIMULATED * (options.evaluations + 1))


def _equalize(work: Work, state: State, options: Equalization) -> State:
    layer_pairs, reasons = work.layer_pairs
    pairs = [link for link in layer_pairs.values() if not link.affine]
    if not pairs:
        raise NotApplicable(_why("no two layers follow one another", reasons))
    alone = work.schema.weights.granularity is Granularity.PER_CHANNEL and options.per_channel is not True
    costs_nothing = "weights have a scale per channel, so the range of one row costs the others nothing"
    if alone and options.per_channel is False:
        raise NotApplicable(costs_nothing)
    extremes = work.extremes(state, pairs, moments=False)
    if alone:  # the tensor has one scale still, which channels far apart pay for
        weights = work.plan(state).weights
        pairs = [link for link in pairs if _gains(weights, state, link, extremes)]
    if not pairs:
        raise NotApplicable(
            f"{costs_nothing}, no weight has {FEW_BITS} bits or fewer, and no tensor's common scale costs its channels "
            f"{UNEVEN_DB:g} dB"
        )
    changes = equalized(
        state.graph, state.topology, pairs, extremes, channel_bounds=work.spec.channel_bounds, options=options
    )
    if not changes:
        raise NotApplicable("all channels have equal ranges already, or meet a clamp that cannot move")
    found = work.rescaled(state, changes, work.ranges_for(state, changes))
    return replace(found, note=f"{len(changes)} of {len(pairs)} pairs")


def _gains(
    weights: Mapping[str, WeightTensor], state: State, link: LayerPair, extremes: Mapping[str, ChannelExtremes]
) -> bool:
    """Return whether other units of a tensor's channels can gain where weights have scales per channel."""
    names = [state.topology.kernel_of[name].weight or "" for name in (link.producer, *link.consumers)]
    if min(weights[name].bits for name in names) <= FEW_BITS:
        return True
    far = far_apart(extremes[link.tensor])
    return far or uneven_db(state.graph, state.topology, link, extremes) >= UNEVEN_DB


def _absorb(work: Work, state: State, options: Absorption) -> State:
    layer_pairs, reasons = work.layer_pairs
    movable = [link for link in layer_pairs.values() if link.offsets]
    if not movable:
        raise NotApplicable(
            _why("every tensor is padded, has no bias around it, or is not between two layers", reasons)
        )
    extremes, schema = work.extremes(state, movable, moments=True), work.schema.activations
    rough = absorbed(state.graph, movable, extremes, schema, spec=work.spec, options=options, steps={})
    if not rough:
        raise NotApplicable("no range would shrink")
    ranges = work.ranges_for(state, rough)
    steps = {tensor: work.step_of(tensor, ranges) for tensor in rough}
    moved = [link for link in movable if link.tensor in rough]
    changes = absorbed(state.graph, moved, extremes, schema, spec=work.spec, options=options, steps=steps)
    found = work.rescaled(state, changes, ranges)
    return replace(found, note=f"{len(changes)} of {len(movable)} tensors")


def _smooth(work: Work, state: State, options: Smoothing) -> State:
    layer_pairs, reasons = work.layer_pairs
    behind = [link for link in layer_pairs.values() if link.affine or link.attended]
    if not behind:
        raise NotApplicable(
            _why("no layer reads a normalization with gain and offset alone, nor an attention", reasons)
        )
    extremes = work.extremes(state, behind, moments=False)
    best: tuple[float, float, State] | None = None
    for alpha in options.alphas:
        changes = smoothed(state.graph, state.topology, behind, extremes, alpha=alpha)
        found = work.rescaled(state, changes, work.ranges_for(state, changes))
        value = work.fitted(None)(found.graph, found.topology, work.plan(found))
        if best is None or value < best[0]:
            best = (value, alpha, found)
    assert best is not None  # noqa: S101  (there is always at least one alpha)
    return replace(best[2], note=f"{len(behind)} tensors, alpha {best[1]:g}")


def _rotate(work: Work, state: State, options: Rotation) -> State:
    found, reasons = work.streams
    if not found:
        raise NotApplicable(_why("no tensors are tied together by linear ops alone, between layers", reasons))
    free = [s for s in found.values() if not state.overrides.channels.keys() & {*s.tensors, *s.behind}]
    if not free:
        raise NotApplicable("the channels of all streams are already rescaled; put rotate before such steps")
    with one_thread_each() as pool:
        made = rotations(state.graph, state.topology, free, options, apply=pool.map)
    if not made:
        raise NotApplicable("the weights around all streams are as even as a rotation makes them")
    state = work.rotated(state, {name: turned.matrix for name, turned in made.items()})
    gains = [turned.gain_db for turned in made.values()]
    evener = f"{min(gains):.1f} to {max(gains):.1f} dB"
    return replace(state, note=f"{len(made)} of {len(found)} streams, weights {evener} more even")


def _ranges(work: Work, state: State, options: Ranges) -> State:
    return chosen_ranges(work, state, options)


def _train(work: Work, state: State, options: TrainOptions) -> State:
    if work.training is None or not options.active:
        raise NotApplicable("nothing is to be learned: train.weights and train.activations are none")
    from quantpipe.train.network import NotTrainable  # torch takes seconds to import
    from quantpipe.train.trained_state import TrainedState
    from quantpipe.train.training_loop import NotConverged, train

    norms = work.training.norms if options.fold else {}
    if norms and (state.overrides.channels or state.overrides.rotations):
        raise NotApplicable(
            f"train.fold={options.fold} needs the normalizations as they are, and steps before it rescaled channels; "
            "use recover=none or fold 0"
        )
    problem = Problem(state.graph, state.topology, work.spec, work.schema)
    begun = TrainedState(problem, work.strategy, state.overrides, work.plan(state), norms)
    try:
        found = train(begun, work.training, options, seed=work.seed, progress=work.progress, kept=work.kept)
    except (NotTrainable, NotConverged) as error:
        raise NotApplicable(str(error)) from error
    return replace(state, overrides=found.overrides, walk=None, note=found.note, curve=found.curve)


def _why(what: str, reasons: Mapping[str, str]) -> str:
    """With the first few of the reasons why a layer's result has no link."""
    listed = "; ".join(f"{node}: {reason}" for node, reason in list(reasons.items())[:3])
    return f"{what} ({listed})" if listed else what


STEPS: Mapping[str, StepKind] = {
    "bias": _walk("bias"),
    "gptq": _walk("gptq"),
    "gptq_compensated": _walk("gptq_compensated"),
    "equalize": StepKind(Equalization, _equalize, _rescaling, rescales=True),
    "absorb": StepKind(Absorption, _absorb, _rescaling, rescales=True),
    "smooth": StepKind(Smoothing, _smooth, _smoothing, rescales=True),
    "rotate": StepKind(Rotation, _rotate, lambda counts, _, rows: 1.0 + counts.walk(rows), rescales=True),
    "ranges": StepKind(Ranges, _ranges, _choosing_ranges),
    TRAIN: StepKind(TrainOptions, _train, lambda counts, options, rows: 0.0),  # its epochs limit it
}
