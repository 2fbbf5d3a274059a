"""Make the embedded decoder: `python -m embedded_models.train_tiny_decoder FOLDER` (needs the extra `train`).

It learns the next character from Python's own documentation, which every Python contains: the topics of its language
reference (`pydoc_data.topics`) and the docstrings of its standard library. It writes `tiny_decoder.onnx`, and
`tiny_decoder.txt` with passages that training has not seen. The text is (c) the Python Software Foundation, under the
PSF licence version 2, which allows copies (`tiny_decoder.LICENSE`).

The net has what decoders have today: RMS normalization, rotary positions, a gated feed-forward part, and one table for
the first and the last layer. torch exports it, at opset 17, with names of Hugging Face's exports.

Inputs: `input_ids` and `position_ids` `[N, T]` int64, and `past_key_values.LAYER.key|value` `[N, 6, P, 16]`. Outputs:
`logits` `[N, T, 128]` and `present.LAYER.key|value` `[N, 6, P + T, 16]`. Positions go up to 255.
"""

from __future__ import annotations

import argparse
import ast
import io
import logging
import math
import re
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from quantpipe.data.sources.ascii_text import VOCABULARY, ascii_ids

log = logging.getLogger(__name__)

OPSET = 17
SEED = 0
STEPS = 1000
BATCH = 64
LENGTH = 192
LEARNING_RATE = 8e-3
WEIGHT_DECAY = 0.3
PASSAGE = 256
"""Characters of a passage in the file of text; all have as many, so any smaller power of two divides them."""
PASSAGES = 192
OVERLAP = 32
"""A passage is left out if so many of its characters, from a multiple of them on, are in the text for training."""
_SENTENCES = rf"(?:^|(?<=\. ))[A-Z].{{{PASSAGE - 1}}}"
TABLE = "table"
KINDS = ("key", "value")


@dataclass(frozen=True)
class DecoderSize:
    """A decoder: `layers` of `heads` heads of `head` numbers each, and `inner` numbers between up and down."""

    layers: int = 2
    heads: int = 6
    head: int = 16
    inner: int = 224
    places: int = 256

    @property
    def width(self) -> int:
        """Return the numbers that a token has."""
        return self.heads * self.head


SIZE = DecoderSize()


