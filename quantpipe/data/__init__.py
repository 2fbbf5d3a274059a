"""Data sets: where samples come from, how they are divided, and how they become batches that fit a model.

A data set class (one for each file of conf/dataset; chosen by Hydra's `_target_`) offers one method,
`splits(inputs, outputs_classes, seed) -> Splits`. Nothing here knows of ONNX: a model is its input ports.
"""

from quantpipe.data.preprocess import Layout, Preprocess, SourceLayout
from quantpipe.data.sources.digits import DigitsDataset
from quantpipe.data.sources.digits_columns import DigitsColumnsDataset
from quantpipe.data.sources.digits_detect import DigitsDetectDataset
from quantpipe.data.sources.given import GivenDataset, SampleSets
from quantpipe.data.sources.image_folder import ImageFolderDataset
from quantpipe.data.sources.iterable import CallableDataset
from quantpipe.data.sources.npz import NpzDataset
from quantpipe.data.sources.table import TableDataset
from quantpipe.data.sources.text import TextDataset
from quantpipe.data.sources.wav_folder import WavFolderDataset
from quantpipe.data.splits import Splits
