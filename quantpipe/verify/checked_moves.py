"""Ops that move or select values, and clamps: what goes in comes out, code by code."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.verify.files import Wrong, array_digest, expect
from quantpipe.verify.written import Written, expect_equal

Array = NDArray[Any]
CLAMPS = ("Relu", "Clip")
WRITTEN_AS = {"GlobalMaxPool": ("GlobalMaxPool", "ReduceMax")}
DATA_PORTS = {"Pad": 2}
"""Ports of a constant that must be the real zero."""


class Moved(Written):
    """Check one kernel that keeps the scale."""

    def check(self) -> None:
        """Check that an op which only moves values does so as plan.json says."""
        raw = self.plan["result"]["form"] == "raw"
        if raw:
            tensor = self.plan["reads"][0]["tensor"]
            self.numbers.raw[self.plan["result"]["tensor"]] = self.numbers.peak(tensor, "raw")
            scales = [self.numbers.plan["accumulators"][t] for t in (tensor, self.plan["result"]["tensor"])]
            expect(scales[0] == scales[1], self.node, "it moves an accumulator, and changes its scale")
        if self.plan["op"] in CLAMPS:
            expect([r["port"] for r in self.plan["reads"]] == [0], self.node, "a clamp has one operand")
            self._through(self.result, None)
            return
        node = self._op()
        self.model.see(node)
        for read in self.plan["reads"]:
            expect(read["port"] < len(node.input), self.node, f"it has no operand {read['port']}")
            self._through(node.input[read["port"]], node, read)
        ports = {r["port"] for r in self.plan["reads"]}
        for port, value in enumerate(node.input):
            if port in ports or not value:
                continue
            if node.op_type == "Pad" and port == DATA_PORTS["Pad"]:
                self._pad(node, value)
            elif self.model.is_constant(value):
                self._parameter(node, port, self.model.constant(value))

    def _parameter(self, node: Any, port: int, found: Array) -> None:
        """A shape, the ends of a slice and the like are those that the certificate names.

        One of an earlier version names none.
        """
        claimed = self.numbers.claims[self.node].get("parameters")
        if claimed is None or node.op_type != self.plan["op"] or (found.dtype.kind == "f" and found.size == 1):
            return
        expect(claimed.get(str(port)) == array_digest(found), self.node,
               f"its input {port} is {found.tolist()}, the certificate names another")  # fmt: skip

    def _op(self) -> Any:
        """The op itself on the way back from the result."""
        names = WRITTEN_AS.get(self.plan["op"], (self.plan["op"],))
        for value in self.model.back(self.result, self.stops):
            node = self.model.producer.get(value)
            if node is not None and node.op_type in names and value not in self.stops:
                return node
        raise Wrong(self.node, f"no {self.plan['op']} leads to its result")

    def _through(self, value: str, node: Any, read: Any = None) -> None:
        """Check one operand on its way to the result.

        Each integer is the same after the op as before, or clamped or rescaled as in the plan.
        """
        read = read or self.plan["reads"][0]
        codes = self._codes(read)
        found = self.model.run(value, {self.numbers.value(read["tensor"], read["form"]): codes})
        if node is not None:
            found = self.model.run(self.result, {node.output[0]: found})
        expect_equal(found.astype(np.int64), self._expected(read, codes), codes, self.node)

    def _codes(self, read: Any) -> Array:
        """All integers of a stored operand; of an accumulator, both ends and both sides of every bound."""
        if read["form"] != "raw":
            return self.numbers.codes(read["tensor"])
        peak = self.numbers.peak(read["tensor"], "raw")
        bounds = [b + d for b in (self.plan["range"] or []) if b is not None for d in (-1, 0, 1)]
        points = sorted({int(np.clip(v, -peak, peak)) for v in (-peak, -1, 0, 1, peak, *bounds)})
        return np.array([points], np.int64 if peak >= 1 << 31 else np.int32)

    def _expected(self, read: Any, codes: Array) -> Array:
        whole = codes.astype(np.int64)
        made = self.plan["result"]["tensor"]
        low, high = self.plan["range"]
        if read["form"] != "raw":
            whole = self._rescaled(read["tensor"], made, whole)
        whole = whole if low is None else np.maximum(whole, int(low))
        return whole if high is None else np.minimum(whole, int(high))

    def _rescaled(self, tensor: str, made: str, codes: Array) -> Array:
        """Stored at one scale -> stored at another, in float32; nothing where they are the same."""
        source, target = (self.numbers.quantizer(t) for t in (tensor, made))
        keys = ("scale", "zero_point", "range", "dtype")
        if all(source[k] == target[k] for k in keys):
            return codes
        listed = any(r["node"] == self.node and r["tensor"] == tensor for r in self.numbers.plan["rescales"])
        expect(listed, self.node, f"{tensor} has another scale than its result, and is not among the rescales")
        real = (codes - int(source["zero_point"])).astype(np.float32) * np.float32(source["scale"])
        zero = int(target["zero_point"])
        with np.errstate(over="ignore"):  # masks of an attention have scales beyond what float32 divides
            steps = np.rint(real / np.float32(target["scale"]))
        low, high = target["range"]
        return np.asarray(np.clip(steps, low - zero, high - zero).astype(np.int64) + zero)

    def _pad(self, node: Any, value: str) -> None:
        """What is padded is the real zero."""
        padded = self.model.run(self.result, {node.output[0]: self.model.constant(value).reshape(1, 1)})
        raw = self.plan["result"]["form"] == "raw"
        zero = 0 if raw else self.numbers.grid(self.plan["result"]["tensor"])[1]
        expect(int(padded.reshape(-1)[0]) == zero, self.node, "it pads with another number than the zero point")
