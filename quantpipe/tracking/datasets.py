"""The samples of a run as MLflow's datasets: a name, a digest, how many, and what they are used for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from quantpipe.passwords import conceal

_MAX_DIGEST = 36


def inputs_of(records: Mapping[str, Mapping[str, Any]], name: str) -> list[Any]:
    """Return MLflow's inputs for the splits of a run.

    `records` maps a split's role (`calibrate`, `search`, …) to its entry in data.json: `samples`, `digest`, and the
    source. `name` is the option of the group `dataset`.
    """
    from mlflow.entities import Dataset, DatasetInput, InputTag

    found = []
    for role, record in records.items():
        source = {key: conceal(str(record[key])) for key in ("source",) if record.get(key)}
        dataset = Dataset(
            name=f"{name} {role}",
            digest=digest_of(record),
            source_type="quantpipe",
            source=json.dumps(source),
            profile=json.dumps({"num_rows": record["samples"], "samples": record["samples"]}),
        )
        found.append(DatasetInput(dataset, [InputTag("mlflow.data.context", role)]))
    return found


def digest_of(record: Mapping[str, Any]) -> str:
    """Return a split's digest at the length that MLflow takes."""
    return str(record["digest"]).rpartition(":")[2][:_MAX_DIGEST]
