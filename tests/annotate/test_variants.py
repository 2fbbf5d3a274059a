"""The space of structural choices, and the topologies they lead to."""

from __future__ import annotations

import numpy as np
import pytest

from quantpipe.annotate.conditions import AnnotateOptions
from quantpipe.annotate.limits import ChoiceLimits, pinned
from quantpipe.annotate.variants import Topologies
from quantpipe.errors import ConfigError
from quantpipe.types import Choice, Structure, Topology
from tests.evaluate.mixed import Mixed, layers, residual
from tests.ops.line import hardware, line


def choices(mixed: Mixed, kind: str) -> dict[str, tuple[object, ...]]:
    return {c.key: c.options for c in mixed.space if c.kind == kind}


def variants_of(spec: str, changes: dict[str, object] | None = None, **options: object) -> Topologies:
    made = line(residual(), hardware(spec, **(changes or {})))
    return Topologies(made.graph, made.spec, made.schema, AnnotateOptions(**options))  # type: ignore[arg-type]


def stored(topology: Topology) -> set[str]:
    return {t for g in topology.groups for t in g.tensors}


def test_the_default_space_is_that_of_bits() -> None:
    mixed = Mixed(line(residual(), "mixed_npu"), kinds=("bits",))
    assert {c.kind for c in mixed.space} == {"bits"} and not mixed.variants.choices
    assert mixed.variants.measured == mixed.variants.base.measured, "nothing more is calibrated"
    assert mixed.variants.topology_of(mixed.space.decode(mixed.space.start)) is mixed.variants.base


def test_every_kind_of_choice_on_a_device_that_allows_them() -> None:
    mixed = Mixed(line(residual(), "mixed_npu"))
    assert choices(mixed, "add") == {
        "add:first": ("both", "residual_only", "none"),
        "add:second": ("both", "residual_only", "none"),
    }
    layers_and_sums = ["front", "deep", "point", "arm", "square", "mean", "head"]
    assert choices(mixed, "float") == {f"float:{n}": ("integer", "float") for n in layers_and_sums}
    weights = [w.tensor for w in mixed.variants.base.weights]
    assert choices(mixed, "granularity") == {f"granularity:{w}": ("per_channel", "per_tensor") for w in weights}
    assert set(choices(mixed, "threshold_step").values()) == {(0, -1, 1)}
    assert mixed.space.size == np.prod([len(c.options) for c in mixed.space], dtype=object)
    by_key = {c.key: c for c in mixed.space}
    assert by_key["add:first"].edges == (
        "point->first:0",
        "relu1->first:1",
    )
    assert by_key["float:front"].edges == ("x->front:0", "c1->front:1")
    assert not any(c.graded for c in mixed.variants.choices)


def test_without_a_choice_of_its_own_an_addition_has_that_of_float() -> None:
    found = {c.key for c in Mixed(line(residual(), "mixed_npu"), kinds=("float",)).variants.choices}
    assert {"float:first", "float:second"} <= found
    assert not any(k.startswith("float:relu") for k in found), "clamps and moves follow their producers"


def test_bits_that_are_not_searched_stay_at_the_most() -> None:
    mixed = Mixed(line(residual(), "mixed_npu"), kinds=("float",))
    assert {c.options for c in mixed.space if c.kind == "bits"} == {(16,)}


def test_devices_without_float_layers_and_with_one_way_to_add_offer_neither() -> None:
    mixed = Mixed(line(residual(), "vta"))
    assert {c.kind for c in mixed.space} == {"bits", "threshold_step"}
    other = Mixed(line(residual(), "tensorrt"))
    assert {c.kind for c in other.space} == {"bits", "threshold_step", "float", "granularity"}


def test_accumulators_are_handed_on_only_where_there_is_one() -> None:
    """Both operands of a sum of a relu and the input are stored whatever one says."""
    made = line(residual(), hardware("mixed_npu", fuse=[["Conv", "Relu"]], add_inputs=["both", "residual_only"]))
    assert [c.key for c in Mixed(made).variants.choices if c.kind == "add"] == ["add:first", "add:second"]
    net = layers()
    x = "relu_out"
    net._outputs.clear()
    net.output(net.node("Add", x, x, name="twice"))
    alone = Mixed(line(net, hardware("mixed_npu", add_inputs=["both", "residual_only"])))
    assert not choices(alone, "add")


