"""Check before a run whether this model can be trained here: whether torch is there, and knows every op."""

from __future__ import annotations

from quantpipe.errors import ConfigError
from quantpipe.graph.view import Graph
from quantpipe.train.train_options import TrainOptions

LEAST_TORCH = (2, 2)


def refuse_without_torch(graph: Graph, options: TrainOptions, where: str) -> None:
    """Raise ConfigError where torch or its device is absent, torch is too old, or a node has no gradient.

    `where` is the option that asks for training, as errors name it.
    """
    try:
        import torch

        from quantpipe.train.network import FloatNetwork, NotTrainable
        from quantpipe.train.training_loop import device_of
    except (ImportError, OSError) as error:
        raise ConfigError(
            f"needs PyTorch, which cannot be imported ({error}). Install it with pip install 'quantpipe-onnx[train]', "
            "or give train=none",
            where=where,
        ) from error
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < LEAST_TORCH:
        raise ConfigError(
            f"needs PyTorch {'.'.join(map(str, LEAST_TORCH))} or later, and {torch.__version__} is installed; upgrade "
            "it, or give train=none",
            where=where,
        )
    try:
        FloatNetwork.of(graph, device_of(options))
    except NotTrainable as error:
        raise ConfigError(f"cannot train this model: {error}; legal is train=none", where=where) from error
