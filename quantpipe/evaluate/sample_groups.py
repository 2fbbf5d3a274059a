"""Judge groups of samples that an average hides: the worst, the quiet, the long, each class, each given group.

Takes the figures of each sample of every output, and facts about the samples; gives rows of the report and sentences.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.evaluate.nearness import OutputFigures
from quantpipe.metrics.interval import Z, at_least, wilson
from quantpipe.metrics.paired import holm, mean_interval
from quantpipe.metrics.sample_figures import SampleFigures
from quantpipe.types import Batch, GroupRow, Samples, WorstSampleRow, groups_of, sample_name

Reals = NDArray[np.float64]
Mask = NDArray[np.bool_]

QUANTILES = 4
LEAST_SPREAD_DB = 3.0
"""Between the quietest and the loudest sample, from which quantiles by energy are of use."""
MOST_ROWS = 100
"""Of one output by one property, the worst first."""
NAMED = 5
"""Samples of an output that are listed as its worst."""
FAR_DB, FAR_SHARE, FAR_KL, NEAR_KL = 6.0, 0.25, 0.5, 0.1
"""By how much a group is worse than the whole output where it is warned of (docs/data.md)."""
CHANCE = 0.01
LEAST_SAMPLES = 2


QUIET = (
    "samples of little energy use few of the integers that all samples share: what helps are 16 bits, where the device "
    "has them (hardware.activations.bits=16), or inputs of the same energy"
)


@dataclass(frozen=True, eq=False)
class SampleFacts:
    """Hold facts about the samples themselves.

    `energy` `[N]` is the mean square of the float inputs, in dB; `length` `[N]` the length of each sample, None where
    all are equal; `groups` `[N]` by `dataset.groups`. `samples` names them.
    """

    energy: Reals
    length: Reals | None
    groups: NDArray[np.str_] | None
    samples: Samples = field(repr=False)

    @classmethod
    def of(cls, found: Reals, samples: Samples) -> SampleFacts:
        """Return the facts from rows `[N, ...]` of `facts_of`."""
        with np.errstate(divide="ignore"):
            energy = 10 * np.log10(found[:, 0])
        columns = [found[:, place] for place in range(1, found.shape[1])]
        varying = [one for one in columns if len(one) and one.min() >= 0 and one.max() > one.min()]
        groups = groups_of(samples)
        return cls(energy, varying[0] if varying else None, None if groups is None else groups[: len(found)], samples)

    def first(self, count: int) -> SampleFacts:
        """Return the facts of the first `count` samples."""
        length = None if self.length is None else self.length[:count]
        groups = None if self.groups is None else self.groups[:count]
        return replace(self, energy=self.energy[:count], length=length, groups=groups)


def facts_of(batch: Batch) -> Reals:
    """Return for each sample `[n, 1 + axes + masks]` its energy, its sizes, and the ones of its masks.

    The energy is the mean square of all float inputs. Sizes are the sizes of all axes of the inputs. A mask is an input
    of integers or booleans `[n, length]`; -1 where it holds other numbers than 0 and 1.
    """
    count = len(batch)
    squares, elements = np.zeros(count), 0
    sizes: list[Reals] = []
    masks: list[Reals] = []
    for given in batch.inputs.values():
        values = np.asarray(given)
        if values.ndim == 0 or len(values) != count:
            continue
        if values.dtype.kind == "f":
            rows = values.reshape(count, -1).astype(np.float64)
            squares, elements = squares + np.einsum("ij,ij->i", rows, rows), elements + rows.shape[1]
        elif values.ndim == 2:
            is_mask = bool(np.isin(values, (0, 1)).all())
            masks.append(values.sum(axis=1).astype(np.float64) if is_mask else np.full(count, -1.0))
        sizes += [np.full(count, float(size)) for size in values.shape[1:]]
    return np.stack([squares / max(elements, 1), *sizes, *masks], axis=1)


@dataclass(frozen=True, eq=False)
class Group:
    """Hold one group: the property that it goes by, its name there, and its samples `[N]`."""

    by: str
    name: str
    members: Mask


def groups_by(facts: SampleFacts) -> Iterator[Group]:
    """Yield the groups of the samples by facts that need no model."""
    known = facts.energy[np.isfinite(facts.energy)]
    if len(known) and known.max() - known.min() >= LEAST_SPREAD_DB:
        yield from _quantiles("energy", facts.energy, "{:.0f} to {:.0f} dB")
    if facts.length is not None:
        yield from _quantiles("length", facts.length, "{:.0f} to {:.0f}")
    if facts.groups is not None:
        for name in np.unique(facts.groups):
            yield Group("groups", str(name), facts.groups == name)


def _quantiles(by: str, values: Reals, text: str) -> Iterator[Group]:
    """Yield up to four groups of about as many samples, with equal values in one group."""
    edges = np.unique(np.quantile(values[np.isfinite(values)], np.linspace(0, 1, QUANTILES + 1), method="lower"))
    place = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, max(len(edges) - 2, 0))
    for number in range(max(len(edges) - 1, 1)):
        members = place == number
        if members.any():
            inside = values[members & np.isfinite(values)]
            low, high = (float(inside.min()), float(inside.max())) if len(inside) else (-math.inf, -math.inf)
            yield Group(by, text.format(low, high), members)


@dataclass(frozen=True)
class JudgedGroups:
    """Hold the rows of all groups, the worst samples of each output, and sentences about what an average hides."""

    rows: list[GroupRow] = field(default_factory=list)
    worst: list[WorstSampleRow] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def judged_groups(
    outputs: Sequence[OutputFigures], facts: SampleFacts, limit: float | None, accurate: str | None = None
) -> JudgedGroups:
    """Return the groups of every output.

    `limit` is the SQNR in dB below which a group is warned of; None disables these warnings. The SQNR of the output
    `accurate`, which labels show to be as good as the float model's, does not count.
    """
    found = JudgedGroups()
    for output in outputs:
        name = output.row["output"]
        whole: Mapping[str | None, SampleFigures] = {None: output.samples}
        for part, figures in (output.parts or whole).items():
            _judge(found, name, part, figures, facts=facts, limit=None if name == accurate else limit)
    if facts.groups is not None and (said := _small_groups(facts.groups)) is not None:
        found.warnings.append(said)
    return found


def _small_groups(groups: NDArray[np.str_]) -> str | None:
    """Return a sentence about groups that are too small to be judged; None without such groups."""
    names, counts = np.unique(groups, return_counts=True)
    small = [str(name) for name in names[counts < LEAST_SAMPLES]]
    if not small:
        return None
    shown = ", ".join(small[:NAMED]) + (", …" if len(small) > NAMED else "")
    return (
        f"{len(small)} of {len(names)} groups (dataset.groups) have a single evaluation sample: {shown}. They are "
        "listed and not judged"
    )


def _judge(
    found: JudgedGroups,
    output: str,
    part: str | None,
    figures: SampleFigures,
    *,
    facts: SampleFacts,
    limit: float | None,
) -> None:
    loss = losses(figures)
    if loss is None or len(loss) != len(facts.energy):
        return
    whole = np.ones(len(loss), dtype=np.bool_)
    order = np.argsort(-np.nan_to_num(loss, nan=np.inf), kind="stable")
    worst = np.zeros(len(loss), dtype=np.bool_)
    worst[order[: max(1, len(loss) // 10)]] = True
    groups = [Group("worst_decile", "", worst), *groups_by(facts)]
    rows = [_row(output, part, group, figures) for group in groups] + _class_rows(output, part, figures)
    average = _row(output, part, Group("all", "", whole), figures)
    _mark(rows, average, limit)
    listed: list[GroupRow] = []
    for by in dict.fromkeys(row["by"] for row in rows):
        some = [row for row in rows if row["by"] == by]
        listed += some if len(some) <= MOST_ROWS else sorted(some, key=_badness)[:MOST_ROWS]
    found.rows.append(average)
    found.rows.extend(listed)
    named = [
        _worst_row(output, part, int(at), float(loss[at]), samples=facts.samples)
        for at in order[:NAMED]
        if loss[at] != 0
    ]
    found.worst.extend(named)
    if (said := _sentence(rows, average, named)) is not None:
        found.warnings.append(said)


def losses(figures: SampleFigures) -> Reals | None:
    """Return the loss of each sample, `[N]`: its divergence, its noise as a share of its signal, or its lost answers.

    There is no result where nothing is known about the samples.
    """
    if figures.kl:
        return np.asarray(figures.kl)
    if figures.signal:
        signal, noise = np.asarray(figures.signal), np.asarray(figures.noise)
        return np.asarray(np.where(noise > 0, noise / np.maximum(signal, np.finfo(np.float64).tiny), 0.0))
    return 1.0 - np.asarray(figures.equal) if figures.equal else None


def _row(output: str, part: str | None, group: Group, figures: SampleFigures) -> GroupRow:
    members = group.members
    row: GroupRow = {
        "output": output if part is None else f"{output}: {part}",
        "by": group.by,
        "group": group.name,
        "samples": int(members.sum()),
        "judged": int(members.sum()) >= LEAST_SAMPLES,
        "worse": False,
    }
    if figures.kl:
        mean, low, high = mean_interval(np.asarray(figures.kl)[members])
        row["kl"], row["kl_interval"] = mean, [max(low, 0.0), high]
    elif figures.signal:
        row["sqnr_db"], row["sqnr_interval"] = _sqnr(
            np.asarray(figures.signal)[members], np.asarray(figures.noise)[members]
        )
    if figures.equal:
        _add_share(row, float(np.nanmean(np.asarray(figures.equal)[members])), row["samples"])
    return row


def _add_share(row: GroupRow, share: float, count: int) -> None:
    row["equal"] = share
    if (interval := wilson(share, count)) is not None:
        row["equal_interval"] = list(interval)


def _class_rows(output: str, part: str | None, figures: SampleFigures) -> list[GroupRow]:
    """Return a row per class of the float model's answers: the share of its places that keep it."""
    counts = figures.counts
    if counts is None or len(counts.own) < 2:
        return []
    blank = counts.blank(figures.classes) if figures.sequence else None
    rows: list[GroupRow] = []
    for kind in sorted(counts.own):
        if kind == blank:
            continue
        number = counts.own[kind]
        row: GroupRow = {
            "output": output if part is None else f"{output}: {part}",
            "by": "class",
            "group": str(kind),
            "samples": number,
            "judged": number >= LEAST_SAMPLES,
            "worse": False,
        }
        _add_share(row, counts.kept.get(kind, 0) / number, number)
        rows.append(row)
    return rows


