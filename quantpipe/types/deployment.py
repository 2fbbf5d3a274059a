"""The part `deployment` of report.json: how the written file is run, for every place that shows it."""

from __future__ import annotations

from typing import TypedDict


class DeploymentPart(TypedDict):
    """How model.onnx is run.

    Attributes:
        file: Its name in the folder realize.
        form: Its form.
        options: Session options of onnxruntime that it needs, by name.
        sentence: The same in words, with what a session without the options would change.
        code: Python that loads the file and runs one sample of zeros, in the folder of the file.
        command: The command line, or the call, that made the run.
        files: The files of every form.
    """

    file: str
    form: str
    options: dict[str, str]
    sentence: str
    code: str
    command: str
    files: list[str]
