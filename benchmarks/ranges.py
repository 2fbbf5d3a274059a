"""What each estimator of ranges leaves of a model's outputs, everything in integers, by default settings otherwise.

For each model of the corpus (benchmarks/corpus.py) and each `threshold` option: what the outputs lose on the search
samples, which is what precision=auto chooses by, and the SQNR of the worst output on other samples. The last column is
the default, which may mix them. No recovery, and nothing is left in float but by the last column.

    python benchmarks/ranges.py [--models GLOB ...] [--more FILE.yaml] [--hardware NAME]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the checkout that is measured is that of this file

from corpus import Absent, Case, Counts, cases  # noqa: E402

WAYS: dict[str, dict[str, Any]] = {
    **{name: {"threshold": name, "precision": "none"} for name in
       ("mse", "max_range", "moving_average", "percentile", "kl", "output_error")},
    "default": {},
}  # fmt: skip
EVALUATE = {"latency_runs": 1, "agreement_samples": 8, "layer_samples": 4, "baseline": "none"}


def measured(case: Case, hardware: str, changes: dict[str, Any]) -> dict[str, Any]:
    """Loss on the search samples, and dB of the worst output on the others."""
    import quantpipe

    samples = quantpipe.SampleSets(case.calibrate, case.evaluate, case.search)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = quantpipe.quantize(
            str(case.model),
            samples,
            hardware,
            folder=folder,
            recover="none",
            evaluate=EVALUATE,
            verify="warn",
            **changes,
        )
    report = result.report
    found = [row["sqnr_db"] for row in report["outputs"] if row["sqnr_db"] is not None]
    value = report["search"]["best_value"]
    decided = report["precision"] or {}
    return {
        "loss": -float(value),
        "db": min(found, default=float("inf")),
        "evaluations": decided.get("evaluations", 0),
        "roles": [row["role"] for row in decided.get("roles", ())],
    }


def rows(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Name of the model -> way -> figures."""
    found: dict[str, dict[str, Any]] = {}
    for name, make in cases(options.more, False).items():
        if not any(fnmatch(name, pattern) for pattern in options.models):
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                case = make(Path(folder), Counts(64, 32, 64))
            except Absent as error:
                print(f"{name}: {error}", file=sys.stderr)
                continue
            found[name] = {}
            for way in options.ways:
                try:
                    found[name][way] = measured(case, options.hardware, WAYS[way])
                except Exception as error:  # a row of the table, not the end of it
                    found[name][way] = {"failed": type(error).__name__}
                print(json.dumps({"name": name, "way": way, **found[name][way]}), file=sys.stderr, flush=True)
    return found


def markdown(found: dict[str, dict[str, Any]], options: argparse.Namespace) -> str:
    """The table: dB on samples that nothing was chosen by, and the loss on the search samples."""
    lines = [f"# Estimators of ranges by what the outputs lose, hardware={options.hardware}", ""]
    lines += [
        "`python benchmarks/ranges.py`: SQNR of the worst output on 64 samples that nothing was chosen by, in dB (loss "
        "on the 32 search samples, in nats). Everything in integers and no recovery; `default` is `threshold=mse` with "
        "`precision=auto`, which may give whole ranges to some tensors, or leave nodes in float.",
        "",
    ]
    lines += [f"| model | {' | '.join(options.ways)} |", "|---" * (1 + len(options.ways)) + "|"]
    for name, ways in found.items():
        cells = ["failed" if "failed" in way else f"{way['db']:.1f} ({way['loss']:.2g})" for way in ways.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["*"], help="patterns of names")
    parser.add_argument("--more", type=Path, help="a list of more models (benchmarks/README.md)")
    parser.add_argument("--hardware", default="ort_cpu")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    options = parser.parse_args()
    print(markdown(rows(options), options), end="")


if __name__ == "__main__":
    main()