def _sqnr(signal: Reals, noise: Reals) -> tuple[float | None, list[float] | None]:
    """Return the SQNR of some samples in dB and its 95 % interval; None where nothing is lost.

    It is the interval of a ratio of means (delta method), in logarithms.
    """
    known = ~np.isnan(signal)
    signal, noise = signal[known], noise[known]
    total, lost, count = float(signal.sum()), float(noise.sum()), len(signal)
    if lost == 0.0:
        return None, None
    if total == 0.0 or not math.isfinite(lost):
        return -math.inf, None
    value = -10 * math.log10(lost / total)
    if count < LEAST_SAMPLES:
        return value, None
    ratio = lost / total
    error = math.sqrt(float(np.sum((noise - ratio * signal) ** 2)) * count / (count - 1)) / lost
    half = Z * error * 10 / math.log(10)
    return value, [value - half, value + half]


def _mark(rows: Sequence[GroupRow], average: GroupRow, limit: float | None) -> None:
    """Mark the groups that lose far more than the whole output."""
    shares = [row for row in rows if row["judged"] and _is_share(row) and row["by"] != "worst_decile"]
    chances = holm([_chance(row, average) for row in shares])
    for row, chance in zip(shares, chances, strict=True):
        row["worse"] = chance < CHANCE and row["equal"] <= average.get("equal", _mean_share(shares)) - FAR_SHARE
    for row in rows:
        value, whole = row.get("sqnr_db"), average.get("sqnr_db")
        if row["judged"] and value is not None and whole is not None and limit is not None:
            row["worse"] = row["worse"] or (value < limit and value <= whole - FAR_DB)
        if row["judged"] and "kl" in row:
            row["worse"] = row["worse"] or (row["kl"] >= FAR_KL and average["kl"] <= NEAR_KL)


