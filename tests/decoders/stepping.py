"""Decoders through the whole program on texts in pieces, and their files in steps by plain onnxruntime alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

import quantpipe
from quantpipe.data import NpzDataset
from tests.decoders import nets

Array = np.ndarray[Any, Any]
LENGTH, PIECE = 16, 4
STATE = {name.replace("past_key_values", "present"): name for name in nets.empty_cache()}
KINDS = {"tensor(int8)": np.int8, "tensor(uint8)": np.uint8, "tensor(int16)": np.int16, "tensor(float)": np.float32}


def texts(folder: Path, *, piece: int = PIECE, state: Mapping[str, str] | None = None) -> NpzDataset:
    """Return twelve texts in pieces, between which the cache is carried: it has several lengths."""
    tokens = nets.text(12, LENGTH)
    places = np.tile(np.arange(LENGTH).reshape(-1, piece), (len(tokens), 1))
    masks = np.repeat(np.ones((1, LENGTH), np.int64), len(tokens) * (LENGTH // piece), 0)[:, :piece]
    arrays = {"input_ids": tokens.reshape(-1, piece), "position_ids": places, "attention_mask": masks}
    turns = np.repeat(np.arange(len(tokens)), LENGTH // piece)
    np.savez(folder / "texts.npz", **arrays, turn=turns)
    keys = {"sequence": "turn"}
    return NpzDataset(path=str(folder / "texts.npz"), state=state or STATE, keys=keys, duplicates="allow")


def run(proto: onnx.ModelProto, hardware: Any, folder: Path, **options: Any) -> quantpipe.Result:
    """Return the result of a short run."""
    short = {"evaluate": {"latency_runs": 1, "baseline": "none"}, "effort": "quick"}
    return quantpipe.quantize(proto, texts(folder), hardware, folder=folder / "run", recover="none", **short, **options)


def stated(model: onnx.ModelProto | ir.Model) -> list[dict[str, Any]]:
    """Return the caches that a file states in its metadata."""
    proto = ir.to_proto(model) if isinstance(model, ir.Model) else model
    return json.loads({p.key: p.value for p in proto.metadata_props}.get("quantpipe.caches", "[]"))


class Plain:
    """A realized file in onnxruntime, without quantpipe: caches are passed on as they come."""

    def __init__(self, model: onnx.ModelProto, state: Mapping[str, str] = STATE) -> None:
        options = ort.SessionOptions()
        named = {p.key: p.value for p in model.metadata_props}.get("quantpipe.session_options", "{}")
        for key, value in json.loads(named).items():
            options.add_session_config_entry(key, value)
        self.session = ort.InferenceSession(model.SerializeToString(), options)
        self.types = {p.name: p.type for p in self.session.get_inputs()}
        self.state = state

    def run(self, tokens: Array, past: Mapping[str, Array] | None = None) -> tuple[Array, dict[str, Array]]:
        """Return the logits, and the cache for the next run."""
        every = nets.feeds(tokens, past if past is not None else self.empty())
        given = {name: every[name] for name in self.types}
        outputs = [o.name for o in self.session.get_outputs()]
        found = dict(zip(outputs, self.session.run(outputs, given), strict=True))
        return found["logits"], {name: found[output] for output, name in self.state.items()}

    def empty(self) -> dict[str, Array]:
        """Return the caches of no tokens, in the types of the file."""
        return {n: a.astype(KINDS[self.types[n]]) for n, a in nets.empty_cache().items()}

    def in_steps(self, tokens: Array) -> tuple[Array, dict[str, Array]]:
        """Return the logits of all tokens and the last cache, of runs over one token each."""
        past, logits = None, []
        for place in range(tokens.shape[1]):
            found, past = self.run(tokens[:, place : place + 1], past)
            logits.append(found)
        return np.concatenate(logits, axis=1), past or {}
