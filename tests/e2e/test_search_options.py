"""What a user can ask of a search: forms of the objective, costs, limits on choices, targets, replay by number."""

from __future__ import annotations

import hashlib
import json
import signal
import time
from pathlib import Path

import pytest

from tests.e2e.program import Program, Result, read

SMALL = ("annotate.min_bits=3", "objective.cost=bits")
TRIAL = ("strategy=run/search/trials.jsonl",)


def trials(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "search" / "trials.jsonl").read_text().splitlines()[1:]]


def sealed(row: dict[str, object], origin: dict[str, str]) -> str:
    """A line of a trial log of this origin, with the digest that the log's documentation names."""
    fields = {key: value for key, value in row.items() if key != "digest"}
    text = json.dumps([origin, fields], sort_keys=True, separators=(",", ":"))
    return json.dumps({**fields, "digest": "sha256:" + hashlib.sha256(text.encode()).hexdigest()})


@pytest.fixture(scope="module")
def pareto(tmp_path_factory: pytest.TempPathFactory, zygote: object) -> tuple[Program, Result]:
    from tests.e2e.program import Zygote

    assert isinstance(zygote, Zygote)
    program = Program(tmp_path_factory.mktemp("pareto"), zygote)
    return program, program.run(*SMALL, "objective.form=pareto", "search=knapsack", "search.max_evaluations=60")


def test_a_pareto_run_stores_its_front_and_another_pick_measures_nothing(pareto: tuple[Program, Result]) -> None:
    program, first = pareto
    assert first.code == 0, first.err
    table = read(first.folder / "search" / "pareto.json")
    rows = table["front"]
    assert len(rows) >= 5
    costs, values = [r["cost"] for r in rows], [r["value"] for r in rows]
    assert costs == sorted(costs) and values == sorted(values)
    for row in trials(first.folder):
        assert not any(r["cost"] > row["cost"] and r["value"] <= float(str(row["value"])) for r in rows)  # type: ignore[operator]
    (picked,) = (r for r in rows if r["picked"])
    assert picked["number"] == first.report["search"]["picked"]
    stored = read(first.folder / "search" / picked["strategy"])
    assert stored["strategy"] == first.strategy
    before = trials(first.folder)
    within = program.run(
        *SMALL,
        "objective.form=pareto",
        "search=knapsack",
        "objective.cost=bits",
        "search.max_evaluations=60",
        "pick=within:0.05",
    )
    assert within.code == 0, within.err
    assert trials(within.folder) == before, "no new search"
    expected = min((r for r in rows if r["value"] >= -0.05), key=lambda r: r["cost"])
    assert within.report["search"]["picked"] == expected["number"]
    assert within.report["search"]["best_cost"] == expected["cost"]
    assert within.report["agreement"]["differing"] == 0
    replayed = program.run(*SMALL, "command=replay", f"strategy=run/search/{picked['strategy']}", folder="replayed")
    assert replayed.code == 0, replayed.err
    assert replayed.strategy == stored["strategy"]


def test_a_pick_that_nothing_meets_says_so(pareto: tuple[Program, Result]) -> None:
    program, _ = pareto
    result = program.run(
        *SMALL,
        "objective.form=pareto",
        "search=knapsack",
        "objective.cost=bits",
        "search.max_evaluations=60",
        "pick=within:0.0001",
    )
    assert "near enough for pick=within:0.0001" in result.report["warnings"][0]
    assert "knee, within:X" in program.run("pick=elbow", folder="elbow").paragraph
    assert "search.target" in program.run("objective.form=pareto", "search.target=1", folder="target").paragraph


def test_a_trial_is_replayed_by_its_number(pareto: tuple[Program, Result]) -> None:
    program, first = pareto
    row = trials(first.folder)[17]
    result = program.run(*SMALL, "command=replay", *TRIAL, "replay.trial=17", folder="seventeen")
    assert result.code == 0, result.err
    assert result.report["search"]["trial"] == 17
    assert result.report["cost"]["bits"] == row["cost"]
    assert result.report["agreement"]["differing"] == 0
    chosen = {f"bits:{c['key']}": c["value"] for c in result.report["choices"]}
    assert chosen == row["choices"]
    # The simulated model loses on the search samples what the log says.
    assert result.report["generalization"]["search"] == pytest.approx(-float(str(row["value"])), rel=1e-6)
    replay = (*SMALL, "command=replay")
    assert "holds no trial 999" in program.run(*replay, *TRIAL, "replay.trial=999", folder="x").paragraph
    assert "replay.trial" in program.run(*replay, *TRIAL, "replay.trial=-1", folder="x").paragraph
    other = program.run("hardware=vta", "command=replay", *TRIAL, "replay.trial=17", folder="y").paragraph
    assert "another hardware" in other and "annotate" in other