def _is_share(row: GroupRow) -> bool:
    return "equal" in row


def _mean_share(rows: Sequence[GroupRow]) -> float:
    counts = sum(row["samples"] for row in rows)
    return sum(row["equal"] * row["samples"] for row in rows) / max(counts, 1)


def _chance(row: GroupRow, average: GroupRow) -> float:
    """Return the probability of so few equal answers if the group were like the whole output (binomial test)."""
    share = min(average.get("equal", 1.0), 1 - 0.5 / max(average["samples"], 1))
    return at_least(row["samples"] - round(row["equal"] * row["samples"]), row["samples"], 1 - share)


def _badness(row: GroupRow) -> tuple[bool, float]:
    value = row.get("sqnr_db")
    if value is not None:
        return not row["judged"], value
    return not row["judged"], row["equal"] if "equal" in row else -row.get("kl", 0.0)


def _worst_row(output: str, part: str | None, at: int, loss: float, *, samples: Samples) -> WorstSampleRow:
    return {
        "output": output if part is None else f"{output}: {part}",
        "row": at,
        "name": sample_name(samples, at),
        "loss": loss,
    }


_BY: Mapping[str, str] = {
    "worst_decile": "the tenth of the samples that loses most",
    "energy": "samples with an input energy of {}",
    "length": "samples of length {}",
    "class": "class {} of the float model's answers",
    "groups": "the group {} (dataset.groups)",
}
_FIRST = ("groups", "class", "energy", "length", "worst_decile")
"""Of several properties, the one that explains most is named first."""


