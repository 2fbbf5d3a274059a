"""Artifacts: the files that stages leave in a run folder, each whole, each saying what it was made from.

`Origin` is the record (format version, kind, digests of the inputs, the slice of configuration that mattered);
`write_*` put a file in place atomically with its origin and the digest of its content, and a `Unit` several at once;
`read_*` refuse what is damaged or foreign, by name; `is_current` tells a stage that it can be skipped, `damage` what is
wrong with a file; `RunLock` keeps a second process out and finishes what a killed one had begun to put in place.
"""

from quantpipe.artifacts.digest import PlainMapping, digest_array, digest_bytes, digest_file, digest_json, plain
from quantpipe.artifacts.lock import FileLock, RunLock
from quantpipe.artifacts.origin import Origin
from quantpipe.artifacts.read import damage, is_current, read_bytes, read_json, read_npz, read_origin, read_text
from quantpipe.artifacts.unit import Unit
from quantpipe.artifacts.write import write_bytes, write_json, write_npz, write_origin, write_pieces, write_text

__all__ = [
    "FileLock",
    "Origin",
    "PlainMapping",
    "RunLock",
    "Unit",
    "damage",
    "digest_array",
    "digest_bytes",
    "digest_file",
    "digest_json",
    "is_current",
    "plain",
    "read_bytes",
    "read_json",
    "read_npz",
    "read_origin",
    "read_text",
    "write_bytes",
    "write_json",
    "write_npz",
    "write_origin",
    "write_pieces",
    "write_text",
]
