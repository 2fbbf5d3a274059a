"""What is wrong with a run or a file is said by the command; what is advised is run, and gives what was promised."""

from __future__ import annotations

import json

from tests.e2e.program import Program, read
from tests.explain.test_files import made, prepared

SET = (
    *("experiment=vta_digits", "search=random", "annotate.choices=[bits]", "recover=none"),
    *("precision=none", "threshold=max_range"),
)
CLOSENESS = ("explain.culprits=1", "explain.samples=16")


def test_a_run_is_explained_and_what_is_advised_is_run(program: Program) -> None:
    """experiment= is the word of other programs for experiments=."""
    first = program.run(*SET, "evaluate.explain=auto")
    assert first.code == 0 and first.report["run"]["hardware"] == "vta"
    last = first.out.split("files   ")[1]
    assert "lost    mostly at " in last and "recover=default" in last.split("fix     ")[1]
    assert f"command=explain explain.run={first.folder}" in last
    program.env["COLUMNS"] = "80"
    result = program.bare("command=explain", "explain.run=run", *CLOSENESS, "explain.apply=2")
    assert result.code == 0, result.err
    assert "recover=default" in result.out
    assert max(map(len, result.out.split("What would fix it")[0].splitlines())) <= 80
    folder = first.folder / "explained"
    after = read(folder / "run" / "evaluate" / "report.json")
    assert after["metrics"]["realized"]["kl"] < 0.5 * first.report["metrics"]["realized"]["kl"]
    promised = read(first.folder / "explain.json")["advice"][0]
    assert promised["overrides"][0].partition("=")[0] in (folder / "experiments" / "explained.yaml").read_text()
    compared = read(folder / "compare.json")
    assert [run["label"] for run in compared["runs"]] == ["A", "B"] and compared["best"] == "B"
    strategy = f"strategy={first.folder / 'search' / 'strategy.json'}"
    alone = program.bare("command=explain", strategy, *SET, *CLOSENESS, f"hydra.run.dir={program.cwd / 'answer'}")
    assert alone.code == 0, alone.err
    assert read(program.cwd / "answer" / "explain.json")["causes"] == read(first.folder / "explain.json")["causes"]
    for arguments in ([], [strategy, "explain.run=run"], ["explain.run=away"], ["explain.run=run", "hardware=vta"]):
        wrong = program.bare("command=explain", *arguments)
        assert wrong.code == 2 and wrong.err.startswith("error: "), wrong.out
        assert len(wrong.err.strip().splitlines()) == 1


def test_a_file_is_explained(program: Program) -> None:
    folder = program.cwd / "answer"

    def call(*arguments: str) -> tuple[int, str, str]:
        found = program.bare("command=explain", *arguments, f"hydra.run.dir={folder}")
        return found.code, found.out, found.err

    file = made("qdq")
    code, out, err = call(f"explain.file={file}", f"model.path={prepared()}", *CLOSENESS)
    assert code == 0, err
    assert "qdq.onnx (QDQ) compared with float.onnx" in out
    code, out, err = call(f"explain.file={file}", f"model.path={prepared()}", *CLOSENESS, "check.format=json")
    told, stored = json.loads(out), read(folder / "explain.json")
    assert told["file"] == stored["file"] == str(file) and told["causes"] == stored["causes"]
    code, _, err = call(f"explain.file={file}", "model=digits_vit")
    assert code == 2
    assert err.strip().splitlines()[-1].startswith("error: ") and "is not made from" in err
    code, _, err = call(f"explain.file={file}", f"explain.run={folder}")
    assert code == 2 and "explain.file=FILE" in err