def _sentence(rows: Sequence[GroupRow], average: GroupRow, named: Sequence[WorstSampleRow]) -> str | None:
    worse = sorted((row for row in rows if row["worse"]), key=lambda row: (_FIRST.index(row["by"]), _badness(row)))
    if not worse:
        return None
    first, others = worse[0], worse[1:3]
    text = (
        f"the average hides a group: {_described(first)} of the output {first['output']} has {_figure(first)}, all "
        f"{average['samples']} samples together {_figure(average)}"
    )
    if others:
        text += "; also " + ", ".join(f"{_described(row)} ({_figure(row)})" for row in others)
    if len(worse) > 3:
        text += f", and {len(worse) - 3} more (report.json, groups)"
    if named:
        text += f"; the worst sample is row {named[0]['row']} ({named[0]['name']})"
    quietest = next((row for row in rows if row["by"] == "energy"), None)
    return f"{text}; {QUIET}" if quietest is not None and quietest["worse"] else text


def _described(row: GroupRow) -> str:
    return f"{_BY[row['by']].format(row['group'])} ({row['samples']})"


def _figure(row: Mapping[str, Any]) -> str:
    said = []
    if row.get("sqnr_db") is not None:
        said.append(f"an SQNR of {row['sqnr_db']:.1f} dB")
    if "kl" in row:
        said.append(f"a KL divergence of {row['kl']:.2g}")
    if "equal" in row:
        said.append(f"{100 * row['equal']:.0f} % equal answers")
    return " and ".join(said) or "no loss"
