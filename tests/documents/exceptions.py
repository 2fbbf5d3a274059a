"""What the documents show and tests do not run, each with the reason; and what stands for a reader's own names."""

from __future__ import annotations

from dataclasses import replace

from tests.documents.collect import Command

OTHER_PROGRAMS = {
    "pip install": ".ci/run begins with it, in a fresh environment",
    "python -m pip install": "packages for a release, from the registry",
    "fresh/bin/": "a release: the wheel in an environment of its own",
    "python -m venv": "a release: the wheel in an environment of its own",
    "python -m build": "a release",
    "python -m twine": "a release",
    "git ": "a release: changes the repository",
    ".ci/run": "runs these tests itself",
    "SLOW=1 .ci/run": "runs these tests itself",
    "pytest": ".ci/run runs it",
    "ruff": ".ci/run runs it",
    "mypy": ".ci/run runs it",
    "lint-imports": ".ci/run runs it",
    "mkdocs": ".ci/run runs it, with the packages of the extra docs",
    "pre-commit": "changes the clone's hooks",
    "mlflow ui": "a server that does not end",
    "mlflow server": "a server that does not end",
    "ray ": "starts a cluster; tests/executors/test_ray.py has one of two nodes",
    "export RAY_AUTH_MODE": "for the commands after it",
    "srun ": "needs a SLURM cluster",
    "mlflow run": "files in MLflow; tests/e2e/test_sync.py runs it",
    "mkdir": "run as part of its page",
    "python -m quantpipe.verify": "run as part of its page",
}
"""Beginnings of command lines of other programs, and why they are not run on their own."""

NOT_RUN = {
    "MODEL": "needs EfficientNet-Lite0 and its images",
    "search.max_seconds=170": "takes minutes",
    "command=export_vectors": "needs a finished run; tests/e2e/test_conformance.py runs it",
    "command=identify": "needs vectors and a dump; tests/e2e/test_conformance.py runs it",
    "dump=": "needs vectors and a dump; tests/e2e/test_conformance.py runs it",
    "decoder.onnx": "needs a decoder and its tokenizer; tests/data/test_decoder_texts.py reads such texts",
    "command=sync": "files in MLflow; tests/e2e/test_sync.py runs it",
    "executor=ray": "needs the extra ray; tests/executors runs it where it is installed",
    "tracking.uri=http": "needs a server of MLflow",
    "hydra/launcher=": "needs a launcher's extra; tests/e2e/test_multirun.py runs it where there is one",
}
"""Parts of command lines of quantpipe that make them too much for a test; their overrides are composed all the same."""

SHORTENED = {
    "command=explain": ("explain.culprits=2", "explain.samples=16"),
    "experiments=estimators_digits": ("threshold=mse",),
    "experiments=deployable_digits": ("hardware=tensorrt", "train=lsq", "train.epochs=1"),
    "dataset=digits_detect": (
        "dataset.samples.calibrate=32",
        "dataset.samples.search=32",
        "dataset.samples.evaluate=32",
    ),
    "dataset=tiny_text": ("dataset.samples.calibrate=8", "dataset.samples.search=8", "dataset.samples.evaluate=8"),
    "objective.cost_limit=145000": ("search.max_evaluations=4",),
}
"""Parts of command lines -> overrides that leave less of a sweep, fewer samples or culprits."""

PLACEHOLDERS = {
    "MODEL": "",
    "search=NAME": "search=random",
    "hardware=NAME": "hardware=vta",
    "experiments=NAME": "experiments=vta_digits",
    "hardware=mine": "hardware=vta",
    "realize=mine": "realize=integer",
    "search=clever": "search=random",
}
"""Words that stand for a reader's own -> a word of the same kind."""

SHOWN_AS_WRONG = {"+search.foo=1"}
"""Overrides that a page shows as an example of a mistake."""


def filled(command: Command) -> Command:
    """With a word of the program's own in the place of each of the reader's."""
    text = command.text
    for placeholder, word in PLACEHOLDERS.items():
        text = text.replace(placeholder, word)
    return replace(command, text=text)
