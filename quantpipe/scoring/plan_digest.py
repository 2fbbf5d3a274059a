"""Digests of a plan's parts: equal digests mean equal numbers, hence equal integers."""

from __future__ import annotations

import hashlib
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from quantpipe.types import QuantPlan, Topology


class PlanDigest:
    """Digests of sections of plans. Weights, which plans share, are read once each."""

    def of(self, plan: QuantPlan, topology: Topology, tensors: tuple[str, ...], identity: str = "") -> bytes:
        """Return a digest of every number that the kernels and the conversions of their tensors use."""
        digest = hashlib.blake2b(identity.encode(), digest_size=16)
        names = dict.fromkeys(tensors)
        for kernel in topology.kernels:
            names |= dict.fromkeys([*(o.tensor for o in kernel.operands), kernel.output])
            if kernel.weight is not None:
                digest.update(plan.weights[kernel.weight].digest)
            _feed(digest, plan.kernels.get(kernel.node))
        for site in topology.tables:
            digest.update(plan.tables[site.tensor].digest)
        for kernel in topology.weighted:
            digest.update(plan.weights[kernel.weight or ""].digest)
        for loop in topology.loops:
            names |= dict.fromkeys(loop.stored)
            for _, tensor in loop.products:
                digest.update(plan.weights[tensor].digest)
        for cell in topology.cells:
            for tensor in cell.weights:
                digest.update(plan.weights[tensor].digest)
        for name in names:
            for numbers in (plan.quantizers, plan.raw_scales, plan.narrowings, plan.constants):
                _feed(digest, numbers.get(name))
        return digest.digest()


def _feed(digest: Any, value: Any) -> None:
    if isinstance(value, np.ndarray | np.generic):
        digest.update(f"{value.dtype.str}{value.shape}".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    elif is_dataclass(value):
        for field in fields(value):
            _feed(digest, getattr(value, field.name))
    elif isinstance(value, tuple):
        digest.update(f"({len(value)}".encode())
        for item in value:
            _feed(digest, item)
    else:
        digest.update(f"{value!r};".encode())
