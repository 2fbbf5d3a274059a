"""How far second moments of few samples can be trusted.

A covariance matrix of few samples has eigenvalues that lie too far apart: directions in which these samples happen to
differ little look free, and rounding puts its errors there. Ledoit and Wolf, *A well-conditioned estimator for
large-dimensional covariance matrices*, 2004, give the combination (1 - ρ) H + ρ h̄ I that is nearest to the true matrix,

    ρ = E‖Ĥ - H‖² / E‖Ĥ - h̄ I‖²        (Frobenius norms)

with the numerator taken from how parts of the samples differ. Rows of one sample depend on each other, so parts are
stretches of rows in the order of their samples: about whole samples, where there are enough of them.
"""

from __future__ import annotations

from math import ceil

import numpy as np
from numpy.typing import NDArray

from quantpipe.arrays import Floats

PARTS = 16
"""That all rows of a layer are divided into, at least."""

MOST = 0.98
"""Of ρ: where the samples tell nothing, ridge and damping stay finite."""


def parts_of(batch: int, samples: int) -> int:
    """Return into how many parts the rows of a batch are cut, of so many samples in all."""
    return ceil(PARTS * batch / max(samples, 1))


def uncertainty(hessian: Floats, product: Floats, squares: Floats, counts: NDArray[np.int64]) -> float:
    """Return ρ / (1 - ρ): what to add to H, as a share of its mean diagonal h̄.

    It is one number for all groups, each counted in units of its own h̄. It is 0 where there is one part alone, or
    nothing varies.

    `hessian`: H, `[G, K, K]`. `product`: sum of xᵀx over all rows, `[G, K, K]`. `squares`: sum over the parts of ‖their
    sum of xᵀx‖², `[G]`; both sums are about the same constant.
    """
    parts, width, rows = len(counts), hessian.shape[1], counts.sum()
    mean = np.einsum("gkk->g", hessian) / width
    varied = mean > 0
    if parts < 2 or not varied.any():
        return 0.0
    share = float(np.sum((counts / rows) ** 2))
    total = np.einsum("gij,gij->g", product, product)
    error = (squares - total * share) / rows**2 * parts / (parts - 1)
    spread = np.einsum("gij,gij->g", hessian, hessian) - width * mean**2
    wrong, there = (float(np.sum(v[varied] / mean[varied] ** 2)) for v in (error, spread))
    rho = min(max(wrong, 0.0) / there, MOST) if there > 0 else 0.0
    return rho / (1 - rho)
