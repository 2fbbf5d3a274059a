"""Loops (Scan) whose body multiplies a state by constants: where they are, and their integers.

Files of this feature, all `recurrent_loop.py`: `oprules` (finds them), `types`, `annotate` (decides), `lowering`
(writes).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from quantpipe.types.dtype import DType


@dataclass(frozen=True)
class RecurrentLimits:
    """State how a device multiplies the state of a recurrent layer in a loop (docs/hardware.md, recurrent layers).

    `inputs`: the type in which a product takes the state; weights have the types of the file's dense layers.
    `cell_state`: the type in which an LSTM's cell state goes from step to step, while hidden states of any layer go as
    `inputs`; None: both are floats.
    """

    inputs: DType
    cell_state: DType | None = None


@dataclass(frozen=True)
class BodyForms:
    """Select the bodies that are written out: bodies of `holders` (If, Loop, Scan) with one of `ops`."""

    holders: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()


NO_BODIES = BodyForms()
"""All bodies stay as they are."""


@dataclass(frozen=True)
class LoopForms:
    """Name the recurrent layers, loops and branches that are rewritten, and how.

    `steps`: layers of a fixed length that is not too long, as their steps. `loops`: all others as a loop, with an
    output of every cell state where `cells` is true. `bodies`: loops and branches of the file that are written out.
    """

    steps: tuple[str, ...] = ()
    loops: tuple[str, ...] = ()
    cells: bool = False
    bodies: BodyForms = NO_BODIES


NO_CELLS = LoopForms()
"""All recurrent layers, loops and branches stay as they are."""


@dataclass(frozen=True)
class LoopSite:
    """Describe a loop: its node, the tensor of all states, and the products of its body by node and constant.

    `state` is an output of the node, `[T, …]`: what a product reads in a step, or made from it by a gate of 0 to 1.
    `carried`: outputs that show what goes from step to step in stored integers.
    """

    node: str
    state: str
    products: tuple[tuple[str, str], ...]
    edges: tuple[str, ...] = ()
    carried: tuple[str, ...] = ()

    @property
    def stored(self) -> tuple[str, ...]:
        """Return every output of the loop that has a quantizer: `state`, and what is carried."""
        return tuple(dict.fromkeys((self.state, *self.carried)))


@dataclass(frozen=True, eq=False)
class LoopProduct:
    """Hold the numbers of one product: Σ (q_h - z_h)·q_w in integers, times `scale`, `()` or `[C]` float32.

    `bound` is the maximum magnitude of a sum.
    """

    node: str
    weight: str
    scale: NDArray[np.float32] = field(repr=False)
    bound: int = 0