def build(size: DecoderSize = SIZE) -> Any:
    """Return the untrained net, a torch module."""
    import torch
    from torch import nn

    class Norm(nn.Module):  # type: ignore[misc]
        """RMS normalization."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(size.width))

        def forward(self, x: Any) -> Any:
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight

    class Attention(nn.Module):  # type: ignore[misc]
        """Causal attention with a cache of rotated keys, and of values."""

        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value, self.out = (
                nn.Linear(size.width, size.width, bias=False) for _ in range(4)
            )

        def forward(self, x: Any, turn: Any, future: Any, past: Any) -> Any:
            def heads(y: Any) -> Any:
                return y.view(y.shape[0], y.shape[1], size.heads, size.head).transpose(1, 2)

            def rotated(y: Any) -> Any:
                first, second = y[..., : size.head // 2], y[..., size.head // 2 :]
                return y * turn[0] + torch.cat((-second, first), -1) * turn[1]

            query, key, value = rotated(heads(self.query(x))), rotated(heads(self.key(x))), heads(self.value(x))
            key, value = torch.cat((past[0], key), 2), torch.cat((past[1], value), 2)
            scores = query @ key.transpose(2, 3) / math.sqrt(size.head)
            scores = scores.masked_fill(future, torch.finfo(torch.float32).min)
            mixed = (scores.softmax(3) @ value).transpose(1, 2)
            return self.out(mixed.reshape(mixed.shape[0], mixed.shape[1], size.width)), key, value

    class Block(nn.Module):  # type: ignore[misc]
        """Attention and a gated perceptron, each after its normalization and added to its input."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.attention = Norm(), Norm(), Attention()
            self.gate, self.up = (nn.Linear(size.width, size.inner, bias=False) for _ in range(2))
            self.down = nn.Linear(size.inner, size.width, bias=False)

        def forward(self, x: Any, turn: Any, future: Any, past: Any) -> Any:
            mixed, key, value = self.attention(self.first(x), turn, future, past)
            x = x + mixed
            y = self.second(x)
            return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y)), key, value

    class Decoder(nn.Module):  # type: ignore[misc]
        """A table of characters, blocks, a last normalization, and the scores by the same table."""

        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(VOCABULARY, size.width)
            nn.init.normal_(self.table.weight, std=0.2)
            self.blocks, self.norm = nn.ModuleList(Block() for _ in range(size.layers)), Norm()
            angles = np.outer(np.arange(size.places), 1000.0 ** (-np.arange(size.head // 2) / (size.head // 2)))
            for name, wave in (("cosine", np.cos(angles)), ("sine", np.sin(angles))):
                self.register_buffer(name, torch.from_numpy(np.tile(wave, 2).astype(np.float32)), persistent=False)

        def forward(self, input_ids: Any, position_ids: Any, *past: Any) -> Any:
            x = self.table(input_ids)
            turn = self.cosine[position_ids].unsqueeze(1), self.sine[position_ids].unsqueeze(1)
            keys = torch.arange(past[0].shape[2] + input_ids.shape[1], device=input_ids.device)
            future = keys > position_ids[:, None, :, None]
            present: list[Any] = []
            for number, block in enumerate(self.blocks):
                x, *new = block(x, turn, future, past[2 * number : 2 * number + 2])
                present += new
            return self.norm(x) @ self.table.weight.T, *present

    return Decoder()


def empty_cache(samples: int, size: DecoderSize = SIZE) -> list[Any]:
    """Return the past of no tokens, as torch tensors."""
    import torch

    return [torch.zeros(samples, size.heads, 0, size.head) for _ in range(2 * size.layers)]


def topics_of_python() -> list[str]:
    """Return the prose of Python's language reference: topics with each paragraph in one line, without code."""
    from pydoc_data.topics import topics

    return [text for _, topic in sorted(topics.items()) if (text := "\n".join(_paragraphs(topic)))]


def docstrings() -> list[str]:
    """Return the prose of the docstrings of Python's standard library, one text for each file."""
    folder, found = Path(sysconfig.get_path("stdlib")), []
    for file in sorted(folder.rglob("*.py")):
        if {"site-packages", "dist-packages", "test", "tests", "lib2to3", "idlelib"}.isdisjoint(file.parts):
            documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
            nodes = [n for n in ast.walk(ast.parse(file.read_bytes())) if isinstance(n, documented)]
            found.append("\n".join(line for node in nodes for line in _paragraphs(ast.get_docstring(node) or "")))
    return [text for text in found if text]


def _paragraphs(topic: str) -> Iterator[str]:
    plain = topic.translate(str.maketrans("‘’“”–—", "''\"\"--")).encode("ascii", "ignore").decode()
    for paragraph in plain.split("\n\n"):
        line = re.sub(r"\s+", " ", paragraph).strip()
        if len(line) > 60 and line[0].isupper() and line[-1] in ".:" and "::=" not in line and ">>>" not in line:
            yield line


def parts(texts: Sequence[str], more: Sequence[str] = ()) -> tuple[NDArray[np.int64], list[str]]:
    """Return the tokens for training, and passages from every fifth text, of `PASSAGE` characters each.

    `more`: texts for training alone.
    """
    held: list[str] = []
    kept = list(more)
    for number, text in enumerate(texts):
        (held if number % 5 == 2 else kept).append(text)
    learned = "\n".join(kept)
    known = learned.replace("\n", " ")
    found = [p for text in held for p in re.findall(_SENTENCES, text.replace("\n", " "))]
    new = [p for p in found if not any(p[begin : begin + OVERLAP] in known for begin in range(0, PASSAGE, OVERLAP))]
    return ascii_ids(learned + "\n"), new[:: max(1, len(new) // PASSAGES)][:PASSAGES]


def train(tokens: NDArray[np.int64], steps: int = STEPS, size: DecoderSize = SIZE) -> Any:
    """Return the net trained on a row of tokens, in evaluation mode."""
    import torch
    from torch.nn import functional

    torch.manual_seed(SEED)
    torch.set_num_threads(1)  # the order of sums is part of the result
    place = "cuda" if torch.cuda.is_available() else "cpu"
    rng, net, row = np.random.default_rng(SEED), build(size).to(place), torch.from_numpy(tokens).to(place)
    begin = [part.to(place) for part in empty_cache(BATCH, size)]
    optimizer = torch.optim.AdamW(net.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps, pct_start=0.1)
    places = torch.arange(LENGTH, device=place).expand(BATCH, LENGTH)
    for step in range(steps):
        starts = rng.integers(0, len(tokens) - LENGTH - 1, BATCH)
        texts = torch.stack([row[s : s + LENGTH + 1] for s in starts])
        logits = net(texts[:, :-1], places, *begin)[0]
        loss = functional.cross_entropy(logits.reshape(-1, VOCABULARY), texts[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 200 == 199:
            log.info("step %d: loss %.4f", step + 1, loss.item())
    return net.cpu().eval()


def to_onnx(net: Any, size: DecoderSize = SIZE) -> onnx.ModelProto:
    """Return the net as torch's exporter by tracing writes it, with the table stored once."""
    import torch

    caches = [f"{layer}.{kind}" for layer in range(size.layers) for kind in KINDS]
    past, present = ([f"{side}.{c}" for c in caches] for side in ("past_key_values", "present"))
    axes = {name: {0: "N", 1: "T"} for name in ("input_ids", "position_ids", "logits")}
    axes |= {name: {0: "N", 2: "P"} for name in past} | {name: {0: "N", 2: "total"} for name in present}
    ids, stream = torch.arange(8).view(2, 4), io.BytesIO()
    torch.onnx.export(
        net,
        (ids, torch.arange(3, 7).expand(2, 4), *(torch.rand(2, size.heads, 3, size.head) for _ in past)),
        stream,
        input_names=["input_ids", "position_ids", *past],
        output_names=["logits", *present],
        opset_version=OPSET,
        dynamo=False,
        dynamic_axes=axes,
    )
    model = onnx.load_from_string(stream.getvalue())
    _tie(model.graph)
    onnx.checker.check_model(model, full_check=True)
    return model


def _tie(graph: onnx.GraphProto) -> None:
    """Let the last layer read the table through a Transpose, as exporters write tied tables; name weights by layers."""
    held = {i.name: i for i in graph.initializer}
    table = next(name for name, i in held.items() if list(i.dims) == [VOCABULARY, SIZE.width])
    turned = f"{table}.turned"
    for place, node in enumerate(graph.node):
        weight = held.get(node.input[1]) if node.op_type == "MatMul" else None
        if weight is not None and list(weight.dims) == [SIZE.width, VOCABULARY]:
            node.name, node.input[1] = "/lm_head/MatMul", turned
            graph.initializer.remove(weight)
            graph.node.insert(place, helper.make_node("Transpose", [table], [turned], perm=[1, 0], name=turned))
            break
        if weight is not None:
            weight.name = node.input[1] = f"{node.name[1:].removesuffix('/MatMul').replace('/', '.')}.weight"


def loss_of(net: Any, texts: Sequence[str]) -> float:
    """Return the mean of the negative logarithm of each next character's probability."""
    import torch

    ids = torch.from_numpy(np.stack([ascii_ids(text) for text in texts]))[:, : SIZE.places]
    places = torch.arange(ids.shape[1] - 1).expand(len(ids), -1)
    with torch.no_grad():
        logits = net(ids[:, :-1], places, *empty_cache(len(ids)))[0]
    return float(torch.nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1)))


def main() -> None:
    """Train the decoder and write it, and the text that it has not seen, to the folder of the command line."""
    parser = argparse.ArgumentParser(description="Train the embedded decoder and write it as ONNX.")
    parser.add_argument("folder", type=Path, help="where tiny_decoder.onnx and tiny_decoder.txt are written")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of training")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    tokens, unseen = parts(topics_of_python(), docstrings())
    log.info("%d characters for training, %d passages kept", len(tokens), len(unseen))
    (given.folder / "tiny_decoder.txt").write_text("\n".join(unseen) + "\n", encoding="ascii")
    net = train(tokens, given.steps)
    log.info("loss on the passages: %.4f", loss_of(net, unseen))
    output = given.folder / "tiny_decoder.onnx"
    output.write_bytes(to_onnx(net).SerializeToString(deterministic=True))
    log.info("wrote %s (%d bytes)", output, output.stat().st_size)


if __name__ == "__main__":
    main()
