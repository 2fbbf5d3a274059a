"""The numbers of products in the body of a loop."""

from __future__ import annotations

import numpy as np

from quantpipe.errors import HardwareError
from quantpipe.plan.bounds import reach
from quantpipe.plan.builder import PlanBuilder
from quantpipe.types import DType, LoopProduct, LoopSite


def loop_products(builder: PlanBuilder, site: LoopSite) -> tuple[LoopProduct, ...]:
    """Return the numbers of a loop's products, in the order of its body.

    Raises HardwareError where a sum may leave int32.
    """
    data, found = builder.quantizers[site.state], []
    for node, tensor in site.products:
        weight = builder.weights[tensor]
        bound = int(np.max(reach(builder.topology, weight, data), initial=0))
        if bound > DType.INT32.qmax:
            raise HardwareError(
                f"the sums of {node} may reach {bound}, beyond int32; give its state or its weight fewer bits",
                stage="plan",
                where=site.node,
            )
        scale = np.asarray(np.float64(data.scale) * weight.scale.astype(np.float64), np.float32)
        found.append(LoopProduct(node, tensor, scale, bound))
    return tuple(found)
