"""What the site is made of: every page has its place, links lead somewhere, references say what there is, figures and
figures of other tools are those of the committed results. The site itself is built by .ci/run."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import quantpipe
from quantpipe import errors
from website import artifact_tables, configuration, figures, hardware, interfaces, pages
from website.lists import indented_by_four

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(?<!`)\[[^\]\n]*\]\(([^)\s]+)\)")


def documents() -> list[str]:
    found = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))]
    return [*found, *(file for file in pages.included() if file.endswith(".md"))]


def places(entry: Any) -> list[str]:
    """Every page in a navigation."""
    if isinstance(entry, str):
        return [entry]
    return [place for part in (entry.values() if isinstance(entry, dict) else entry) for place in places(part)]


def test_every_page_is_in_the_navigation_and_everything_there_is_a_page() -> None:
    listed = places(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    written = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    results = {place for place in pages.included().values() if place.startswith("results/")}  # the hook adds them
    made = {pages.CONFIGURATION, pages.HARDWARE, pages.OPS, pages.API, pages.COMMAND_LINE}
    assert set(listed) == written | made | (set(pages.included().values()) - results) | {"results/index.md"}
    assert len(listed) == len(set(listed))


@pytest.mark.parametrize("what", ["files", "anchors"])
def test_links_between_documents_lead_somewhere(what: str) -> None:
    lost = []
    for page in documents():
        text = (ROOT / page).read_text(encoding="utf-8")
        for target in LINK.findall(re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)):
            path, _, anchor = target.partition("#")
            if re.match(r"[a-z]+:", target):
                continue
            full = ROOT / posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else ROOT / page
            if what == "files" and not full.exists():
                lost.append(f"{page}: {target}")
            if what == "anchors" and anchor and full.suffix == ".md" and full.exists() and anchor not in anchors(full):
                lost.append(f"{page}: {target}")
    assert lost == []


def test_links_of_every_page_stay_in_the_site() -> None:
    known = pages.included()
    site = {pages.CONFIGURATION, pages.HARDWARE, pages.OPS, pages.API, pages.COMMAND_LINE, *known.values()}
    site |= {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.*")}
    lost = []
    for file in documents():
        text = (ROOT / file).read_text(encoding="utf-8")
        text = artifact_tables.filled(text) if file == "docs/artifacts.md" else text
        for target in LINK.findall(re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)):
            path = target.partition("#")[0]
            if path and not re.match(r"[a-z]+:", target):
                full = posixpath.normpath(posixpath.join(posixpath.dirname(file), path))
                found = pages.site_path(full, known)
                if found is None or found.partition("#")[0] not in site:
                    lost.append(f"{file}: {target}")
    assert lost == []


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as mkdocs and repositories in a browser make them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    plain = [
        re.sub(r"[^\w\s-]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)).strip().lower() for title in titles
    ]
    return {re.sub(r"[-\s]+", "-", title) for title in plain} | {title.replace(" ", "-") for title in plain}


def test_links_are_rewritten_for_the_place_of_the_page() -> None:
    known = pages.included()

    def at(text: str, file: str, place: str) -> str:
        return pages.rewritten(text, file, place, known)

    assert at("[a](../README.md#more)", "docs/tutorial.md", "tutorial.md") == "[a](index.md#more)"
    assert at("[a](docs/howto/accuracy.md)", "README.md", "index.md") == "[a](howto/accuracy.md)"
    assert at("[a](../../conf/hardware/vta.yaml)", "docs/howto/x.md", "howto/x.md") == (
        "[a](../reference/hardware_files.md#vta)"
    )
    assert at("[a](../conf/search/grid.yaml)", "docs/x.md", "x.md") == "[a](reference/configuration.md#group-search)"
    assert at("[a](results/recovery.md)", "benchmarks/README.md", "results/index.md") == "[a](recovery.md)"
    kept = "[a](https://x.y/z) [b](#c)\n```\n[a](../README.md)\n```\n"
    assert at(kept, "docs/tutorial.md", "tutorial.md") == kept


def test_lists_are_written_as_the_site_reads_them() -> None:
    written = "text:\n1. one\n\n       code\n\n   more\n2. two\n   - inner\n     still\n\nend\n- a\n  b\n"
    read = "text:\n\n1. one\n\n        code\n\n    more\n\n2. two\n    - inner\n        still\n\nend\n\n- a\n    b\n"
    assert indented_by_four(written) == read
    fenced = "```python\n- x\n  y\n```\n\n- z\n\n  ```python\n  - x\n  ```\n"
    assert indented_by_four(fenced) == "```python\n- x\n  y\n```\n\n- z\n\n    ```python\n    - x\n    ```\n"


def test_the_configuration_reference_has_every_key_with_its_comment_and_default() -> None:
    page = configuration.page()
    for path in sorted(configuration.CONF.glob("*/*.yaml")):
        if path.parent.name == "hardware":
            continue
        assert f"### {path.parent.name}={path.stem} " in page
        for place in leaves(yaml.safe_load(path.read_text())):
            if not {"_target_", "_convert_", "name"} & set(place):
                assert f"`{'.'.join((path.parent.name, *place))}`" in page, (path, place)
        for key in configuration.keys(path, (path.parent.name,)):
            assert key.comment or key.path[0] == "schema" or key.path[-1] == "name", (path.name, key.name)
    top = {key.name: key for key in configuration._top_keys()}
    assert top["annotate.min_bits"].default == "4" and top["annotate.min_bits"].kind == "int"
    assert top["annotate.min_bits"].comment == "minimum of every choice of bits"
    assert [name for name, key in top.items() if not key.comment] == []
    greedy = {key.name: key for key in configuration.keys(configuration.CONF / "search" / "greedy.yaml", ("search",))}
    assert greedy["search.max_evaluations"].default == "400"
    assert greedy["search.max_evaluations"].comment.startswith("distinct points")


def leaves(content: Any, place: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if isinstance(content, dict) and content:
        return [leaf for key, value in content.items() for leaf in leaves(value, (*place, str(key)))]
    return [place]


def test_a_key_without_a_comment_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("# head\nname: x\nfirst: 1 # said\n# above\nsecond:\n  third: [a, b]\nfourth: null\n")
    found = {key.name: (key.default, key.comment) for key in configuration.keys(path)}
    assert found["first"] == ("1", "said") and found["second.third"] == ("[a, b]", "above") and found["fourth"][1] == ""


def test_the_other_references_name_all_there_is() -> None:
    listed = hardware.page()
    for path in (configuration.CONF / "hardware").glob("*.yaml"):
        assert f"## {path.stem} " in listed and f"| [`{path.stem}`](#{path.stem}) |" in listed
    api = interfaces.api()
    assert [name for name in quantpipe.__all__ if f"quantpipe.api.{name}\n" not in api] == ["__version__"]
    lines = interfaces.command_line()
    assert f"| `{errors.AgreementError.__name__}` | 3 |" in lines and "command=check" in lines


def test_the_keys_of_the_artifacts_page_are_those_of_the_types() -> None:
    text = artifact_tables.PAGE.read_text(encoding="utf-8")
    assert artifact_tables.undescribed(text) == []
    site = artifact_tables.filled(text)
    assert site.count("| key | meaning |") - text.count("| key | meaning |") >= 37 and "\nKeys: [" not in site
    assert "\n| `doubts` | objections to the samples" in site
    assert "| `agreement` | comparison of simulated and realized integers ([keys](#agreement)) |" in site


SOURCE = """
class Row(TypedDict):
    # the first
    first: int
    # `second`, `third`: of these
    # two
    second: int
    third: int
    fourth: int
