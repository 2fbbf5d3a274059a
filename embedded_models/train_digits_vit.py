"""Make the embedded transformers: `python -m embedded_models.train_digits_vit FOLDER` (needs the extra `train`).

Both are trained on the training part of scikit-learn's digits and exported by torch itself, at opset 17, so that the
files hold what real exports hold: LayerNormalization, Gelu as Div, Erf, Add and Mul, attention as MatMul, Softmax and
Transpose, and projections as MatMul and Add.

`digits_vit.onnx` sees 16 patches of 2x2 pixels, input `image` `[N, 1, 8, 8]` = pixel / 16; the scores of each head get
a learned bias by the places of query and key. `digits_vit_masked.onnx` sees a digit as the sequence of its columns from
the first with ink to the last (see `digits_columns`). Its inputs are `columns` `[N, T, 8]` and `attention_mask`
`[N, T]` int64, T up to 8, 1 where there is a column and 0 where there is padding. Padding is kept out of the attention
by adding float32's lowest number to its scores, as the encoders of Hugging Face do. Output of both: `logits` `[N, 10]`.
"""

from __future__ import annotations

import argparse
import io
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from embedded_models.train_digits import TrainingRecipe, fitted, training_images
from quantpipe.data.sources.digits_columns import COLUMNS, columns_of

log = logging.getLogger(__name__)

EPOCHS = 120
LEARNING_RATE = 3e-3
WEIGHT_DECAY = 0.05
OPSET = 17
PATCH = 2
SIDE = 8  # of an image, in pixels


@dataclass(frozen=True)
class Size:
    """A transformer encoder: `tokens` of `features` numbers each; `masked`: some of them may be padding."""

    tokens: int
    features: int
    masked: bool
    width: int = 32
    heads: int = 4
    blocks: int = 3
    classes: int = 10


