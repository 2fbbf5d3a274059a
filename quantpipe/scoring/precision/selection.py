"""Select the moves that are worth their cost, by measured losses, within a budget of evaluations.

The order is from certain to doubtful:

1. Findings about ranges.
2. The decode tail of a detector, if it causes the loss.
3. Ranges that cover everything, if they lose less than estimated ones; otherwise this costs one measurement.
4. More bits, while the loss is too large and if the device has them: all, which shows the maximum gain; then as few as
   reach the aim.
5. All light moves into float at once. If they are not enough, the layers that do an eighth of the multiplications, too.
   Each is taken back alone, which shows its share. As many are taken back as the loss allows, the best saving per harm
   first. The remaining ones are split while the budget lasts.
6. Single moves of layers that multiply. Each must regain a good part of the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf

from quantpipe.annotate.tail import TAIL
from quantpipe.scoring.precision.float_moves import PrecisionMove, named

Measured = tuple[float, float]
"""(loss, cost) of a set of nodes in float; the loss is infinite where the device cannot express it."""

WORTH = 0.7
"""A step into float is worth it where it leaves at most this share of the loss."""

WIDER = 0.9
"""Other ranges cost nothing on the device, so they are taken for less; below this the samples decide, not the model."""

CHEAPER = 0.95
"""Bits that are there are given up again where that saves at least this: their precision is worth the rest."""

MARGIN = 1.25
"""The loss that is accepted, in those that float could reach at best, where that is above the aim."""

CHEAP_SHARE = 0.125
"""Multiply-accumulates of layers that are tried in float together, as what multiplies nothing is."""

HEAVY_SHARE = 0.25
"""Most of the model's multiply-accumulates that may be left in float."""


@dataclass(frozen=True)
class Tried:
    """Record one measured set of nodes in float: what was asked, and what came out."""

    what: str
    loss: float
    cost: float
    nodes: frozenset[str]