"""


def test_a_key_that_no_comment_describes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(["first"], "the first"), (["second", "third"], "of these two"), (["fourth"], "")]
    assert artifact_tables.rows_of(SOURCE, "Row") == rows
    text, real = artifact_tables.PAGE.read_text(encoding="utf-8"), artifact_tables.rows

    def planted(kind: Any) -> list[artifact_tables.Row]:
        lost = {"doubts": "", "latency": "`ratio`"}  # a key without a meaning, and a part whose keys are not named
        return [(keys, lost.get(keys[0], said)) for keys, said in real(kind)]

    monkeypatch.setattr(artifact_tables, "rows", planted)
    assert {"RunReport.doubts", "LatencyPart.threads"} <= set(artifact_tables.undescribed(text))


def test_figures_are_what_the_results_say() -> None:
    for name, draw in figures.FIGURES.items():
        stored = (ROOT / "docs" / "figures" / f"{name}.svg").read_text(encoding="utf-8")
        assert stored == draw(), f"docs/figures/{name}.svg is not up to date: python -m website.figures"


MODELS = {"ResNet-20": ("resnet20", "cifar10_resnet20"), "EfficientNet-Lite0": ("lite0", "imagenet_efficientnet_lite0")}
TOOLS = {"onnxruntime": "ort", "NNCF": "nncf", "AIMET": "aimet-onnx", "Quark": "quark", "esp-ppq": "esp-ppq"}
SETTINGS = {
    "W8A8 per channel": ("s1", "W8A8 per channel (ort_cpu)"),
    "W8A8 per tensor": ("s4", "W8A8 per tensor, symmetric (ort_cpu)"),
    "W8A8 per tensor, powers of two": ("s2", "W8A8 per tensor, powers of two (vta)"),
    "W4A8": ("s3", "W4A8, weights per channel (int4_weights)"),
}


def test_the_table_beside_other_tools_is_in_the_results() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8").split("## Compared with other tools")[1].split("\n## ")[0]
    table = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("|")
    ]
    head, body = table[0], table[2:]
    peers = (ROOT / "benchmarks" / "results" / "peers.md").read_text(encoding="utf-8").splitlines()
    checked = 0
    for row in body:
        (short, long), (variant, setting) = MODELS[row[0]], SETTINGS[row[1]]
        assert own(long, setting) == row[2], row
        for tool, cell in zip(head[3:], row[3:], strict=True):
            if re.match(r"\d", cell):
                start = f"| {short} | {TOOLS[tool]} | {variant}"
                values = {line.split("|")[4].strip() for line in peers if line.startswith(start)}
                assert cell.split()[0] in values, (row[0], row[1], tool)
                checked += 1
    assert checked >= 20


def own(model: str, setting: str) -> str:
    """quantpipe's figure in the results."""
    (row,) = [row for row in figures.rows("recovery") if row["model"] == model and row["setting"] == setting]
    return row["after"].split()[0]
