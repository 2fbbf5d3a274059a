"""Steps of recovery compared on several splits of the calibration images and seeds of the walk.

One split and one seed say little: KL of a few dozen images varies by a fifth. So each list of steps is measured on the
same pairs of split and seed, on the search split: no weight was fitted to it, and all that it decided is whether a step
was kept. Square roots of KL vary least: their mean is of the order of an error in the logits, and no single image makes
most of it.

    python benchmarks/recovery_splits.py [--models NAME ...] [--settings NAME ...] [--splits N ...] [--seeds N ...]
        [--steps '[STEP, ...]' ...]
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
from typing import Any

import numpy as np
import yaml
from recovery import MEMORY_MB, MODELS, SETTINGS, machine, option, prepared

from quantpipe.calibrate.estimators import MSE
from quantpipe.graph.execute import Session
from quantpipe.metrics.outputs import log_probabilities
from quantpipe.metrics.reference import outputs_of
from quantpipe.pipeline.stages import Holdout, RecoverySettings, SearchedStrategy, realize, recover
from quantpipe.plan import Problem
from quantpipe.recover import RecoverOptions, rescale_channels


def one(model: str, setting: str, split: int, seed: int, *, steps: list[Any]) -> dict[str, float]:
    """What is left on the search split: KL and its root, squared error as a share of the outputs' variance, and how
    many images change class."""
    work = prepared(model, setting, 128, split)
    network = (work.graph, work.topology)
    climbed = recover(
        Problem(*network, work.spec, work.schema),
        SearchedStrategy(work.strategy, profile=work.profile),
        work.splits.calibrate,
        Holdout(work.splits.search),
        settings=RecoverySettings(
            RecoverOptions(**option("recover/default") | {"steps": steps, "kl_target": 0}), MEMORY_MB, seed, MSE()
        ),
    )
    found = rescale_channels(*network, climbed.overrides.channels, climbed.overrides.rotations)
    plan = Problem(*found, work.spec, work.schema).plan(work.strategy, climbed.overrides)
    size = work.graph.batch_size
    real, made = (
        outputs_of(Session(m), work.splits.search, size).astype(np.float64)
        for m in (work.graph.model, realize(*found, plan, SETTINGS[setting].backend).model)
    )
    wanted, got = (log_probabilities(logits, False) for logits in (real, made))
    kl = np.maximum((np.exp(wanted) * (wanted - got)).sum(axis=1), 0.0)
    return {
        "root": float(np.sqrt(kl).mean()),
        "kl": float(kl.mean()),
        "mse": float(((real - made) ** 2).mean() / real.var()),
        "changed": int((real.argmax(axis=1) != made.argmax(axis=1)).sum()),
    }


def row(model: str, setting: str, steps: list[Any], found: list[dict[str, Any]]) -> str:
    roots = np.array([one["root"] for one in found])
    error = roots.std(ddof=1) / len(roots) ** 0.5 if len(roots) > 1 else 0.0
    kl, mse, changes = (np.mean([one[key] for one in found]) for key in ("kl", "mse", "changed"))
    each = " ".join(f"{root:.3f}" for root in roots)
    said = yaml.safe_dump(steps, default_flow_style=True, sort_keys=False, width=200).strip()
    return (
        f"| {model} | {setting} | {said} | {roots.mean():.4f} ± {error:.4f} | {kl:.4f} | {mse:.5f} | {changes:.1f} "
        f"| {each} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["imagenet_efficientnet_lite0"], choices=MODELS)
    parser.add_argument("--settings", nargs="+", default=[list(SETTINGS)[2]], choices=list(SETTINGS))
    parser.add_argument("--splits", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--steps", nargs="+", default=["[propagation]", "[rotate, propagation]"])
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    lists = [yaml.safe_load(steps) for steps in given.steps]
    if given.one:
        print(json.dumps(one(given.models[0], given.settings[0], given.splits[0], given.seeds[0], steps=lists[0])))
        return
    print("# Steps of recovery, on several splits and seeds\n")
    print(f"{machine()}. Splits")
    print(f"{given.splits}, for each seeds {given.seeds}; means, on images that no weight was fitted to.\n")
    print("| model | setting | steps | √KL ± standard error | KL | squared error | change class | √KL of each |")
    print("|---" * 8 + "|", flush=True)
    for model, setting, steps in itertools.product(given.models, given.settings, lists):
        found = []
        for split, seed in itertools.product(given.splits, given.seeds):
            which = ["--models", model, "--settings", setting, "--splits", str(split), "--seeds", str(seed)]
            command = [sys.executable, __file__, "--one", *which, "--steps", json.dumps(steps)]
            found.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))
        print(row(model, setting, steps, found), flush=True)


if __name__ == "__main__":
    main()
