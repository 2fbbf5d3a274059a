"""Kinds of choices that `annotate.choices` names and the device has nothing to choose of."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from quantpipe.annotate.fixed_operands import rescales
from quantpipe.types import HardwareSpec
from quantpipe.types.choice_key import ChoiceKind


def absent(kinds: Collection[str], spec: HardwareSpec) -> Iterator[str]:
    """Yield a sentence for each named kind of which this device has one option, with what would change that."""
    have = {
        ChoiceKind.ADD: (len(spec.add_variants) > 1, "its additions have one form (add_inputs)"),
        ChoiceKind.GRANULARITY: (len(spec.weights.granularity) > 1, "its weights have one (weights.granularity)"),
        ChoiceKind.RESCALE: (rescales(spec), "it brings no stored integers to another scale (requantize)"),
    }
    for kind, (offered, why) in have.items():
        if kind in kinds and not offered:
            yield (
                f"annotate.choices has {kind}, and {spec.name} leaves nothing to choose there: {why}. Legal are a "
                "hardware file that lists several, and choices without this kind"
            )
