"""Data sets: where samples come from, how they are divided, and how they become batches that fit a model.

A data set class (`digits`, `npz`, `image_folder`; chosen by Hydra's `_target_`) offers one method,
`splits(inputs, outputs_classes, seed) -> Splits`. Nothing here knows of ONNX: a model is its input ports.
"""

from quantpipe.data.digits import DigitsDataset
from quantpipe.data.image_folder import ImageFolderDataset
from quantpipe.data.npz import NpzDataset
from quantpipe.data.preprocess import Layout, Preprocess, SourceLayout
from quantpipe.data.source import Source
from quantpipe.data.splits import Splits

__all__ = [
    "DigitsDataset",
    "ImageFolderDataset",
    "Layout",
    "NpzDataset",
    "Preprocess",
    "Source",
    "SourceLayout",
    "Splits",
]