@pytest.mark.slow
def test_a_strategy_of_another_model_is_replayed_by_force_only(pareto: tuple[Program, Result]) -> None:
    program, first = pareto
    payload = read(first.folder / "search" / "strategy.json")
    del payload["origin"]
    payload["strategy"]["model_hash"] = "sha256:" + "0" * 64
    (program.cwd / "other.json").write_text(json.dumps(payload))
    lines = (first.folder / "search" / "trials.jsonl").read_text().splitlines()
    origin = json.loads(lines[0])["origin"] | {"model": "sha256:0", "calibrate_data": "sha256:0"}
    rows = [json.loads(lines[0]) | {"origin": origin}, *(json.loads(line) for line in lines[1:])]
    (program.cwd / "log").mkdir()
    (program.cwd / "log" / "trials.jsonl").write_text("".join(f"{sealed(row, origin)}\n" for row in rows))
    for number, strategy in enumerate((("other.json",), ("log/trials.jsonl", "replay.trial=3"))):
        replay = (*SMALL, "command=replay", f"strategy={strategy[0]}", *strategy[1:])
        assert "another model" in program.run(*replay, folder=f"refused{number}").paragraph
        result = program.run(*replay, "replay.force=true", folder=f"forced{number}")
        assert result.code == 0, result.err
        assert "replay.force" in result.err and "its names fit" in result.err
        assert result.strategy["model_hash"] == first.strategy["model_hash"], "it is this model's strategy now"
        again = program.run(*replay, "replay.force=true", folder=f"forced{number}")
        assert again.code == 0, again.err
    del payload["strategy"]["thresholds"]["image"]
    (program.cwd / "other.json").write_text(json.dumps(payload))
    broken = program.run(*SMALL, "command=replay", "strategy=other.json", "replay.force=true", folder="broken")
    assert "it has no entry for image" in broken.paragraph


def test_limits_on_choices(program: Program) -> None:
    limits = (r"choices.fix={bits\:stem*:4}", r"choices.restrict={bits\:*:[8,4]}", "choices.freeze=[bits:image]")
    result = program.run("search=random", "objective.cost=bits", "search.max_evaluations=12", *limits)
    assert result.code == 0, result.err
    space = {c["key"]: c["options"] for c in read(result.folder / "annotate" / "choices.json")["choices"]}
    assert space["bits:image"] == [8]
    assert {tuple(o) for k, o in space.items() if k.startswith("bits:stem")} == {(4,)}
    assert {tuple(o) for k, o in space.items() if "stem" not in k and k != "bits:image"} == {(8, 4)}
    pinned = {k: o[0] for k, o in space.items() if len(o) == 1}
    assert result.report["search"]["pinned"] == pinned
    assert read(result.folder / "search" / "strategy.json")["results"]["search"]["pinned"] == pinned
    for row in trials(result.folder):
        assert all(row["choices"][k] == v for k, v in pinned.items())  # type: ignore[index]
    chosen = {f"bits:{c['key']}": c["value"] for c in result.report["choices"]}
    assert all(chosen[k] == v for k, v in pinned.items())
    assert "matches no choice" in program.run(r"choices.fix={bits\:nope:4}", folder="x").paragraph
    assert "leaves" in program.run(r"choices.fix={bits\:image:9}", folder="y").paragraph
    assert "is no option" in program.run("+choices.pins=1", folder="z").paragraph


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["process", "ray"])
def test_a_function_of_the_users_own_in_other_processes(program: Program, executor: str) -> None:
    """It travels by name; the points decide on the topology, too."""
    if executor == "ray":
        pytest.importorskip("ray", reason="the extra ray is not installed")
    (program.cwd / "scores.py").write_text(
        "import numpy as np\ndef margin(reference, outputs, labels):\n"
        "    return -float(np.mean(np.abs(reference - outputs)))\n"
    )
    own = ("objective=callable", "objective.target=scores:margin", "plugins=[scores]", "annotate.choices=[bits,float]")
    given = (*own, "search=random", "objective.cost=bits", "search.max_evaluations=6", "stages=[search]")
    alone = program.run(*given, folder="alone")
    several = program.run(*given, f"executor={executor}", "executor.workers=2", folder="several")
    assert (alone.code, several.code) == (0, 0), several.err
    timed = {"seconds", "digest"}  # the digest is one of the whole line, with its seconds
    rows = [[{k: v for k, v in row.items() if k not in timed} for row in trials(r.folder)] for r in (alone, several)]
    assert rows[0] == rows[1] and len(rows[0]) == 6


def test_a_function_of_the_users_own(program: Program) -> None:
    """The package's own KL, negated nowhere: the function is called with (reference, outputs, labels)."""
    target = "objective.target='quantpipe.metrics.outputs:summary'"
    failed = program.run("objective=callable", target, folder="x").paragraph
    assert "summary(reference_outputs, outputs, labels) must give a number" in failed
    assert "is not allowed" in program.run("objective=callable", "objective.target=os:getcwd", folder="y").paragraph
    assert "objective.target" in program.run("objective=callable", folder="z").paragraph
    unknown = program.run("objective=callable", "objective.target=quantpipe.search:nope", folder="w").paragraph
    assert "cannot be imported" in unknown


