"""What bits and rounding of integer weights cost a decoder: the KL divergence of the next token.

The embedded decoder (`model=tiny_decoder`) has integer weights in blocks, as MatMulNBits multiplies them; its embedding
stays in float. `nearest` rounds to the nearest with the whole range of a block, `scales` searches the scale of each
block (the program's default), and `gptq` rounds by the inputs of the layers besides (`search.weights=recovered`). A
quarter of the embedded passages calibrates, and the others are counted. Intervals (95 %) are over passages.

    python benchmarks/decoder_bits.py
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import onnx_ir as ir  # noqa: E402
import yaml  # noqa: E402
from machine import processor  # noqa: E402

from quantpipe import assets  # noqa: E402
from quantpipe.annotate.conditions import AnnotateOptions  # noqa: E402
from quantpipe.annotate.topology import analyze  # noqa: E402
from quantpipe.data.sources.ascii_text import ascii_ids  # noqa: E402
from quantpipe.graph.execute import Session  # noqa: E402
from quantpipe.hardware.load import load_hardware  # noqa: E402
from quantpipe.intake.load import load_graph  # noqa: E402
from quantpipe.metrics.outputs import kl_divergences  # noqa: E402
from quantpipe.plan import Planner  # noqa: E402
from quantpipe.plan.weight_blocks import as_weight, integers, real_weight, rows_of  # noqa: E402
from quantpipe.recover import LayerOptions, float_moments  # noqa: E402
from quantpipe.recover.reconstruct.prepare import layer_of  # noqa: E402
from quantpipe.types import Batch, BlockGrid, Schema, Symmetry, TensorSchema  # noqa: E402
from quantpipe.types.schema import Granularity  # noqa: E402
from quantpipe.version import __version__  # noqa: E402

Array = np.ndarray[Any, Any]
HEAD = "table.weight/turned"
METHODS = ("nearest", "scales", "gptq")
SCHEMA = Schema("symmetric", TensorSchema(), TensorSchema(Symmetry.SYMMETRIC, Granularity.PER_CHANNEL, narrow=False))
CASES = [(method, 4, head) for method in METHODS for head in (4, 8)]
"""Cases that are compared: (method, bits of the layers, bits of the last layer)."""
SIZE = 32


@dataclass(frozen=True)
class Passages:
    """Samples of the decoder: `ids` are int64 `[N, T]`."""

    ids: Array
    digest: bytes = b""
    labels: None = None

    def __len__(self) -> int:
        return len(self.ids)

    def feeds(self) -> dict[str, Array]:
        """Return the inputs of a prefill."""
        places = np.tile(np.arange(self.ids.shape[1]), (len(self.ids), 1))
        names = [f"past_key_values.{layer}.{kind}" for layer in (0, 1) for kind in ("key", "value")]
        return {"input_ids": self.ids, "position_ids": places} | {
            name: np.zeros((len(self.ids), 6, 0, 16), np.float32) for name in names
        }

    def batches(self, size: int) -> Any:
        """Yield the samples, some at a time."""
        for first in range(0, len(self.ids), size):
            part = Passages(self.ids[first : first + size])
            yield Batch(part.feeds(), None, np.arange(first, first + len(part)))


@dataclass(eq=False)
class Decoder:
    """The decoder, its passages, and the integer weights of its layers."""

    @cached_property
    def passages(self) -> tuple[Passages, Passages]:
        """Return those for calibration, and the others."""
        lines = (Path(assets.__file__).parent / "tiny_decoder.txt").read_text().splitlines()
        ids = np.stack([ascii_ids(line) for line in lines])
        return Passages(ids[::4]), Passages(ids[np.arange(len(ids)) % 4 != 0])

    def __post_init__(self) -> None:
        path, feeds = Path(assets.__file__).parent / "tiny_decoder.onnx", Passages(self.passages[0].ids[:2]).feeds()
        self.graph = load_graph(path, lambda raw: feeds, isolate=False)
        spec = load_hardware(yaml.safe_load((ROOT / "conf" / "hardware" / "ort_matmul_nbits.yaml").read_text()))
        block = replace(spec.weights.block, size=SIZE) if spec.weights.block is not None else None
        self.spec = replace(spec, weights=replace(spec.weights, block=block, bits=8))
        self.topology = analyze(self.graph, self.spec, SCHEMA, AnnotateOptions())
        self.planner = Planner(self.graph, self.topology, self.spec, SCHEMA)
        self.moments = float_moments(self.graph, self.topology, self.passages[0], 16384, memory_mb=512, seed=0)

    def weight(self, tensor: str, method: str, bits: int) -> Array:
        """Return the real values of a weight whose integers have so many bits."""
        site, float_weight = self.topology.weight_of[tensor], self.graph.constant(tensor)
        if bits == 32:
            return float_weight
        if method == "nearest":
            return _nearest(float_weight, site.channel_axis, bits, SIZE)
        widest = np.abs(rows_of(float_weight, site.channel_axis)).max(axis=(1, 2))
        found = self.planner.weight(tensor, bits, widest)
        if method == "gptq":
            kernel = next(k for k in self.topology.weighted if k.weight == tensor)
            layer = layer_of(self.graph, self.topology, kernel)
            assert layer is not None
            options = LayerOptions(propagate=False)
            found, _ = layer.solved(found, self.moments[tensor], np.zeros(layer.channels), SCHEMA, options=options)
        return real_weight(found, site.channel_axis)

    def logits(self, method: str, bits: int, head: int) -> Array:
        """Return the scores for the passages that are counted."""
        model = ir.from_proto(ir.to_proto(self.graph.model))
        for site in self.topology.weights:
            own = self.weight(site.tensor, method, head if site.tensor == HEAD else bits)
            model.graph.initializers[site.tensor].const_value = ir.tensor(own, name=site.tensor)
        session = Session(model)
        return np.concatenate([session.run(b.inputs, ["logits"])["logits"] for b in self.passages[1].batches(28)])

    def bytes_of(self, bits: int, head: int) -> int:
        """Return the bytes of the weights with their scales."""
        total = 0.0
        for site in self.topology.weights:
            width, shape = head if site.tensor == HEAD else bits, self.graph.shapes[site.tensor]
            blocks = -(-shape[1 - site.channel_axis] // SIZE) * shape[site.channel_axis]
            total += np.prod(shape) * width / 8 + (4 * blocks if width < 32 else 0)
        return round(total)


def _nearest(weight: Array, axis: int, bits: int, size: int) -> Array:
    rows = rows_of(weight, axis)
    starts, most = np.arange(0, rows.shape[1], size), (1 << (bits - 1)) - 1
    scale = (np.maximum.reduceat(np.abs(rows).max(axis=2), starts, axis=1) / most).astype(np.float32)
    none = np.zeros(scale.shape, np.int64)
    grid = BlockGrid(size, none + 1, none, 1, -most - 1, most)
    codes = integers(rows, scale, grid) * np.repeat(scale, size, axis=1)[:, : rows.shape[1], None]
    return as_weight(codes.astype(np.float32), weight.shape, axis)


def interval(values: Array) -> str:
    """Return a mean with its 95 % interval."""
    half = 1.96 * values.std(ddof=1) / np.sqrt(len(values))
    return f"{values.mean():.4f} ± {half:.4f}"


def main() -> None:
    """Print the page."""
    decoder = Decoder()
    real, ids = decoder.logits("nearest", 32, 32), decoder.passages[1].ids
    shifted = real - real.max(-1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    loss = -np.take_along_axis(logs[:, :-1], ids[:, 1:, None], -1).mean()
    print("# Bits and rounding of a decoder's weights\n")
    print(f"{processor()}. quantpipe {__version__}, printed by `python benchmarks/decoder_bits.py`.\n")
    print((__doc__ or "").split("\n\n")[1].replace("\n", " ") + "\n")
    print(f"{len(ids)} passages of {ids.shape[1]} characters. Float: {np.exp(loss):.3f} perplexity, "
          f"{decoder.bytes_of(32, 32):,} bytes. 32 bits are float.\n")  # fmt: skip
    print("| method | bits | last layer | block | bytes | KL, nats | greedy token as in float |")
    print("|---|---|---|---|---|---|---|")
    for method, bits, head in CASES:
        own = decoder.logits(method, bits, head)
        same = (own.argmax(-1) == real.argmax(-1)).mean()
        lost, stored = interval(kl_divergences(real, own)), decoder.bytes_of(bits, head)
        print(f"| {method} | {bits} | {head} | {SIZE} | {stored:,} | {lost} | {100 * same:.1f} % |", flush=True)


if __name__ == "__main__":
    main()
