"""Make the embedded detector: `python -m embedded_models.train_digits_detect FILE` (needs the extra `train`).

It finds the digits of scenes (`quantpipe/data/sources/digits_detect.py`), and is trained on digits of the training
part. It has the head of current detectors without anchors, at two strides, 8 and 16 pixels. Each place gives the
distances to the four sides of a box, as distributions over multiples of the stride ("distribution focal loss"). It also
gives the chance of each class. The
decode is part of the graph, as exporters write it: Softmax and the expectation by a convolution, places and strides as
constants, Sigmoid and Concat. Input `image` `[N, 1, 64, 64]` = pixel / 255, output `detections` `[N, 14, 80]`: centre,
width and height in pixels, and ten scores, for each of 64 + 16 places.
"""

from __future__ import annotations

import argparse
import io
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from quantpipe.data.sources.digits import digits_arrays, digits_parts
from quantpipe.data.sources.digits_detect import SIDE, scenes
from quantpipe.types import Objects

log = logging.getLogger(__name__)

SEED = 0
STEPS = 2400
BATCH = 64
LEARNING_RATE = 4e-3
WEIGHT_DECAY = 1e-3
OPSET = 17
STRIDES = (8, 16)
COUNTS = tuple((SIDE // stride) ** 2 for stride in STRIDES)
"""Places of each stride."""
BINS = 8
"""Of a distance, in strides: 0 to 7."""
CLASSES = 10
LARGE = 20
"""A digit whose longer side has more pixels belongs to the greater stride."""
NEAR = 0.75
"""A place is of a digit where it lies so near its centre, in strides."""


def build() -> Any:
    """Return the untrained net, a torch module: `raw` gives what it is trained by, `forward` what is exported."""
    import torch
    from torch import nn

    def block(inner: int, outer: int, size: int = 3, stride: int = 1) -> Any:
        conv = nn.Conv2d(inner, outer, size, stride, size // 2, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(outer), nn.ReLU())

    class Residual(nn.Module):  # type: ignore[misc]
        """Two convolutions, added to the identity."""

        def __init__(self, width: int) -> None:
            super().__init__()
            self.first, self.second = block(width, width // 2, 1), block(width // 2, width)

        def forward(self, x: Any) -> Any:
            return x + self.second(self.first(x))

    class Detector(nn.Module):  # type: ignore[misc]
        """Backbone, a neck of two strides, and a head per stride."""

        def __init__(self) -> None:
            super().__init__()
            self.eighth = nn.Sequential(
                block(1, 12, 3, 2), block(12, 16, 3, 2), Residual(16), block(16, 32, 3, 2), Residual(32)
            )
            self.sixteenth = nn.Sequential(block(32, 48, 3, 2), Residual(48))
            self.lateral, self.up = block(48, 32, 1), nn.Upsample(scale_factor=2, mode="nearest")
            self.fused = block(64, 32, 1)
            widths = (32, 48)
            self.sides = nn.ModuleList(nn.Sequential(block(w, 24), nn.Conv2d(24, 4 * BINS, 1)) for w in widths)
            self.classes = nn.ModuleList(nn.Sequential(block(w, 24), nn.Conv2d(24, CLASSES, 1)) for w in widths)
            for head in self.classes:
                nn.init.constant_(head[1].bias, -4.0)
            self.expected = nn.Conv2d(BINS, 1, 1, bias=False)
            self.expected.weight.data[:] = torch.arange(BINS, dtype=torch.float32).view(1, BINS, 1, 1)
            self.expected.requires_grad_(False)
            places, strides = places_of()
            self.register_buffer("places", torch.from_numpy(places))
            self.register_buffer("strides", torch.from_numpy(strides))

        def raw(self, x: Any) -> tuple[Any, Any]:
            """Distributions `[N, 4 * BINS, A]` and class logits `[N, CLASSES, A]`."""
            eighth = self.eighth(x)
            sixteenth = self.sixteenth(eighth)
            fused = self.fused(torch.cat([eighth, self.up(self.lateral(sixteenth))], 1))
            levels = list(zip((fused, sixteenth), COUNTS, self.sides, self.classes, strict=True))
            sides = torch.cat([side(level).view(-1, 4 * BINS, count) for level, count, side, _ in levels], 2)
            return sides, torch.cat([kind(level).view(-1, CLASSES, count) for level, count, _, kind in levels], 2)

        def distances(self, sides: Any) -> Any:
            """The expected distances to left, top, right and bottom, in strides, `[N, 4, A]`."""
            chances = sides.view(-1, 4, BINS, sum(COUNTS)).transpose(1, 2).softmax(1)
            return self.expected(chances).view(-1, 4, sum(COUNTS))

        def forward(self, x: Any) -> Any:
            sides, classes = self.raw(x)
            distances = self.distances(sides)
            first, last = self.places - distances[:, :2], self.places + distances[:, 2:]
            boxes = torch.cat([(first + last) / 2, last - first], 1) * self.strides
            return torch.cat([boxes, classes.sigmoid()], 1)

    return Detector()


def places_of() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the places `[1, 2, A]` (x, y) in units of their strides, and the strides `[1, 1, A]` in pixels."""
    places, strides = [], []
    for stride in STRIDES:
        middle = np.arange(SIDE // stride, dtype=np.float32) + np.float32(0.5)
        y, x = np.meshgrid(middle, middle, indexing="ij")
        places.append(np.stack([x.ravel(), y.ravel()]))
        strides.append(np.full(x.size, stride, np.float32))
    return np.concatenate(places, axis=1)[None], np.concatenate(strides)[None, None]


def targets_of(objects: Sequence[Objects]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return which digit each place is of: its box `[N, 4, A]` in pixels, and its class `[N, A]`, -1 for none."""
    places, strides = (array[0] for array in places_of())
    x, y = places * strides
    boxes = np.zeros((len(objects), 4, x.size), np.float32)
    classes = np.full((len(objects), x.size), -1, np.int64)
    for n, shown in enumerate(objects):
        for box, label in zip(shown.boxes * SIDE, shown.classes, strict=True):
            stride = STRIDES[int(max(box[2] - box[0], box[3] - box[1]) > LARGE)]
            centre = (box[:2] + box[2:]) / 2
            apart = np.maximum(np.abs(x - centre[0]), np.abs(y - centre[1]))
            own = (strides[0] == stride) & (apart <= NEAR * stride)
            boxes[n, :, own], classes[n, own] = box, label
    return boxes, classes


def loss_of(net: Any, images: Any, boxes: Any, classes: Any) -> Any:
    """Return the loss of a batch: cross entropies of classes and distances, and one minus the overlap of boxes."""
    import torch
    from torch.nn import functional

    sides, logits = net.raw(images)
    own = classes >= 0
    wanted = torch.zeros_like(logits)
    rows, columns = own.nonzero(as_tuple=True)
    wanted[rows, classes[own], columns] = 1.0
    score = functional.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    weight = torch.where(wanted > 0, 1.0, (logits.sigmoid() ** 2).detach())  # many places show nothing
    count = own.sum().clamp(min=1)
    place, stride = net.places.expand(len(images), -1, -1), net.strides.expand(len(images), -1, -1)
    given = boxes / stride
    far = torch.cat([place - given[:, :2], given[:, 2:] - place], 1).clamp(0, BINS - 1 - 0.01)
    low = far.floor()
    logs = sides.view(len(images), 4, BINS, -1).log_softmax(2)
    share = far - low
    nll = -(
        logs.gather(2, low.long()[:, :, None])[:, :, 0] * (1 - share)
        + logs.gather(2, low.long()[:, :, None] + 1)[:, :, 0] * share
    )
    found = net.distances(sides)
    overlap = torch.minimum(found, far)
    inter = (overlap[:, 0] + overlap[:, 2]) * (overlap[:, 1] + overlap[:, 3])
    areas = [(d[:, 0] + d[:, 2]) * (d[:, 1] + d[:, 3]) for d in (found, far)]
    iou = inter / (areas[0] + areas[1] - inter + 1e-6)
    return ((weight * score).sum() + 0.3 * nll.sum(1)[own].sum() + 2.0 * (1 - iou)[own].sum()) / count


def train(digits: NDArray[np.uint8], labels: NDArray[np.int64]) -> Any:
    """Return the trained net in evaluation mode, with every batch drawn again.

    `digits`: `[n, 8, 8]`, values 0 to 16. `labels`: class of each digit, `[n]`.
    """
    import torch

    torch.manual_seed(SEED)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)  # the order of sums is part of the result
    net = build()
    learned = [parameter for parameter in net.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=STEPS)
    for step in range(STEPS):
        pictures, objects = scenes(digits, labels, BATCH, 1000 + step)
        images = torch.from_numpy(as_input(pictures))
        loss = loss_of(net, images, *(torch.from_numpy(array) for array in targets_of(objects)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 200 == 199:
            log.info("step %d: loss %.4f", step + 1, loss.item())
    return net.eval()


def as_input(pictures: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return pictures `[N, 64, 64, 1]` as the net takes them."""
    return np.ascontiguousarray(pictures.transpose(0, 3, 1, 2)).astype(np.float32) / np.float32(255)


def to_onnx(net: Any) -> onnx.ModelProto:
    """Return the net as torch's exporter by tracing writes it."""
    import torch

    stream = io.BytesIO()
    torch.onnx.export(
        net,
        (torch.zeros(2, 1, SIDE, SIDE),),
        stream,
        input_names=["image"],
        output_names=["detections"],
        opset_version=OPSET,
        dynamo=False,
        dynamic_axes={"image": {0: "N"}, "detections": {0: "N"}},
    )
    model = onnx.load_from_string(stream.getvalue())
    onnx.checker.check_model(model, full_check=True)
    return model


def main() -> None:
    """Train the detector and write it to the file that the command line names."""
    parser = argparse.ArgumentParser(description="Train the embedded detector and write it as ONNX.")
    parser.add_argument("file", type=Path, help="where the model is written")
    output: Path = parser.parse_args().file
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    digits, labels = digits_arrays()
    part, _ = digits_parts(len(digits))
    model = to_onnx(train(digits[part, ..., 0], labels[part]))
    output.write_bytes(model.SerializeToString(deterministic=True))
    log.info("wrote %s (%d bytes)", output, output.stat().st_size)


if __name__ == "__main__":
    main()
