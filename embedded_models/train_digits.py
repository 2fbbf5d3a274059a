"""Make the embedded default model: `python -m embedded_models.train_digits digits.onnx` (needs the extra `train`).

Takes scikit-learn's digits (the training part of `quantpipe.data.sources.digits`), gives an ONNX file: opset 17, input
`image` `[N, 1, 8, 8]` float32 = pixel / 16, output `logits` `[N, 10]`. A small MobileNet: stem, depthwise-separable
blocks, residual adds, BatchNormalization left in the file so that the pipeline has something to fold.

The network is one table, LAYERS, which both the torch forward pass and the ONNX writer walk. After training, `spread`
rescales channels without changing the function. Their ranges then differ as in real mobile networks (Nagel et al.
2019, "Data-Free Quantization", section 3). Without it a net this small survives any quantization.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from quantpipe.data.sources.digits import digits_arrays, digits_parts

log = logging.getLogger(__name__)

SEED = 0
EPOCHS = 60
BATCH = 32
LEARNING_RATE = 0.02
WEIGHT_DECAY = 1e-4
SPREAD = 3  # channel factors run from 2^-SPREAD to 2^SPREAD
SPREAD_SEED = 2  # chosen by hand: 8 bits lose nothing with per-channel scales, some points with power-of-two ones
OPSET = 17


@dataclass(frozen=True)
class ConvBlock:
    """Conv and BatchNormalization, then an optional addition of an earlier layer's output, then `act`."""

    name: str
    cin: int
    cout: int
    kernel: int = 3
    stride: int = 1
    groups: int = 1
    act: str = "Relu"  # Relu | Relu6
    add: str | None = None


LAYERS = (
    ConvBlock("stem", 1, 16, act="Relu6"),
    ConvBlock("block1.depthwise", 16, 16, groups=16, act="Relu6"),
    ConvBlock("block1.pointwise", 16, 32, kernel=1, act="Relu6"),
    ConvBlock("block2.depthwise", 32, 32, groups=32),
    ConvBlock("block2.pointwise", 32, 32, kernel=1, add="block1.pointwise"),
    ConvBlock("block3.depthwise", 32, 32, stride=2, groups=32),
    ConvBlock("block3.pointwise", 32, 64, kernel=1, act="Relu6"),
    ConvBlock("block4.depthwise", 64, 64, groups=64),
    ConvBlock("block4.pointwise", 64, 64, kernel=1, add="block3.pointwise"),
)

# Relu(a x) = a Relu(x) for a > 0: a depthwise layer's output may grow where the pointwise layer behind it shrinks.
SPREAD_PAIRS = tuple((f"block{i}.depthwise", f"block{i}.pointwise") for i in (2, 4))


def build() -> Any:
    """Return the untrained parameters, as a ModuleDict of `<layer>_conv`, `<layer>_bn` and `classifier`."""
    from torch import nn

    modules: dict[str, Any] = {}
    for layer in LAYERS:
        key = layer.name.replace(".", "_")
        modules[f"{key}_conv"] = nn.Conv2d(
            layer.cin, layer.cout, layer.kernel, layer.stride, layer.kernel // 2, groups=layer.groups, bias=False
        )
        modules[f"{key}_bn"] = nn.BatchNorm2d(layer.cout)
    modules["classifier"] = nn.Linear(LAYERS[-1].cout, 10)
    return nn.ModuleDict(modules)


def forward(net: Any, x: Any) -> Any:
    """Return logits `[N, 10]` of images `[N, 1, 8, 8]`."""
    from torch.nn import functional

    seen: dict[str, Any] = {}
    for layer in LAYERS:
        key = layer.name.replace(".", "_")
        x = net[f"{key}_bn"](net[f"{key}_conv"](x))
        if layer.add is not None:
            x = x + seen[layer.add]
        x = functional.relu6(x) if layer.act == "Relu6" else functional.relu(x)
        seen[layer.name] = x
    return net["classifier"](x.mean(dim=(2, 3)))


def shifted(x: Any, rng: np.random.Generator) -> Any:
    """Return the batch with each image moved by -1, 0 or 1 pixel in both directions, zeros moving in."""
    import torch
    from torch.nn import functional

    padded = functional.pad(x, (1, 1, 1, 1))
    moves = rng.integers(0, 3, size=(len(x), 2))
    return torch.stack([p[:, i : i + 8, j : j + 8] for p, (i, j) in zip(padded, moves, strict=True)])


def train(images: NDArray[np.float32], labels: NDArray[np.int64]) -> Any:
    """Return the trained net in evaluation mode.

    `images` is `[N, 1, 8, 8]`, already divided by 16.
    """
    return fitted(build, forward, images, labels, fit=TrainingRecipe(EPOCHS, LEARNING_RATE, WEIGHT_DECAY))


@dataclass(frozen=True)
class TrainingRecipe:
    """How long and how fast a net learns."""

    epochs: int
    rate: float
    decay: float


