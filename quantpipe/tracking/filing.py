"""Send data to one open run of MLflow: parameters, metrics, tags, samples, files and the model."""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from quantpipe.artifacts.unit import TEMP_SUFFIX
from quantpipe.passwords import conceal
from quantpipe.tracking import clean
from quantpipe.tracking.address import Address
from quantpipe.tracking.logged_model import log_onnx
from quantpipe.tracking.record import NAME as RECORD
from quantpipe.tracking.record import RecordFile
from quantpipe.tracking.registry import register
from quantpipe.tracking.tracker import Metrics

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


_PARAMS_PER_CALL = 100
_METRICS_PER_CALL = 1000


@dataclass(eq=False)
class Filing:
    """Send to one open run. Every method may raise whatever MLflow raises."""

    client: Any
    run: Any
    store: Address
    record: RecordFile
    params: dict[str, str] = field(default_factory=dict)
    _datasets: dict[str, tuple[str, str]] = field(default_factory=dict)
    _model: Any = None

    @property
    def run_id(self) -> str:
        """Return the id of the run."""
        return str(self.run.info.run_id)

    def send_params(self, params: dict[str, str]) -> None:
        """Send parameters, whose names and values are clean."""
        from mlflow.entities import Param

        for chunk in _chunks((Param(key, value) for key, value in params.items()), _PARAMS_PER_CALL):
            self.client.log_batch(self.run_id, params=chunk)
        self.params |= params

    def send_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags."""
        from mlflow.entities import RunTag

        found = [RunTag(key, clean.text(value, clean.MAX_TAG)) for key, value in tags.items()]
        self.client.log_batch(self.run_id, tags=found)

    def send_datasets(self, name: str, records: Mapping[str, Mapping[str, Any]]) -> None:
        """Send which samples serve which split."""
        self._datasets = {role: (f"{name} {role}", digest_of(record)) for role, record in records.items()}
        self.client.log_inputs(self.run_id, datasets=inputs_of(records, name))

    def send_metrics(
        self, steps: Iterable[tuple[int, Metrics]], on: str | None = None, *, of_model: bool = True
    ) -> None:
        """Send metrics: of the logged model, once there is one, and of the samples of the split `on`."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        name, digest = self._datasets.get(on or "", (None, None))
        of = {"dataset_name": name, "dataset_digest": digest, "run_id": self.run_id}
        of |= {"model_id": self._model.model_id} if of_model and self._model is not None else {}
        points = (
            Metric(key, value, now, step, **of) for step, metrics in steps for key, value in clean.numbers(metrics)
        )
        for chunk in _chunks(points, _METRICS_PER_CALL):
            self.client.log_batch(self.run_id, metrics=chunk)

    def send_trials(self, trials: Iterable[tuple[int, Metrics]]) -> None:
        """Send those trials that are not in the run yet."""
        first = self.record.known.trials if self.record.known is not None else 0
        found = [(step, metrics) for step, metrics in trials if step >= first]
        self.send_metrics(found, of_model=False)
        if found:
            self.record.note(trials=max(step for step, _ in found) + 1)

    def send_folder(self, folder: Path) -> None:
        """Copy a folder, without what only keeps it in order."""
        for entry in sorted(folder.iterdir()):
            if self._is_bookkeeping(entry):
                continue
            if entry.is_dir():
                self.client.log_artifacts(self.run_id, str(entry), artifact_path=entry.name)
            else:
                self.client.log_artifact(self.run_id, str(entry))

    def _is_bookkeeping(self, entry: Path) -> bool:
        """Return whether it is a lock, a half-written file, or the store itself (in the launch folder)."""
        store = (self.store.database, self.store.artifacts)
        return entry.absolute() in store or entry.name.endswith((".lock", TEMP_SUFFIX)) or entry.name == RECORD

    def send_model(
        self,
        path: Path,
        example: Mapping[str, NDArray[Any]] | None,
        named: tuple[str | None, Sequence[str]] = (None, ()),
    ) -> None:
        """Log the ONNX model, once; metrics that come later are tied to it.

        `named`: the registered model that it becomes the next version of (None: none), and the aliases that then point
        to that version.
        """
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        if self.record.known is not None and self.record.known.model == digest:
            logged = self.client.get_run(self.run_id).outputs.model_outputs
            self._model = self.client.get_logged_model(logged[-1].model_id) if logged else None
            return
        self._model = log_onnx(self.client, self.store.uri, self.run, path, params=self.params, example=example)
        registered, aliases = named
        if self._model is not None and registered is not None:
            version = register(self.client, registered, aliases, run_id=self.run_id, model=self._model)
            self.send_tags({"quantpipe.registered": f"{registered} version {version}"})
        self.record.note(model=digest)


def _chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    rest = iter(items)
    while chunk := list(itertools.islice(rest, size)):
        yield chunk
