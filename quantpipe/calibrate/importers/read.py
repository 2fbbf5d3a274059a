"""Detect the format of a profile file by its content, and read its entries."""

from __future__ import annotations

from pathlib import Path

from quantpipe.artifacts import read_npz, read_text
from quantpipe.calibrate.importers.entries import Entries
from quantpipe.calibrate.importers.older_tables import is_glow, is_tensorrt, read_glow, read_tensorrt
from quantpipe.calibrate.importers.ort import is_text_table, read_flatbuffers, read_json_table, read_text_table
from quantpipe.calibrate.profile import profile_from_arrays
from quantpipe.calibrate.yaml_profile import profile_from_yaml
from quantpipe.errors import ArtifactError
from quantpipe.types import Profile

LEGAL = (
    "legal are profile.yaml and stats.npz of a run, Glow's three-document YAML profile, onnxruntime's "
    "calibration.json, calibration.cache and calibration.flatbuffers, and TensorRT's calibration cache"
)


def read_entries(path: Path) -> Entries:
    """Return the entries of a file.

    Raises ArtifactError when it cannot be read, is damaged, or is of no known format.
    """
    where = str(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ArtifactError(f"cannot be read ({error.strerror or error})", stage="profile", where=where) from error
    if data[:4] == b"PK\x03\x04":
        return _own(profile_from_arrays(read_npz(path), where))
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return read_flatbuffers(data, where)
    if "\0" in text:
        return read_flatbuffers(data, where)
    if "QuantpipeProfileVersion" in text:
        return _own(profile_from_yaml(read_text(path), where))
    if is_tensorrt(text):
        return read_tensorrt(text, where)
    if is_glow(text):
        return read_glow(text, where)
    if text.lstrip()[:1] == "{":
        return read_json_table(text, where)
    if is_text_table(text):
        return read_text_table(text, where)
    raise ArtifactError(f"is no profile: {LEGAL}", stage="profile", where=where)


def _own(profile: Profile) -> Entries:
    return Entries("quantpipe", profile.tensors, profile=profile)
