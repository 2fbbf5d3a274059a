"""Figures fitted to measured layers: planted ones are found again, bad files are rejected, costs are predicted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import quantpipe
from quantpipe.app.device_defaults import with_cost
from quantpipe.app.explain import settings_of_run
from quantpipe.conform.layer_times import MeasuredLayer, fit, held_out, read_times, refuse_total, with_figures
from quantpipe.data import DigitsDataset
from quantpipe.errors import ConfigError, DataError, HardwareError
from quantpipe.graph.layer_times import WARM_UP, means
from quantpipe.hardware.cost import COSTS, cost_function
from quantpipe.hardware.load import load_hardware
from quantpipe.hardware.predictor import AMOUNTS, ANY, LayerWork, layer_works, predicted_layer
from quantpipe.pipeline.identify_times import identify_times
from tests.ops.line import Net, hardware_data, line

KINDS = {"int8 spatial": (4.0, 2e-4), "int8 dense": (2.0, 1e-3), "float rows": (5.0, 0.0)}


def work(kind: str, macs: float, results: float) -> LayerWork:
    amounts = {"launch": 1.0, "macs": macs, "padded": macs, "reads": results, "results": results}
    return LayerWork(kind, {**dict.fromkeys(AMOUNTS, 0.0), **amounts})


def measured(noise: float, rng: np.random.Generator, networks: int = 4) -> list[MeasuredLayer]:
    """Layers that take what KINDS and 1e-3 microseconds a result say."""
    found = []
    for network in range(networks):
        for number in range(30):
            kind = list(KINDS)[number % 3]
            macs = 0.0 if kind == "float rows" else float(rng.integers(1_000, 2_000_000))
            results = float(rng.integers(100, 50_000))
            launch, each = KINDS[kind]
            took = (launch + each * macs + 1e-3 * results) * float(np.exp(noise * rng.standard_normal()))
            one = work(kind, macs, results)
            found.append(MeasuredLayer(f"net{network}", f"n{number}", one, {"latency": took, "energy": 7 * took}))
    return found


def test_planted_figures_are_found_and_predict_networks_that_were_left_out() -> None:
    rng = np.random.default_rng(0)
    layers = measured(0.05, rng)
    for quantity, factor in (("latency", 1.0), ("energy", 7.0)):
        found = held_out(layers, quantity)
        assert found["left_out"] == "networks" and found["layers"] == 120
        assert found["median_error"] < 0.06 and found["total_error"] < 0.05
        other = work("int8 spatial", 1e6, 2e4)
        assert predicted_layer(other, fit(layers, quantity)) == pytest.approx(factor * (4 + 200 + 20), rel=0.05)
    noisy = held_out(measured(0.5, rng, networks=2), "latency")
    assert noisy["left_out"] == "layers" and noisy["median_error"] > 0.15  # an error that is there is shown


def test_an_unknown_kind_has_the_figures_of_the_same_op_or_of_any() -> None:
    figures = fit(measured(0.0, np.random.default_rng(1)), "latency")
    wide, odd = work("int16 spatial", 1e6, 0.0), work("int8 sum", 0.0, 1e4)
    assert predicted_layer(wide, figures) == predicted_layer(work("int8 spatial", 1e6, 0.0), figures)
    assert predicted_layer(odd, figures) == predicted_layer(work(ANY, 0.0, 1e4), figures) > 0


WORKS = {"net": {f"n{number}": work("int8 dense", 1e5, 100.0) for number in range(10)}}


def written(folder: Path, header: str, *rows: str) -> Path:
    path = folder / "times.csv"
    path.write_text("\n".join((header, *rows)) + "\n")
    return path


def test_units_are_in_the_names_of_columns_and_repeats_are_averaged(tmp_path: Path) -> None:
    path = written(tmp_path, "node,milliseconds,microjoules", "n0,0.010,2", "n0,0.030,4", "n1,0.020,6", "else,1,1")
    layers, ignored = read_times(path, WORKS)
    assert [one.took for one in layers] == [{"latency": 20.0, "energy": 3000.0}, {"latency": 20.0, "energy": 6000.0}]
    assert ignored == ["else"]


@pytest.mark.parametrize(
    ("header", "rows", "said"),
    [
        ("node,time", ["n0,1"], "has the columns node, time.*microseconds"),
        ("layer,microseconds", ["n0,1"], "needed are node"),
        ("node,microseconds", ["n0,-3"], "'-3' in column microseconds"),
        ("node,microseconds", ["n0,fast"], "'fast' in column"),
        ("node,microseconds", ["n0,"], "legal is a number above 0"),
        ("node,microseconds", ["conv1,3", "conv2,4", "n0,3"], "2 of 3 rows name no layer.*conv1.*another model"),
        ("node,microseconds", [], "name no layer"),
        ("node,seconds", ["n0,40", "n1,50"], "which no device does.*another unit"),
        ("node,nanoseconds", ["n0,0.01", "n1,0.02"], "which no device does"),
    ],
)
def test_bad_files_are_rejected(tmp_path: Path, header: str, rows: list[str], said: str) -> None:
    with pytest.raises(DataError, match=said):
        read_times(written(tmp_path, header, *rows), WORKS)


def test_a_total_far_from_the_run_is_another_unit(tmp_path: Path) -> None:
    layers, _ = read_times(written(tmp_path, "node,microseconds", *(f"n{n},10" for n in range(10))), WORKS)
    refuse_total(layers, 0.12, "x")
    refuse_total(layers, None, "x")
    with pytest.raises(DataError, match="another unit"):
        refuse_total(layers, 100.0, "x")


def test_several_networks_are_named_in_a_column(tmp_path: Path) -> None:
    works = {"a": WORKS["net"], "b": WORKS["net"]}
    with pytest.raises(DataError, match="needed are node, network"):
        read_times(written(tmp_path, "node,microseconds", "n0,1"), works)
    with pytest.raises(DataError, match="network 'c'"):
        read_times(written(tmp_path, "node,network,microseconds", "n0,c,1"), works)
    layers, _ = read_times(written(tmp_path, "node,network,microseconds", "n0,a,1", "n0,b,2"), works)
    assert [(one.network, one.took["latency"]) for one in layers] == [("a", 1.0), ("b", 2.0)]


FIGURES = {"latency": {ANY: {"launch": 2.0, "macs": 1e-3}}, "energy": {ANY: {"launch": 1.0, "weights": 0.5}}}


def test_a_hardware_file_holds_the_figures_and_the_costs_use_them() -> None:
    data = with_figures("mine", hardware_data("ort_cpu"), FIGURES)
    spec = load_hardware(data)
    assert spec.name == "mine_timed" and spec.cost.layers == FIGURES
    assert with_cost({"cost": "latency"}, spec)["cost"] == "predicted_latency"
    assert with_cost({"cost": "energy"}, spec)["cost"] == "energy"
    net = Net()
    net.output(net.node("Relu", net.conv(net.input(None, 3, 8, 8), 3, 8, 3, 3)))
    made = line(net)
    works = layer_works(made.topology, made.graph, dict.fromkeys(made.topology.group_of, 8))
    found = cost_function("predicted_latency")
    assert found is not None
    value = found(made.topology, made.graph, spec, dict.fromkeys(made.topology.group_of, 8))
    assert value == pytest.approx(sum(2.0 + 1e-3 * one.amounts["macs"] for one in works.values()))
    plain = load_hardware(hardware_data("ort_cpu"))
    assert with_cost({"cost": "latency"}, plain)["cost"] == "latency"  # measured, as before
    with pytest.raises(ConfigError, match=r"no cost\.layers\.energy"):
        with_cost({"cost": "energy"}, plain)
    assert cost_function("bops") is COSTS["bops"] and cost_function("latency") is None


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ({"power": {}}, "power"),
        ({"latency": {"int8 dense": {"launch": 1}}}, "any"),
        ({"latency": {ANY: {"lunch": 1}}}, "lunch"),
        ({"latency": {ANY: {"launch": -1}}}, "launch"),
    ],
)
def test_wrong_figures_are_rejected(layers: Any, said: str) -> None:
    data = hardware_data("ort_cpu")
    with pytest.raises(HardwareError, match=said):
        load_hardware({**data, "cost": {**data.get("cost", {}), "layers": layers}})


@pytest.mark.program
def test_layers_are_measured_here_and_the_file_is_used(tmp_path: Path) -> None:
    quick: Any = {"evaluate": {"latency_runs": 1, "baseline": "none", "explain": "none"}}
    quantpipe.quantize(quantpipe.example_model(), DigitsDataset(), folder=tmp_path / "run", **quick)

    class Console:
        def stage(self, name: str, note: str = "") -> None: ...

        def progress(self, name: str) -> Any:
            return lambda done, total, note: None

        def warn(self, text: str) -> None: ...

    settings = settings_of_run(tmp_path / "run", plugins=[], given={"dataset": DigitsDataset()}, key="runs")
    found = identify_times({"run": settings}, Console(), None, 20)
    assert found["fits"][0]["quantity"] == "latency" and found["fits"][0]["layers"] >= 10
    spec = load_hardware(yaml.safe_load(Path(found["file"]).read_text()))
    assert spec.name == "ort_cpu_timed" and spec.cost.layers["latency"][ANY]


def test_times_of_whole_microseconds_keep_their_parts() -> None:
    """A profiler that rounds down to whole microseconds: starts and ends lie anywhere; some runs are disturbed."""
    rng = np.random.default_rng(0)
    runs, true = 400, {"short": 2.4, "long": 30.7, "twice": 1.3}
    disturbed = rng.random(runs) < 0.5

    def measured(took: float) -> list[float]:
        starts = rng.random(runs + WARM_UP) * 100
        slower = np.concatenate([np.full(WARM_UP, 50.0), disturbed * 20.0])
        return [float(v) for v in np.floor(starts + took + slower) - np.floor(starts)]

    times = {name: measured(took) for name, took in true.items()}
    times["twice"] = [one for pair in zip(times["twice"], measured(1.3), strict=True) for one in pair]
    found = means(times, runs)
    for name, took in true.items():
        assert abs(found[name] - took) < 0.15, (name, found[name])
