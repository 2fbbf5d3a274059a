"""Where a trial log comes from: every input that its scores or its order of points depend on, by name."""

from __future__ import annotations

import hashlib
import json

from quantpipe.search.objective import Objective
from quantpipe.types import ChoiceSpace


def space_digest(space: ChoiceSpace) -> str:
    """Return `sha256:…` over keys, kinds, options and edges, in order (a point is only an index into them)."""
    content = [[c.key, c.kind, list(c.options), list(c.edges)] for c in space]
    return "sha256:" + hashlib.sha256(json.dumps(content).encode()).hexdigest()


def search_origin(space: ChoiceSpace, objective: Objective, seed: int, **inputs: str) -> dict[str, str]:
    """Return the origin of a log.

    `inputs` are the digests of what else a score depends on: model, samples, hardware, schema.

    The budget is left out on purpose: a run may be continued with a larger one.
    """
    return {"space": space_digest(space), "objective": str(objective), "seed": str(seed), **inputs}
