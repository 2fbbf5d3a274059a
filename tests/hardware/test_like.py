"""Files that are `like` another one: the merge by its rules, its refusals, and the place that an error names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from quantpipe.app import compose
from quantpipe.app.configfiles import FileConfigSource
from quantpipe.app.hardware_place import load_located, place_of
from quantpipe.errors import HardwareError
from quantpipe.hardware.like import taken_over
from quantpipe.hardware.load import load_hardware
from quantpipe.types import DType, FixedRounding, Overflow, RequantizeKind
from tests.ops.line import hardware_data

OWN = {"name": "mine", "source": "data sheet", "like": "tflite_int8"}


def like(**differences: Any) -> dict[str, Any]:
    return compose.whole_hardware(OWN | differences)


def test_without_differences_it_is_the_other_file() -> None:
    base, found = load_hardware(hardware_data("tflite_int8")), load_hardware(like())
    assert found.source == f"data sheet; the rest as tflite_int8: {base.source}"
    own = dict.fromkeys(("name", "source", "device"))
    assert found.name == "mine" and {**vars(found), **own} == {**vars(base), **own}


def test_each_part_is_merged_by_its_rule() -> None:
    base = hardware_data("tflite_int8")
    signature = [{"in": ["int8"], "out": ["int8"]}]
    found = like(
        ops={"Mul": signature, "LeakyRelu": None, "Gemm": None},
        functions={"Gelu": "float"},
        weights={"bits": 4},
        requantize={"rounding": "single"},
        accumulator={"overflow": "wrap"},
        cost={"macs_per_cycle": {"int8": 99}, "clock_hz": 5},
        skip={"first": True},
        pad={"max": 3},
        add_inputs="none",
        description="own",
    )
    assert "like" not in found
    assert found["ops"]["Mul"] == signature and found["ops"]["Conv"] == base["ops"]["Conv"]
    assert set(base["ops"]) - set(found["ops"]) == {"LeakyRelu", "Gemm"}
    assert "LeakyRelu" not in found["functions"], "what is said of an op goes with it"
    assert found["functions"] == {k: v for k, v in base["functions"].items() if k != "LeakyRelu"} | {"Gelu": "float"}
    assert [c for c in base["fuse"] if c[0] != "Gemm"] == found["fuse"] != base["fuse"]
    assert found["weights"] == base["weights"] | {"bits": 4}
    assert found["requantize"] == base["requantize"] | {"rounding": "single"}
    assert found["accumulator"] == {"dtype": "int32", "overflow": "wrap"}
    assert found["cost"]["macs_per_cycle"] == base["cost"]["macs_per_cycle"] | {"int8": 99}
    assert found["cost"]["clock_hz"] == 5 and found["cost"]["bytes_per_cycle"] == base["cost"]["bytes_per_cycle"]
    assert found["add_inputs"] == "none" and found["description"] == "own"
    spec = load_hardware(found)
    assert spec.requantize.rounding is FixedRounding.SINGLE and spec.accumulator.overflow is Overflow.WRAP
    assert spec.skip.first and spec.pad.max == 3 and spec.weights.bits == 4


def test_another_kind_and_a_bare_value_bring_their_own_defaults() -> None:
    spec = load_hardware(like(requantize={"kind": "float_multiplier"}, accumulator="int64"))
    assert spec.requantize.kind is RequantizeKind.FLOAT_MULTIPLIER and spec.requantize.rounding.value == "half_even"
    assert spec.accumulator.dtype is DType.INT64 and spec.accumulator.overflow is Overflow.WRAP
    files = {"short": {"name": "short", "source": "s", "accumulator": "int16", "functions": None}}
    merged = taken_over({"name": "m", "source": "t", "like": "short", "accumulator": {"overflow": "never"}}, files.get)  # type: ignore[arg-type]
    assert merged["accumulator"] == {"dtype": "int16", "overflow": "never"}


def test_a_chain_of_three_and_a_null_for_the_default(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(OWN | {"name": "a", "weights": {"bits": 5}, "loads": ["c"]}))
    (tmp_path / "b.yaml").write_text(yaml.safe_dump({"name": "b", "source": "b", "like": "a", "loads": None}))
    found = compose.read_hardware(tmp_path / "b.yaml")
    spec = load_hardware(found)
    assert spec.weights.bits == 5 and spec.loads == () and spec.source.startswith("b; the rest as a: data sheet; the")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"like": "tflite"}, "mine: like is 'tflite' (did you mean 'tflite_int8'"),
        ({"like": ["vta"]}, "mine: like is ['vta']; legal is the name of one hardware file"),
        ({"like": "../vta"}, "mine: like is '../vta'"),
        ({"source": " "}, "mine: source is missing; a file that is like tflite_int8 needs the source"),
        ({"name": None}, "name is missing; a file that is like tflite_int8 needs its own name"),
        ({"ops": {"Cow": None}}, "mine: ops.Cow is null, but tflite_int8 has no such entry"),
        ({"functions": {"Conv": None}}, "mine: functions.Conv is null"),
    ],
)
def test_refusals(change: dict[str, Any], said: str) -> None:
    with pytest.raises(HardwareError) as error:
        like(**change)
    assert said in str(error.value), str(error.value)


def test_circles_are_refused_with_the_way(tmp_path: Path) -> None:
    for name, other in (("a", "b"), ("b", "c"), ("c", "b"), ("d", "d")):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump({"name": name, "source": "s", "like": other}))
    with pytest.raises(HardwareError, match="like leads back to itself: a -> b -> c -> b"):
        compose.read_hardware(tmp_path / "a.yaml")
    with pytest.raises(HardwareError, match="like leads back to itself: d -> d"):
        compose.read_hardware(tmp_path / "d.yaml")


def test_like_is_no_field_of_a_configuration() -> None:
    with pytest.raises(HardwareError, match="like is read from hardware files alone"):
        load_hardware(hardware_data("vta") | {"like": "ort_cpu"})


def test_an_error_names_the_file_and_the_line(tmp_path: Path) -> None:
    text = "name: mine\nsource: s\nlike: parent\nops:\n  Mul: [{in: [int8], out: [int8], when: {group: 1}}]\n"
    mine = tmp_path / "mine.yaml"
    mine.write_text(text)
    parent = "name: parent\nsource: s\nlike: tflite_int8\nweights:\n  narrow: true\n  bits: 9\n"
    (tmp_path / "parent.yaml").write_text(parent)
    content = compose.read_hardware(mine)
    with pytest.raises(HardwareError) as error:
        load_located(content, mine)
    assert str(error.value).startswith("hardware: mine: weights.bits is 9, but no op multiplies by weights of more")
    assert str(error.value).endswith(f"({tmp_path / 'parent.yaml'}, line 6)")
    with pytest.raises(HardwareError) as error:
        load_located(content, mine, given=["hardware.weights"])
    assert "line" not in str(error.value), "what the command line gives stands in no file"
    (tmp_path / "parent.yaml").write_text(parent.replace("9", "8"))
    with pytest.raises(HardwareError, match=r"ops.Mul.when.group does not apply to Mul; .*mine.yaml, line 5\)$"):
        load_located(compose.read_hardware(mine), mine)
    shipped = compose.hardware_file("tflite_int8")
    lines = shipped.read_text().splitlines() if shipped else []
    place = place_of("cost.macs_per_cycle.int4", mine)
    assert (
        place is not None and place.startswith(str(shipped)) and lines[int(place.rsplit(" ", 1)[1]) - 1][:5] == "cost:"
    )
    assert place_of("nonsense", mine) is None


def test_hydra_finds_every_field_of_a_file_that_is_like_another(tmp_path: Path) -> None:
    (tmp_path / "hardware").mkdir()
    (tmp_path / "hardware" / "mine.yaml").write_text(yaml.safe_dump(OWN | {"weights": {"bits": 5}}))
    found = FileConfigSource("own", str(tmp_path)).load_config("hardware/mine").config
    assert OmegaConf.is_dict(found) and OmegaConf.select(found, "weights.narrow") is True
    assert OmegaConf.to_container(found) == compose.read_hardware(tmp_path / "hardware" / "mine.yaml")
