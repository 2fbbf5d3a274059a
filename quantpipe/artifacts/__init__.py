"""Artifacts: the files that stages leave in a run folder, each whole, each saying what it was made from.

`Origin` is the record: format version, kind, digests of the inputs, the slice of configuration that mattered. `write_*`
put a file in place atomically with its origin and the digest of its content, and a `Unit` several at once. `read_*`
reject damaged or foreign files, by name. `is_current` decides whether a stage can be skipped, and `damage` describes a
file's fault. `RunLock` keeps a second process out, and completes the writes of a killed one.
"""

from quantpipe.artifacts.digest import PlainMapping, digest_array, digest_bytes, digest_file, digest_json, plain
from quantpipe.artifacts.lock import FileLock, RunLock
from quantpipe.artifacts.origin import Origin
from quantpipe.artifacts.read import (
    damage,
    is_current,
    read_bytes,
    read_json,
    read_npz,
    read_origin,
    read_text,
)
from quantpipe.artifacts.unit import ArtifactUnit
from quantpipe.artifacts.write import write_bytes, write_json, write_npz, write_text
