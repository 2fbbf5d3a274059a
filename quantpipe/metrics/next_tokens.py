"""How well a decoder predicts the next token: perplexity, equal greedy tokens, and when continuations part.

Logits are `[T, C]` of each sample, tokens int64 `[T]`: row t of the logits is about token t + 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantpipe.arrays import Array, Floats
from quantpipe.metrics.outputs import log_probabilities
from quantpipe.types import Outputs

Tokens = NDArray[np.int64]


@dataclass(frozen=True)
class NextTokens:
    """Compare two models on the same tokens.

    `tokens`: how many were predicted. `perplexity`, of the float model and the other one: the exponential of the mean
    loss in nats. `difference`: of the two mean losses, in nats, with the standard error of its mean over samples (None:
    fewer than two). `agreement`: the share of tokens, 0 to 1, at which both have the same largest score.
    """

    samples: int
    tokens: int
    perplexity: tuple[float, float]
    difference: float
    standard_error: float | None
    agreement: float


def next_tokens(tokens: Sequence[Tokens], reference: Outputs, outputs: Outputs) -> NextTokens | None:
    """Return how two models predict the tokens; None where no sample has two tokens or no token is in the vocabulary.

    `reference`, `outputs`: logits of the float model and of the other one, a sample each.
    """
    rows = list(zip(tokens, reference, outputs, strict=True))
    pairs = [(_losses(row, one), _losses(row, other)) for row, one, other in rows]
    kept = [(one, other) for one, other in pairs if one.size]
    if not kept:
        return None
    own, found = (np.concatenate([pair[i] for pair in kept]) for i in (0, 1))
    gaps = np.array([other.mean() - one.mean() for one, other in kept])
    equal = [np.argmax(one, -1) == np.argmax(other, -1) for _, one, other in rows]
    return NextTokens(
        samples=len(kept),
        tokens=own.size,
        perplexity=(float(np.exp(own.mean())), float(np.exp(found.mean()))),
        difference=float(found.mean() - own.mean()),
        standard_error=float(gaps.std(ddof=1) / np.sqrt(len(gaps))) if len(gaps) > 1 else None,
        agreement=float(np.concatenate(equal).mean()),
    )


def first_difference(one: Tokens, other: Tokens) -> int:
    """Return how many tokens of two continuations are equal before the first that differs, of the shorter one."""
    count = min(len(one), len(other))
    apart = np.flatnonzero(one[:count] != other[:count])
    return int(apart[0]) if apart.size else count


def _losses(tokens: Tokens, logits: Array) -> Floats:
    """Return -log of each next token's probability, `[T - 1]`; tokens without a score are left out."""
    wanted = tokens[1:]
    known = (wanted >= 0) & (wanted < logits.shape[-1])
    found = log_probabilities(logits[: len(wanted)], distribution=False)
    return np.asarray(-np.take_along_axis(found[known], wanted[known, None], axis=-1)[:, 0])
