"""Hidden devices are found by their dumps of the probes: the interpreter of plans, LiteRT, onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from quantpipe.conform.alternatives import narrowings
from quantpipe.conform.describe import Change
from quantpipe.conform.dump import Dump
from quantpipe.conform.identify import WIDTH, Held, Identified, identify
from quantpipe.conform.probes import Probe, probes_of
from quantpipe.realize.tflite.run import LiteRTKernels, TfliteModel, TfliteRunner
from quantpipe.realize.tflite.write import write_model
from quantpipe.types import Accumulate, Limit, Overflow, QuantPlan, Sum
from quantpipe.types.dtype import DType
from tests.ops.line import hardware, hardware_data, schema_for
from tests.simulate.interpreter import Interpreter

FAST = ("conv_narrowing", "conv_narrowing_ties", "dense_narrowing", "dense_narrowing_ties", "conv_overflow16",
        "conv_ties", "add_ties", "add_general", "mean_ties", "mean_general")  # fmt: skip


@cache
def probes(spec: str) -> tuple[Probe, ...]:
    return tuple(probes_of(hardware_data(spec), schema_for(hardware(spec)), FAST)[0])


def hidden(rng: np.random.Generator, spec: str) -> tuple[dict[str, Any], Limit | None]:
    """Fields of a device that are legal beside a file's others: how ops narrow, what sums wrap or saturate."""
    ops = sorted({p.kernel.op for p in probes(spec)})
    legal = [h for h in narrowings((9, 10, 15, 21)) if probes(spec)[0].described.legal({"requantize": h}) is not None]
    file_wide = legal[int(rng.integers(len(legal)))]
    change: dict[str, Any] = {"requantize": file_wide}
    own = {op: legal[int(rng.integers(len(legal)))] for op in ops if rng.random() < 0.3 and op != "Add"}
    limit = None
    if rng.random() < 0.5:
        limit = Limit(DType.INT16, Overflow.WRAP if rng.random() < 0.5 else Overflow.SATURATE)
    if hardware(spec).unify != "free":
        change["unify"] = str(rng.choice(["min_scale", "max_scale"]))
    return change | {f"ops.{op}.requantize": how for op, how in own.items()}, limit


def device(probe: Probe, change: Change, limit: Limit | None) -> Dump:
    """What the interpreter gives of a probe, with the numbers that the hidden fields make of every kernel."""
    described, kernels = probe.described, {}
    for kernel in described.topology.kernels:
        site = described.site(kernel, change)
        assert site is not None
        numbers: Any = site.numbers
        if limit is not None and isinstance(numbers, Accumulate | Sum) and getattr(numbers, "scale", 0) is not None:
            fixed = isinstance(numbers, Sum) and numbers.terms[0].fixed is not None
            numbers = numbers if fixed else replace(numbers, limit=limit)
        kernels[kernel.node] = numbers
    plan: QuantPlan = replace(described.network.plan, kernels=kernels)
    made = Interpreter(described.graph, described.topology, plan).run(dict(probe.vectors.inputs))
    stored = {t: made.q(t) for t in plan.quantizers}
    return Dump(stored, probe.vectors.samples)


def narrowing_of(change: Mapping[str, Any], op: str) -> str:
    how = change.get(f"ops.{op}.requantize", change["requantize"])
    width = f", multiplier_bits {how['multiplier_bits']}" if "multiplier_bits" in how else ""
    return f"{how['kind']}, rounding {how['rounding']}{width}"


def rows(found: Identified) -> dict[str, list[str]]:
    return {row["field"]: row["values"] for row in found.fields}


@pytest.mark.grid
@pytest.mark.sliced(20)
@pytest.mark.parametrize("seed", range(20))
def test_hidden_fields_are_found_or_named(seed: int) -> None:
    rng = np.random.default_rng(seed)
    spec = ("tflite_int8", "vta", "tensorrt", "ort_cpu")[seed % 4]
    change, limit = hidden(rng, spec)
    found = identify(hardware(spec), [Held.of(p, device(p, change, limit)) for p in probes(spec)])
    assert not found.unexplained, (change, limit)
    left = rows(found)
    for op in {p.kernel.op for p in probes(spec)}:
        values = left[f"requantize of {op}"]
        wanted = narrowing_of(change, op)
        stem = wanted.split(WIDTH)[0]  # without a width: all widths give the same
        assert {wanted, stem} & set(values), (change, values)
        # Accumulators were chosen that tell ways to narrow apart; where sums wrap at 16 bits they are others.
        if limit is None and spec != "vta" and op in ("Conv", "Gemm"):
            assert {v.split(WIDTH)[0] for v in values} == {stem}
            if wanted not in values:
                continue
            # Others are left where accumulators are too small, or digits of multipliers zeros, for their difference.
            widths = [int(v.partition(WIDTH)[2] or 31) for v in values]
            assert min(widths) >= min(18, int(wanted.partition(WIDTH)[2] or 31) - 4) and len(widths) <= 14
    if limit is not None:
        assert f"int16, overflow {limit.overflow}" in left["accumulator"] and len(left["accumulator"]) == 1
    if "unify" in change:
        assert change["unify"] in left["unify"]


@pytest.mark.grid
def test_what_has_no_dump_is_not_tested_and_the_probe_that_would_decide_is_named() -> None:
    spec = "tflite_int8"
    told = [p for p in probes(spec) if p.recipe.name.startswith("dense")]
    dumps = {p.recipe.name: device(p, {}, None) for p in told}
    found = identify(hardware(spec), [Held.of(p, dumps.get(p.recipe.name)) for p in probes(spec)])
    by_name = {row["field"]: row for row in found.fields}
    assert by_name["requantize of Conv"]["state"] == "not tested"
    assert {"conv_narrowing", "conv_ties"} <= set(by_name["requantize of Conv"]["would_decide"])
    assert by_name["requantize of Gemm"]["values"][0] == "fixed_point, rounding single_away"
    assert by_name["accumulator"]["state"] != "found"


@pytest.mark.program
def test_a_device_that_no_file_describes_is_unexplained() -> None:
    spec = "tflite_int8"
    dumps = []
    for probe in probes(spec):
        given = device(probe, {}, None)
        result = given.tensors[probe.kernel.output]
        dumps.append(Dump({**given.tensors, probe.kernel.output: result ^ 1}, given.samples))
    found = identify(hardware(spec), [Held.of(p, d) for p, d in zip(probes(spec), dumps, strict=True)])
    assert set(found.unexplained) == {p.recipe.name for p in probes(spec)}


@pytest.mark.program
def test_litert_is_what_its_file_says() -> None:
    """Its reference kernels, run on what the tflite form writes of the probes."""
    pytest.importorskip("ai_edge_litert")
    spec, held = "tflite_int8", []
    for probe in probes(spec):
        described = probe.described
        content = write_model(described.graph, described.topology, described.network.plan, whole=False, provenance={})
        runner = TfliteRunner(TfliteModel(content.content, probe.recipe.name), LiteRTKernels.REFERENCE)
        tensors = runner.run(dict(probe.vectors.inputs))
        held.append(Held.of(probe, Dump({t: v.astype(np.int64) for t, v in tensors.items()}, probe.vectors.samples)))
    found = identify(hardware(spec), held)
    assert not found.unexplained
    left = rows(found)
    assert "fixed_point, rounding double" in left["requantize of Conv"]
    assert not any("single" in v or "float" in v for v in left["requantize of Conv"])
    assert {v.split(", multiplier_bits")[0] for v in left["requantize of Gemm"]} == {
        "fixed_point, rounding single_away"
    }
    assert "fixed_point, rounding double" in left["requantize of Add"]