@pytest.mark.slow
def test_weighted_and_peak_of_activations(program: Program) -> None:
    result = program.run(
        *SMALL, "search=knapsack", "objective.form=weighted", "objective.weight=2", "search.max_evaluations=60",
        "objective.cost=peak_activation_bytes",
    )  # fmt: skip
    assert result.code == 0, result.err
    rows = trials(result.folder)
    start = float(str(rows[0]["cost"]))

    def utility(row: dict[str, object]) -> float:
        return float(str(row["value"])) - 2 * float(str(row["cost"])) / start

    best = max(rows, key=utility)
    found = result.report["search"]
    assert found["best_value"] - 2 * found["best_cost"] / start == pytest.approx(utility(best))
    assert result.report["cost"]["peak_activation_bytes"] == found["best_cost"] < start


BITS = "annotate.choices=[bits]"
"""Also those that the device gains nothing from, so that there is something to search."""


def test_measured_latency_is_a_cost(program: Program) -> None:
    options = ("objective.cost=latency", "objective.latency_runs=5", "search=random", "objective.tolerance=1", BITS)
    result = program.run(*options, "search.max_evaluations=4", "search.algorithm.batch=3")
    assert result.code == 0, result.err
    rows = trials(result.folder)
    assert all(float(str(r["cost"])) > 0 and r["metrics"]["realized_ms"] > 0 for r in rows)  # type: ignore[index]
    again = program.run(*options, "search.max_evaluations=6", "search.algorithm.batch=3")
    assert trials(again.folder)[:4] == rows, "what was measured once counts"
    assert len(trials(again.folder)) == 6


def test_a_target_ends_the_search(program: Program) -> None:
    options = ("hardware=ort_cpu", "search=greedy_backward", "objective.cost=bits")
    result = program.run(*options, "search.target=0.7")
    assert result.code == 0, result.err
    assert result.report["search"]["stopped"] == "target"
    rows = trials(result.folder)
    limit = 0.7 * float(str(rows[0]["cost"]))
    assert result.report["search"]["best_cost"] <= limit
    assert all(float(str(r["cost"])) > limit or float(str(r["value"])) < -0.02 for r in rows[:-1])


@pytest.mark.parametrize(
    "search",
    ["tpe", pytest.param("evolutionary", marks=pytest.mark.slow), pytest.param("surrogate", marks=pytest.mark.slow)],
)
def test_model_based_searches_run_and_resume(program: Program, search: str) -> None:
    small = program.run(f"search={search}", "search.max_evaluations=9", "stages=[calibrate,search]")
    assert small.code == 0, small.err
    large = program.run(f"search={search}", "search.max_evaluations=16")
    assert large.code == 0, large.err
    assert large.report["search"]["algorithm"] == search
    fresh = program.run(f"search={search}", "search.max_evaluations=16", "stages=[calibrate,search]", folder="fresh")
    assert large.strategy == fresh.strategy
    assert [r["point"] for r in trials(large.folder)] == [r["point"] for r in trials(fresh.folder)]


@pytest.mark.slow
def test_sigterm_keeps_what_was_measured(program: Program) -> None:
    options = ("search=tpe", "objective.cost=bits", "search.max_evaluations=400", "hardware=ort_cpu")
    process = program.start(*options)
    log = program.cwd / "run" / "search" / "trials.jsonl"
    deadline = time.monotonic() + 120
    while not (log.is_file() and log.read_bytes().count(b"\n") > 6):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "Resume with: " in err and "Traceback" not in err
    kept = len(trials(program.cwd / "run"))
    resumed = program.run("search=tpe", "objective.cost=bits", f"search.max_evaluations={kept + 2}", "hardware=ort_cpu")
    assert resumed.code == 0, resumed.err
    assert len(trials(resumed.folder)) == kept + 2


@pytest.mark.slow
def test_the_report_says_whether_the_result_carries_over(program: Program) -> None:
    """Four search samples and a search that fits them: the report shows both losses, and warns when they part."""
    result = program.run("search=knapsack", "dataset.samples.search=6", "search.max_evaluations=120", *SMALL,
                         "objective.form=best_value_within_cost", "objective.cost_limit=0.9")  # fmt: skip
    assert result.code == 0, result.err
    found = result.report["generalization"]
    assert (found["metric"], found["search_samples"], found["report_samples"]) == ("kl", 6, 607)
    assert found["report"] == pytest.approx(result.report["metrics"]["simulated"]["kl"])
    assert found["parted"] == (found["difference"] > 2 * found["standard_error"])
    said = [w for w in result.report["warnings"] if "does not carry over" in w]
    assert bool(said) == found["parted"] == ("does not carry over" in result.err)
    assert "Carried over" in (result.folder / "evaluate" / "report.html").read_text()