@dataclass(eq=False)
class Selection:
    """Search over nodes in float, and hold the best answer so far at any time.

    What moves is a node into float, or, by the key of its choice, a scale group to its whole range, or a scale group or
    weight to more bits.

    `measure`: (loss, cost) of a set of moves; it may raise what ends the search, and `moved` is the answer then.
    `certain`: Nodes whose ranges cannot be trusted. `masks`: Nodes whose ranges hold masks. `masked`: Nodes that read
    what these give, where the device has them in integers, with a mask in their range. `doubted`: Nodes whose ranges
    hold parts far apart. `ranges`: Scale groups that may have their whole range. `raised`: Scale groups that may have
    more bits, with the weights that are multiplied by them. `light`: Other nodes that multiply nothing. `heavy`: Nodes
    that multiply. `tail`: Nodes after the last layers, which are float together or not at all. `above`: The loss up to
    which nothing moves into float. `aim`: The loss to reach. `moved`: The answer so far. `tried`: What was measured, in
    order.
    """

    measure: Callable[[frozenset[str]], Measured]
    certain: frozenset[str]
    masks: frozenset[str]
    doubted: frozenset[str]
    light: Sequence[PrecisionMove]
    heavy: Sequence[PrecisionMove]
    above: float
    aim: float
    ranges: Sequence[PrecisionMove] = ()
    raised: Sequence[PrecisionMove] = ()
    masked: frozenset[str] = frozenset()
    tail: frozenset[str] = frozenset()
    moved: frozenset[str] = frozenset()
    tried: list[Tried] = field(default_factory=list)

    @property
    def taken(self) -> Tried:
        """Return what was measured of the answer."""
        return next(t for t in reversed(self.tried) if t.nodes == self.moved)

    def run(self) -> None:
        """Measure and decide. Whatever `measure` raises passes through, with `moved` as far as they are known."""
        found = self._try("as the device runs it", frozenset())
        if self.certain:
            self.moved = self.certain
            found = self._try("constant in calibration: in float", self.moved)
        found = self._what_ranges_say(found)
        found = self._tail(found)
        found = self._ranges(found)
        if found[0] > self.above:
            found = self._raised(found)
        if found[0] > self.above:
            found = self._fewest("everything that multiplies nothing: in float", found, self.light)
        if found[0] > self.above:
            found = self._fewest("layers that multiply little: in float", found, self._cheap())
        if found[0] > self.above:
            self._heavy(found)

    def _what_ranges_say(self, before: Measured) -> Measured:
        """Masks, wherever the aim is missed, for they are the fault then; parts far apart where much is lost."""
        found = before
        if before[0] > self.above and self.doubted - self.moved:
            found = self._worth("masks and parts far apart: in float", before, self.masks | self.doubted)
        if found[0] > self.aim and self.masks - self.moved:
            found = self._worth("masks: in float", found, self.masks)
        if found[0] > self.aim and self.masked - self.moved:
            found = self._worth("masks, and what reads them: in float", found, self.masks | self.masked)
        return found

    def _worth(self, what: str, before: Measured, nodes: frozenset[str]) -> Measured:
        wider = self.moved | nodes
        found = self._try(what, wider)
        if not _mends(found, before):
            return before
        self.moved = wider
        return found

    def _tail(self, before: Measured) -> Measured:
        """Try everything after the last layers in float, where the loss is beyond the aim: it hardly multiplies."""
        if before[0] <= self.aim or not self.tail - self.moved:
            return before
        return self._worth(f"float:{TAIL}: everything after the last layers in float", before, self.tail)

    def _ranges(self, before: Measured) -> Measured:
        """Ranges that hold everything, for all tensors, and where that gains or much is lost, role by role."""
        if not self.ranges or before[0] <= 0 or before[0] == inf:
            return before
        start = self.moved
        whole = self._try("whole ranges for all tensors", _with(start, self.ranges))
        if whole[0] > WIDER * before[0] and before[0] <= self.aim:
            return before
        gaining = []
        for move in self.ranges if len(self.ranges) > 1 else ():
            found = self._try(f"whole ranges: {named(move)}", _with(start, [move]))
            if found[0] < before[0]:
                gaining.append(move)
        options = [(whole, _with(start, self.ranges))]
        if gaining and len(gaining) < len(self.ranges):
            nodes = _with(start, gaining)
            options.insert(0, (self._try("whole ranges where they gain", nodes), nodes))
        best, nodes = min(options, key=lambda option: option[0][0])
        if not _mends(best, before, WIDER):
            return before
        self.moved = nodes
        return best

    def _raised(self, before: Measured) -> Measured:
        """More bits for as few as reach the aim, those first that gain most for what they cost, where fewer cost less.

        A tensor of more bits takes the layers around it to the wider kernels, so that one taken back of all saves
        nothing: each is measured alone.
        """
        moves = [m for m in self.raised if not self.moved.issuperset(m.nodes)]
        if not moves:
            return before
        start = self.moved
        whole = self._try("more bits for all that may have them", _with(start, moves))
        if not _mends(whole, before):
            return before
        self.moved, goal = _with(start, moves), max(self.aim, MARGIN * whole[0])
        worth: dict[PrecisionMove, float] = {}
        for move in moves if len(moves) > 1 else ():
            alone = self._try(f"{named(move)}: more bits", _with(start, [move]))
            gain = before[0] - alone[0] if alone[0] < inf else 0.0
            worth[move] = gain / max(alone[1] - before[1], 1e-9 * abs(before[1]), 1e-12)
        order = sorted(moves, key=lambda m: -worth.get(m, 0.0))
        low, high, found = 1, len(order), whole
        while low < high:
            middle = (low + high) // 2
            nodes = _with(start, order[:middle])
            measured = self._try(f"{middle} of {len(order)} roles: more bits", nodes)
            if measured[0] > goal:
                low = middle + 1
                continue
            high = middle
            if measured[1] <= CHEAPER * found[1]:
                found, self.moved = measured, nodes
        return self._fewer(start, [m for m in order if self.moved.issuperset(m.nodes)], goal, found)

    def _fewer(self, kept: frozenset[str], moves: Sequence[PrecisionMove], goal: float, found: Measured) -> Measured:
        """Take back moves that the others do not need, the smallest gain first; then split the remaining ones."""
        waiting = [move for move in reversed(moves) if len(moves) > 1] + [h for m in moves for h in m.halves()]
        for part in waiting:
            nodes = self.moved - (set(part.nodes) - kept)
            if nodes in (self.moved, kept):
                continue
            measured = self._try(f"{named(part)}: back to fewer bits", nodes)
            if measured[0] <= goal and measured[1] <= CHEAPER * found[1]:
                self.moved, found = nodes, measured
        return found

    def _cheap(self) -> list[PrecisionMove]:
        """Layers that do an eighth of the multiplications together: what one of them fixes another may undo."""
        found: list[PrecisionMove] = []
        for move in sorted(self.heavy, key=lambda m: m.share):
            if sum(m.share for m in found) + move.share <= CHEAP_SHARE:
                found.append(move)
        return found

    def _fewest(self, what: str, before: Measured, offered: Sequence[PrecisionMove]) -> Measured:
        """All of some moves, which `what` says, and then as few as the loss allows."""
        moves = [m for m in offered if not self.moved.issuperset(m.nodes)]
        if not moves:
            return before
        kept, whole = self.moved, _with(self.moved, moves)
        best = self._try(what, whole)
        if not _mends(best, before):
            return before
        self.moved, goal = whole, max(self.aim, MARGIN * best[0])
        harm: dict[PrecisionMove, float] = {}
        for move in moves:
            back = self._try(f"{named(move)}: back to integers", whole - (set(move.nodes) - kept))
            saved = best[1] - back[1]
            harm[move] = max(back[0] - best[0], 0.0) / saved if saved > 0 else inf
        order = sorted((m for m in moves if harm[m] < inf), key=lambda m: harm[m])
        found, back_again = self._most(kept, whole, order, goal, best=best)
        return self._split(kept, [m for m in moves if m not in back_again], goal, found)

    def _most(
        self,
        kept: frozenset[str],
        whole: frozenset[str],
        order: Sequence[PrecisionMove],
        goal: float,
        *,
        best: Measured,
    ) -> tuple[Measured, Sequence[PrecisionMove]]:
        """As many of the first moves back in integers as the goal allows, by bisection: harm adds up, roughly."""
        low, high, found = 0, len(order), best
        while low < high:
            middle = (low + high + 1) // 2
            nodes = whole - (_with(frozenset(), order[:middle]) - kept)
            measured = self._try(f"{middle} of {len(order)} roles: back to integers", nodes)
            if measured[0] <= goal:
                low, found, self.moved = middle, measured, nodes
            else:
                high = middle - 1
        return found, order[:low]

    def _split(self, kept: frozenset[str], moves: Iterable[PrecisionMove], goal: float, found: Measured) -> Measured:
        """Split the remaining moves in two: if one block of a role needs float, the others may not."""
        waiting = [half for move in moves for half in move.halves()]
        while waiting:
            part = waiting.pop(0)
            nodes = self.moved - (set(part.nodes) - kept)
            if nodes == self.moved:
                continue
            measured = self._try(f"{named(part)}: back to integers", nodes)
            if measured[0] <= goal and measured[1] < found[1]:
                self.moved, found = nodes, measured
            else:
                waiting += part.halves()
        return found

    def _heavy(self, found: Measured) -> Measured:
        """Layers that multiply, those that fix most first."""
        share, gains = 0.0, []
        for move in self.heavy:
            if move.share <= HEAVY_SHARE and not self.moved.issuperset(move.nodes):
                measured = self._try(f"{named(move)}: in float", self.moved | set(move.nodes))
                if _mends(measured, found):
                    gains.append((measured[0], move, measured))
        for _, move, alone in sorted(gains, key=lambda gain: gain[0]):
            if found[0] <= self.aim or share + move.share > HEAVY_SHARE:
                continue
            nodes = self.moved | set(move.nodes)
            measured = self._try(f"{named(move)}: in float, too", nodes) if share else alone
            if _mends(measured, found):
                self.moved, found, share = nodes, measured, share + move.share
        return found

    def _try(self, what: str, nodes: frozenset[str]) -> Measured:
        loss, cost = self.measure(nodes)
        self.tried.append(Tried(what, loss, cost, nodes))
        return loss, cost


def _mends(found: Measured, before: Measured, share: float = WORTH) -> bool:
    return found[0] < inf and found[0] <= share * before[0]


def _with(nodes: frozenset[str], moves: Iterable[PrecisionMove]) -> frozenset[str]:
    return nodes.union(*(m.nodes for m in moves))