SIZES = {
    "digits_vit": Size(tokens=(SIDE // PATCH) ** 2, features=PATCH**2, masked=False),
    "digits_vit_masked": Size(tokens=COLUMNS, features=SIDE, masked=True),
}


def build(size: Size) -> Any:
    """Return the untrained net, a torch module."""
    import torch
    from torch import nn

    class Attention(nn.Module):  # type: ignore[misc]
        """Multi-head self-attention; a bias by the places of query and key, or the mask, is added to the scores."""

        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value, self.out = (nn.Linear(size.width, size.width) for _ in range(4))
            self.bias = None if size.masked else nn.Parameter(torch.zeros(size.heads, size.tokens, size.tokens))

        def forward(self, x: Any, mask: Any) -> Any:
            def heads(y: Any) -> Any:
                return y.view(y.shape[0], y.shape[1], size.heads, size.width // size.heads).transpose(1, 2)

            query, key, value = heads(self.query(x)), heads(self.key(x)), heads(self.value(x))
            scores = query @ key.transpose(2, 3) / (size.width // size.heads) ** 0.5
            scores = scores + (mask if self.bias is None else self.bias)
            mixed = (scores.softmax(3) @ value).transpose(1, 2)
            return self.out(mixed.reshape(mixed.shape[0], mixed.shape[1], size.width))

    class Block(nn.Module):  # type: ignore[misc]
        """Attention and a perceptron, each after its LayerNormalization and added to what came in."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.LayerNorm(size.width), nn.LayerNorm(size.width)
            self.attention = Attention()
            self.mlp = nn.Sequential(
                nn.Linear(size.width, 4 * size.width), nn.GELU(), nn.Linear(4 * size.width, size.width)
            )

        def forward(self, x: Any, mask: Any) -> Any:
            x = x + self.attention(self.first(x), mask)
            return x + self.mlp(self.second(x))

    class Encoder(nn.Module):  # type: ignore[misc]
        """Tokens, blocks, a last LayerNormalization, the mean over the tokens that are there, and a dense layer."""

        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Linear(size.features, size.width)
            self.places = nn.Parameter(0.02 * torch.randn(size.tokens, size.width))
            self.blocks = nn.ModuleList(Block() for _ in range(size.blocks))
            self.norm, self.classifier = nn.LayerNorm(size.width), nn.Linear(size.width, size.classes)

        def forward(self, x: Any, attention_mask: Any = None) -> Any:
            if attention_mask is None:
                grid = SIDE // PATCH
                x = x.view(-1, grid, PATCH, grid, PATCH).transpose(2, 3).reshape(-1, size.tokens, size.features)
                return self.classifier(self.encoded(x, None).mean(1))
            there = attention_mask.to(x.dtype)
            absent = (1.0 - there[:, None, None, :]) * torch.finfo(torch.float32).min
            there = there.unsqueeze(2)
            encoded = self.encoded(x, absent)
            return self.classifier((encoded * there).sum(1) / there.sum(1).clamp(min=1e-9))

        def encoded(self, x: Any, mask: Any) -> Any:
            x = self.embed(x) + self.places[: x.shape[1]]
            for block in self.blocks:
                x = block(x, mask)
            return self.norm(x)

    return Encoder()


Inputs = Callable[[Any], tuple[Any, ...]]
"""From a batch of images, a torch tensor `[N, 1, 8, 8]` of values 0 to 1, to the inputs of a net."""


def inputs_of(size: Size) -> Inputs:
    """Return how a net of this size is given images."""
    import torch

    def columns(images: Any) -> tuple[Any, ...]:
        return tuple(torch.from_numpy(array) for array in columns_of(images[:, 0].numpy()))

    return columns if size.masked else lambda images: (images,)


def train(size: Size, images: NDArray[np.float32], labels: NDArray[np.int64]) -> Any:
    """Return the trained net in evaluation mode.

    `images` is `[N, 1, 8, 8]`, already divided by 16.
    """
    inputs = inputs_of(size)
    fit = TrainingRecipe(EPOCHS, LEARNING_RATE, WEIGHT_DECAY)
    return fitted(lambda: build(size), lambda net, batch: net(*inputs(batch)), images, labels, fit=fit)


def to_onnx(net: Any, size: Size) -> onnx.ModelProto:
    """Return the net as torch's exporter by tracing writes it."""
    import torch

    names = ["columns", "attention_mask"] if size.masked else ["image"]
    axes = {0: "N", 1: "T"} if size.masked else {0: "N"}
    stream = io.BytesIO()
    torch.onnx.export(
        net,
        inputs_of(size)(torch.linspace(0, 1, 2 * SIDE**2).view(2, 1, SIDE, SIDE)),
        stream,
        input_names=names,
        output_names=["logits"],
        opset_version=OPSET,
        dynamo=False,
        dynamic_axes={**dict.fromkeys(names, axes), "logits": {0: "N"}},
    )
    model = onnx.load_from_string(stream.getvalue())
    onnx.checker.check_model(model, full_check=True)
    return model


def main() -> None:
    """Train the transformers and write them to the folder that the command line names."""
    parser = argparse.ArgumentParser(description="Train the embedded transformers and write them as ONNX.")
    parser.add_argument("folder", type=Path, help="where digits_vit.onnx and digits_vit_masked.onnx are written")
    folder: Path = parser.parse_args().folder
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    import torch

    images, labels, part, test = training_images()
    for name, size in SIZES.items():
        net = train(size, images[part], labels[part])
        with torch.no_grad():
            scores = net(*inputs_of(size)(torch.from_numpy(images[test])))
        right = int((scores.argmax(1).numpy() == labels[test]).sum())
        log.info("%s: %d of %d right (%.2f %%)", name, right, len(test), 100 * right / len(test))
        output = folder / f"{name}.onnx"
        output.write_bytes(to_onnx(net, size).SerializeToString(deterministic=True))
        log.info("wrote %s (%d bytes)", output, output.stat().st_size)


if __name__ == "__main__":
    main()
