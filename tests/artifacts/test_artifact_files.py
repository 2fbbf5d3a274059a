"""Artifacts carry their origin, come back unchanged, and are refused by name when foreign or damaged."""

from __future__ import annotations

import enum
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from omegaconf import OmegaConf

from quantpipe.artifacts import (
    Origin,
    digest_array,
    digest_file,
    digest_json,
    is_current,
    plain,
    read_bytes,
    read_json,
    read_npz,
    read_origin,
    read_text,
    write_bytes,
    write_json,
    write_npz,
    write_text,
)
from quantpipe.artifacts.encode import npz_bytes, side_bytes, side_file
from quantpipe.errors import ArtifactError


def origin(**changes: Any) -> Origin:
    config = {"schema": {"name": "symmetric", "bits": [8, 4]}, "seed": 0} | changes.pop("config", {})
    inputs = {"model": "sha256:" + "a" * 64, "data": "sha256:" + "b" * 64} | changes.pop("inputs", {})
    return Origin(**({"kind": "calibrate/profile", "inputs": inputs, "config": config} | changes))


class Colour(enum.StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Colour.RED, "red"),
        (np.float32(0.5), 0.5),
        (np.arange(3), [0, 1, 2]),
        (float("inf"), None),
        (np.array([1.0, np.nan]), [1.0, None]),
        ({1: (2, 3)}, {"1": [2, 3]}),
        ({"b", "a"}, ["a", "b"]),
        (Path("a/b"), "a/b"),
        (OmegaConf.create({"a": [1, {"b": None}]}), {"a": [1, {"b": None}]}),
    ],
)
def test_values_are_made_plain(value: Any, expected: Any) -> None:
    assert plain(value) == expected
    json.dumps(plain(value), allow_nan=False)


def test_what_has_no_json_value_is_refused() -> None:
    with pytest.raises(TypeError, match="cannot hold a bytes"):
        plain({"a": b"x"})


def test_digests_do_not_depend_on_order_or_memory_layout() -> None:
    assert digest_json({"a": 1, "b": 2}) == digest_json({"b": 2, "a": 1})
    matrix = np.arange(6.0).reshape(2, 3)
    assert digest_array(matrix.T) == digest_array(np.ascontiguousarray(matrix.T)) != digest_array(matrix)
    assert digest_array(np.zeros(4, "f4")) != digest_array(np.zeros(2, "f8"))
    assert digest_array(np.array(1.0)) != digest_array(np.array([1.0]))
    assert digest_array(np.zeros((0, 3)))


def test_json_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "report.json"
    write_json(path, {"a": [1, 2.5, None], "é": np.int64(3), "bad": float("nan")}, origin())
    assert read_json(path, origin()) == {"a": [1, 2.5, None], "é": 3, "bad": None}
    assert read_origin(path) == origin()
    head = json.loads(path.read_text())["origin"]
    assert head["kind"] == "calibrate/profile" and head["digest"] == origin().digest and head["config"]["seed"] == 0


@pytest.mark.parametrize("comment", ["#", "//", "<!--"])
def test_text_round_trip(tmp_path: Path, comment: str) -> None:
    path = tmp_path / "profile.yaml"
    text = f"{comment} origin.kind: not a header\nrows: [a, b]\r\nlast line without an end"
    made = origin(config={"edge": "a->b --> <script>"})
    write_text(path, text, made, comment=comment)
    assert read_text(path, made) == text
    assert read_origin(path) == made
    assert comment != "<!--" or path.read_text().split("rows")[0].count("-->") == 6


def test_text_is_still_yaml(tmp_path: Path) -> None:
    write_text(tmp_path / "profile.yaml", "rows: [1, 2]\n", origin())
    assert yaml.safe_load((tmp_path / "profile.yaml").read_text()) == {"rows": [1, 2]}


def test_encoded_arrays_are_no_view_of_a_buffer() -> None:
    """Python 3.12.1 crashes where the garbage collector finds a view of BytesIO in a cycle, as errors make them."""
    assert isinstance(npz_bytes(Path("a.npz"), {"a": np.ones(3)}, origin()), bytes)


def test_npz_round_trip(tmp_path: Path) -> None:
    arrays = {
        "file": np.arange(6, dtype=np.int64).reshape(2, 3).T,
        "conv/1:0|weird": np.array(1.5, np.float32),
        "a": np.zeros((0, 2), np.uint8),
        "a.npy": np.array(["x", "yy"]),
    }
    write_npz(tmp_path / "stats.npz", arrays, origin())
    back = read_npz(tmp_path / "stats.npz", origin())
    assert list(back) == list(arrays)
    for name, array in arrays.items():
        assert back[name].dtype == array.dtype and np.array_equal(back[name], array)
    write_npz(tmp_path / "again.npz", arrays, origin())
    assert (tmp_path / "again.npz").read_bytes() == (tmp_path / "stats.npz").read_bytes()
    with np.load(tmp_path / "stats.npz") as file:  # other programs read it with NumPy alone
        assert json.loads(str(file["__origin__"]))["kind"] == "calibrate/profile"