def test_the_reference_stores_most_whatever_the_default() -> None:
    """With additions in float by default, the bits of what `both` stores are choices all the same."""
    variants = variants_of("mixed_npu", {"add_inputs": ["none", "both"]}, choices=("bits", "add"))
    assert "first" in variants.base.float_nodes and "first" in variants.reference.kernel_of
    assert stored(variants.base) < stored(variants.reference)
    both = variants.at(Structure((("add:first", "both"), ("add:second", "both"))))
    assert stored(both) == stored(variants.reference) and not both.float_edges
    assert {*variants.base.measured, *both.measured} <= set(variants.measured)


@pytest.mark.grid
def test_what_a_variant_needs_was_measured() -> None:
    for spec in ("mixed_npu", "ort_cpu", "tensorrt"):
        mixed = Mixed(line(residual(), spec))
        for point in mixed.points(40, seed=4):
            topology = mixed.variants.topology_of(mixed.space.decode(point))
            assert set(topology.measured) <= set(mixed.variants.measured)


def test_tensors_that_a_user_states_something_of_stay_stored() -> None:
    """relu1_out is read by deep and first, and made by front; what is stored beside it may not go."""
    stated = {"relu1_out": {"kind": "calibrated", "min": 0, "max": 4}}
    variants = variants_of("mixed_npu", choices=("bits", "float", "add"), constraints=stated)
    keys = {c.key for c in variants.choices}
    assert not keys & {"float:front", "float:deep", "add:first"} and "float:head" in keys
    every = Structure(tuple((c.key, str(c.options[-1])) for c in variants.choices))
    assert "relu1_out" in stored(variants.at(every))


def test_a_layer_runs_in_integers_whatever_feeds_it() -> None:
    """Its op has a float signature, and the model's input is real: rule 3 is not for layers."""
    topology = line(residual(), "ort_cpu").topology
    assert "front" in topology.kernel_of


def test_limits_take_words() -> None:
    space = Mixed(line(residual(), "mixed_npu")).space
    limits = ChoiceLimits(fix={"float:head": "float"}, restrict={"add:*": ["none", "both"]}, freeze=["granularity:*"])
    narrowed = limits.narrowed(space)
    left = {c.key: c.options for c in narrowed}
    assert left["float:head"] == ("float",) and left["add:first"] == ("both", "none")
    assert pinned(space, narrowed)["float:head"] == "float"
    with pytest.raises(ConfigError, match="wants flot and leaves float:head nothing; it has integer, float"):
        ChoiceLimits(fix={"float:head": "flot"}).narrowed(space)
    with pytest.raises(ConfigError, match="one option, an integer or a word such as float"):
        ChoiceLimits(fix={"float:head": 1.5})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("key", "option", "message"),
    [
        ("float:nope", "float", "there is no such choice"),
        ("add:first", "some", "legal are both, residual_only, none"),
        ("granularity:nope", "per_tensor", "there is no such choice"),
    ],
)
def test_structures_that_mean_nothing_here_are_refused(key: str, option: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        variants_of("mixed_npu").at(Structure(((key, option),)))


def test_kinds_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"annotate\.choices.*'floats' is no kind of choice \(did you mean 'float'"):
        AnnotateOptions(choices=("bits", "floats"))


def test_assignments_decide_on_what_departs_from_the_default() -> None:
    variants = variants_of("mixed_npu", choices=("bits", "float", "add", "granularity"))
    start = {c.key: c.options[0] for c in variants.choices}
    assert variants.structure_of(start) == Structure()
    chosen = start | {"float:head": "float", "add:second": "none"}
    assert variants.structure_of(chosen).decided == (("add:second", "none"), ("float:head", "float"))
    assert variants.topology_of(chosen).float_nodes["head"].text == "left in float by the choice float:head"
    assert isinstance(variants.choices[0], Choice)
