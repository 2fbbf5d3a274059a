"""The calibration tables of onnxruntime.quantization: the json, text and flatbuffers files that it writes.

`save_tensors_data` and `write_calibration_table` write JSON with lowest and highest per tensor; the latter also
`calibration.cache` (lines `NAME VALUE`) and `calibration.flatbuffers` with a single value, max(lowest, highest). The
histograms in JSON files of some methods count what their thresholds had cut off already; they are not read.
Source: onnxruntime/python/tools/quantization/{calibrate,quant_utils}.py.
"""

from __future__ import annotations

import json
import math
import struct
from typing import Any

from quantpipe.calibrate.importers.entries import NO_HASH, Entries, extremes
from quantpipe.errors import ArtifactError

ONE_VALUE = (
    "its values are max(lowest, highest) as onnxruntime writes them: a tensor whose lowest value is the greater one in "
    "magnitude has too small a range; calibration.json has both"
)


def read_json_table(text: str, where: str) -> Entries:
    """Return [lowest, highest] of each tensor, as the calibrator decided."""
    try:
        table: Any = json.loads(text)
        table = table["data"] if table.get("CLS") == "TensorsData" else table
        pairs = {str(name): (_number(entry["lowest"]), _number(entry["highest"])) for name, entry in table.items()}
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise ArtifactError(
            f"it is JSON, and no calibration table of onnxruntime ({type(error).__name__}: {error}); legal is an "
            "object with lowest and highest per tensor",
            stage="calibrate",
            where=where,
        ) from error
    tensors = {name: extremes(name, low, high, where) for name, (low, high) in pairs.items()}
    return Entries("onnxruntime", tensors, notes=(NO_HASH,))


def _number(value: Any) -> float:
    """Return a number, or onnxruntime's record of an array that holds one."""
    while isinstance(value, dict | list):
        value = value["data"] if isinstance(value, dict) else value[0]
    return float(value)


def is_text_table(text: str) -> bool:
    """Return whether every line of a text is a name and a number, as in onnxruntime's text tables."""
    lines = [line.rpartition(" ") for line in text.splitlines() if line.strip()]
    return bool(lines) and all(name and name[-1] != ":" and _is_number(value) for name, _, value in lines)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def read_text_table(text: str, where: str) -> Entries:
    """Return one threshold of each tensor."""
    lines = [line.rpartition(" ") for line in text.splitlines() if line.strip()]
    return _thresholds({name: float(value) for name, _, value in lines}, where)


def read_flatbuffers(data: bytes, where: str) -> Entries:
    """Return one threshold of each tensor: TrtTable { dict: [KeyValue { key: string; value: string }] }."""
    try:
        table = {}
        for entry in _tables(data, _field(data, _offset(data, 0), 0)):
            table[_string(data, _field(data, entry, 0))] = float(_string(data, _field(data, entry, 1)))
    except (struct.error, ValueError, IndexError) as error:
        raise ArtifactError(
            "it is a binary file, and neither stats.npz of a run nor calibration.flatbuffers of onnxruntime",
            stage="calibrate",
            where=where,
        ) from error
    return _thresholds(table, where)


def _thresholds(values: dict[str, float], where: str) -> Entries:
    # A negative value is the highest one of a tensor that is nowhere positive.
    for name, value in values.items():
        if not math.isfinite(value):
            extremes(name, value, value, where)
    tensors = {name: extremes(name, -abs(value), abs(value), where) for name, value in values.items()}
    return Entries("onnxruntime", tensors, unsigned=True, notes=(NO_HASH, ONE_VALUE))


# --- as much of the FlatBuffers wire format as this table uses ------------------------------------------------------


def _offset(data: bytes, at: int) -> int:
    """Return the position to which the unsigned 32-bit offset stored at `at` points."""
    found = at + int(struct.unpack_from("<I", data, at)[0])
    if found >= len(data):
        raise ValueError("an offset leads out of the file")
    return found


def _field(data: bytes, table: int, number: int) -> int:
    """Return the position of field `number` of a table."""
    virtual = table - int(struct.unpack_from("<i", data, table)[0])
    if virtual < 0 or 4 + 2 * number >= struct.unpack_from("<H", data, virtual)[0]:
        raise ValueError("a field is missing")
    inside = int(struct.unpack_from("<H", data, virtual + 4 + 2 * number)[0])
    if inside == 0:
        raise ValueError("a field is missing")
    return _offset(data, table + inside)


def _tables(data: bytes, vector: int) -> list[int]:
    (count,) = struct.unpack_from("<I", data, vector)
    if count > len(data):
        raise ValueError("a vector is longer than the file")
    return [_offset(data, vector + 4 + 4 * i) for i in range(count)]


def _string(data: bytes, at: int) -> str:
    (length,) = struct.unpack_from("<I", data, at)
    return data[at + 4 : at + 4 + length].decode()