def fitted(
    make: Callable[[], Any],
    logits_of: Callable[[Any, Any], Any],
    images: NDArray[np.float32],
    labels: NDArray[np.int64],
    *,
    fit: TrainingRecipe,
) -> Any:
    """Return the net that `make` gives, trained on shifted images, in evaluation mode.

    `logits_of`: from the net and a batch of images to its logits. It is the same net again on every machine.
    """
    import torch
    from torch.nn import functional

    torch.manual_seed(SEED)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)  # the order of sums is part of the result
    rng = np.random.default_rng(SEED)
    net = make()
    x_all, y_all = torch.from_numpy(images), torch.from_numpy(labels)
    steps = fit.epochs * (len(images) // BATCH)
    optimizer = torch.optim.AdamW(net.parameters(), lr=fit.rate, weight_decay=fit.decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, fit.rate, total_steps=steps)
    for epoch in range(fit.epochs):
        order = torch.from_numpy(rng.permutation(len(images)))
        for start in range(0, len(order) - BATCH + 1, BATCH):
            chosen = order[start : start + BATCH]
            loss = functional.cross_entropy(
                logits_of(net, shifted(x_all[chosen], rng)), y_all[chosen], label_smoothing=0.05
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        log.info("epoch %d: loss %.4f", epoch + 1, loss.item())
    return net.eval()


def training_images() -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return all images `[N, 1, 8, 8]` divided by 16, their labels, and which are for training and for the test."""
    pixels, labels = digits_arrays()
    images = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)).astype(np.float32) / np.float32(16)
    return images, labels, *digits_parts(len(images))


def spread(net: Any, rng: np.random.Generator) -> None:
    """Scale channels up in one layer and down in the next, by powers of two so that the function stays bit-exact."""
    import torch

    with torch.no_grad():
        for first, second in SPREAD_PAIRS:
            bn, conv = net[f"{first}_bn".replace(".", "_")], net[f"{second}_conv".replace(".", "_")]
            factors = np.exp2(np.round(rng.uniform(-SPREAD, SPREAD, bn.num_features))).astype(np.float32)
            bn.weight *= torch.from_numpy(factors)
            bn.bias *= torch.from_numpy(factors)
            conv.weight /= torch.from_numpy(factors)[None, :, None, None]


def to_onnx(net: Any) -> onnx.ModelProto:
    """Return the net as an ONNX model with readable names and BatchNormalization nodes kept."""
    weights: dict[str, NDArray[Any]] = {"relu6.min": np.array(0, np.float32), "relu6.max": np.array(6, np.float32)}
    nodes: list[onnx.NodeProto] = []

    def array(tensor: Any) -> NDArray[np.float32]:
        return np.ascontiguousarray(tensor.detach().numpy().astype(np.float32))

    def node(op: str, name: str, inputs: list[str], output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op, inputs, [output], name=name, **attributes))
        return output

    x = "image"
    for layer in LAYERS:
        key, name = layer.name.replace(".", "_"), layer.name
        conv, bn = net[f"{key}_conv"], net[f"{key}_bn"]
        weights[f"{name}.weight"] = array(conv.weight)
        x = node(
            "Conv",
            f"{name}.conv",
            [x, f"{name}.weight"],
            f"{name}.conv_out",
            kernel_shape=[layer.kernel] * 2,
            strides=[layer.stride] * 2,
            pads=[layer.kernel // 2] * 4,
            group=layer.groups,
        )
        parts = {"gamma": bn.weight, "beta": bn.bias, "mean": bn.running_mean, "var": bn.running_var}
        weights.update({f"{name}.bn.{part}": array(value) for part, value in parts.items()})
        x = node(
            "BatchNormalization",
            f"{name}.bn",
            [x, *(f"{name}.bn.{p}" for p in parts)],
            f"{name}.bn_out",
            epsilon=bn.eps,
        )
        if layer.add is not None:
            x = node("Add", f"{name}.add", [x, f"{layer.add}.out"], f"{name}.sum")
        if layer.act == "Relu6":
            x = node("Clip", f"{name}.relu6", [x, "relu6.min", "relu6.max"], f"{name}.out")
        else:
            x = node("Relu", f"{name}.relu", [x], f"{name}.out")
    x = node("GlobalAveragePool", "pool", [x], "pool.out")
    x = node("Flatten", "flatten", [x], "flatten.out", axis=1)
    weights["classifier.weight"] = array(net["classifier"].weight)
    weights["classifier.bias"] = array(net["classifier"].bias)
    node("Gemm", "classifier", [x, "classifier.weight", "classifier.bias"], "logits", transB=1)

    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 1, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 10])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(
        graph,
        producer_name="quantpipe.assets.train_digits",  # as in the file that ships
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=8,
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def main() -> None:
    """Train the digits model and write it to the file that the command line names."""
    parser = argparse.ArgumentParser(description="Train the embedded digits model and write it as ONNX.")
    parser.add_argument("output", type=Path, help="file to write")
    output: Path = parser.parse_args().output
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    import torch

    images, labels, part, test = training_images()
    net = train(images[part], labels[part])
    spread(net, np.random.default_rng(SPREAD_SEED))
    with torch.no_grad():
        right = int((forward(net, torch.from_numpy(images[test])).argmax(1).numpy() == labels[test]).sum())
    log.info("test: %d of %d right (%.2f %%)", right, len(test), 100 * right / len(test))
    output.write_bytes(to_onnx(net).SerializeToString(deterministic=True))
    log.info("wrote %s (%d bytes)", output, output.stat().st_size)


if __name__ == "__main__":
    main()