def test_bytes_have_a_side_file(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    write_bytes(path, b"\x00model", origin())
    assert read_bytes(path, origin()) == b"\x00model"
    assert json.loads((tmp_path / "model.onnx.origin.json").read_text())["origin"]["content"] == digest_file(path)
    assert is_current(path, origin()) and not is_current(path, origin(config={"seed": 1}))
    write_bytes(path, b"\x00other")  # as if the program had died between the model and its side file
    assert not is_current(path, origin())
    with pytest.raises(ArtifactError, match="does not fit its own digest"):
        read_bytes(path, origin())


def test_a_growing_file_has_an_origin_without_content_digest(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    side_file(path).write_bytes(side_bytes(origin(), None))
    for line in ("{}\n", "{}\n{}\n"):
        path.write_text(line)
        assert is_current(path, origin()) and read_origin(path) == origin()


def test_foreign_artifacts_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "choices.json"
    write_json(path, {"a": 1}, origin())
    here = origin(
        inputs={"model": "sha256:" + "c" * 64}, config={"schema": {"name": "asymmetric"}, "threshold": {"kind": "kl"}}
    )
    assert not is_current(path, here)
    with pytest.raises(ArtifactError) as caught:
        read_json(path, here)
    message = str(caught.value)
    assert str(path) in message and message.startswith("calibrate/profile: ")
    assert "model is sha256:aaaaaaaaaaaa… in the file, sha256:cccccccccccc… here" in message
    assert "config schema.name is 'symmetric' in the file, 'asymmetric' here" in message
    assert "config schema.bits is [8, 4] in the file, absent here" in message
    assert "config threshold.kind is absent in the file, 'kl' here" in message
    assert "seed" not in message and "data is" not in message


def test_many_and_long_differences_are_shortened(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {}, origin(config={f"k{i:02}": "x" * 500 for i in range(20)}))
    with pytest.raises(ArtifactError, match="and 12 more") as caught:
        read_json(tmp_path / "a.json", origin())
    assert len(str(caught.value)) < 1600


def test_an_empty_mapping_differs_from_none_and_from_a_filled_one() -> None:
    empty, absent, filled = (origin(config=c) for c in ({"options": {}}, {}, {"options": {"a": 1}}))
    assert empty.differences(absent) == ["config options is absent in the file, {} here"]
    assert absent.differences(empty) == ["config options is {} in the file, absent here"]
    assert len(filled.differences(empty)) == 2 and not absent.differences(absent)


def test_format_and_kind_are_part_of_the_origin(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {}, origin())
    with pytest.raises(ArtifactError, match="format is 1 in the file, 2 here; kind is 'calibrate/profile'"):
        read_json(tmp_path / "a.json", origin(format=2, kind="search/strategy"))


def test_files_from_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "strategy.json"
    path.write_text('{"version": "1.0"}')
    assert read_json(path) == {"version": "1.0"} and read_origin(path) is None
    with pytest.raises(ArtifactError, match="has no origin"):
        read_json(path, origin())
    with pytest.raises(ArtifactError, match="cannot be read \\(No such file"):
        read_json(tmp_path / "absent.json")
    assert not is_current(tmp_path / "absent.json", origin())


def _write(path: Path) -> Any:
    if path.suffix == ".npz":
        write_npz(path, {"a": np.arange(1000.0), "b": np.ones(3)}, origin())
        return read_npz
    if path.suffix == ".json":
        write_json(path, {"a": list(range(50))}, origin())
        return read_json
    write_text(path, "a: 1\n" * 50, origin())
    return read_text


@pytest.mark.parametrize("name", ["a.npz", "a.json", "a.yaml"])
@pytest.mark.parametrize("expected", [None, origin()])
def test_every_truncation_is_noticed(tmp_path: Path, name: str, expected: Origin | None) -> None:
    path = tmp_path / name
    read = _write(path)
    whole = path.read_bytes()
    for size in {1, 2, 50, 80, 200, *range(300, len(whole), 97), len(whole) - 3}:
        path.write_bytes(whole[:size])
        if name == "a.yaml" and expected is None and not whole[:size].startswith(b"# origin.format: 1\n"):
            continue  # not even one header line: it looks like a text from elsewhere
        with pytest.raises(ArtifactError):
            read(path, expected)


@pytest.mark.parametrize("name", ["a.npz", "a.json", "a.yaml"])
def test_flipped_bits_are_noticed(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    _write(path)
    whole = path.read_bytes()
    for position in range(len(whole) // 2, len(whole), 131):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        assert not is_current(path, origin()) or name == "a.npz"  # zip holds a few bytes that mean nothing


def test_a_hand_edited_file_is_accepted_without_its_content_digest(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"threshold": 1.0}, origin())
    stored = json.loads(path.read_text())
    path.write_text(json.dumps(stored | {"threshold": 2.0}))
    with pytest.raises(ArtifactError, match="delete the origin's 'content'"):
        read_json(path, origin())
    del stored["origin"]["content"]
    path.write_text(json.dumps(stored | {"threshold": 2.0}))
    assert read_json(path, origin()) == {"threshold": 2.0}
    stored["origin"]["config"]["seed"] = 5
    path.write_text(json.dumps(stored))
    with pytest.raises(ArtifactError, match="header's own digest"):
        read_json(path)


def test_reserved_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="taken"):
        write_json(tmp_path / "a.json", {"origin": 1}, origin())
    with pytest.raises(ValueError, match="taken"):
        write_npz(tmp_path / "a.npz", {"__origin__": np.zeros(1)}, origin())
    with pytest.raises(TypeError, match="Python objects"):
        write_npz(tmp_path / "a.npz", {"a": np.array([{}], dtype=object)}, origin())
