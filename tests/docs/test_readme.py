"""What README.md, CONTRIBUTING.md and the pages of docs show is run, and what they point to exists."""

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import nbformat
import pandas as pd
import pytest
from torch.distributed import pipelining
from typer.testing import CliRunner

import pipekit as pk
from pipekit import plots, schedules
from pipekit.cli import app
from pipekit.ledger.ledger import load
from pipekit.parity.judge import parity
from pipekit.parity.suite import ROWS, SUITE
from pipekit.parity.verdict import TOLERANCE, Fault
from pipekit.plots import timeline
from pipekit.schedules import Schedule, parse
from pipekit.schedules.methods.by_name import METHODS, TABLES
from pipekit.traces import Trace

DOCS = tuple(
    f"docs/{name}.md"
    for name in (
        *("start", "train", "your_model", "cost", "methods", "hang"),
        *("staleness", "papers", "about"),
    )
)
PAGES = "README.md", "CONTRIBUTING.md", *DOCS
OTHERS = "docs/from_other_tools.md"
WITH_CODE = (
    "CONTRIBUTING.md",
    *(f"docs/{n}.md" for n in ("start", "train", "your_model", "cost", "methods", "hang", "ops")),
    pytest.param(OTHERS, marks=pytest.mark.long),
)
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^    pipekit (.+)$", re.MULTILINE)


def blocks(page: Path, language: str) -> list[str]:
    return [body for kind, body in BLOCK.findall(page.read_text()) if kind == language]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    # A page may begin a notebook, which sets it: it is put back, though nobody has set it before.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("OMP_NUM_THREADS")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_CODE)
def test_the_code_of_a_page_runs_from_top_to_bottom(
    name: str, repository: Path, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    namespace: dict[str, Any] = {}
    code = blocks(repository / name, "python")
    assert code
    for number, block in enumerate(code, start=1):
        exec(compile(block, f"{name}, block {number}", "exec"), namespace)

    printed = capsys.readouterr().out
    for shown in blocks(repository / name, "text"):
        assert shown in printed


def test_the_first_schedule_of_ones_own_draws_as_a_timeline(repository: Path) -> None:
    picture, _, _ = blocks(repository / "docs/start.md", "text")[0].rpartition("\n(")
    own: Schedule = parse(picture)
    assert "reversed GPipe" in timeline(own).layout.title.text


COMMANDS = [
    command
    for page in ("README.md", *DOCS)
    for command in COMMAND.findall((Path(__file__).parents[2] / page).read_text())
]


@pytest.mark.long
@pytest.mark.slow
def test_the_commands_of_the_readme_run_one_after_the_other(elsewhere: Path) -> None:
    assert COMMANDS
    for command in COMMANDS:
        result = CliRunner().invoke(app, shlex.split(command), catch_exceptions=False)
        assert result.exit_code == 0, f"{command}: {result.output}"
        if "--output" in command:
            assert (elsewhere / shlex.split(command)[-1]).exists()


def test_the_committed_picture_is_what_its_command_draws(repository: Path) -> None:
    committed = pd.read_csv(repository / "results/reference/timelines.csv")
    names = ("gpipe", "flush", "pipedream", "2bw")
    shown = [METHODS[name](4, 4).take(8 if name == "pipedream" else 2) for name in names]
    drawn = [Trace.from_schedule(each).frame.assign(schedule=each.name) for each in shown]
    pd.testing.assert_frame_equal(committed, pd.concat(drawn, ignore_index=True))
    assert (repository / "results/reference/timelines.svg").read_text().startswith("<?xml")
    moving = (repository / "results/reference/moving.svg").read_text()
    assert moving == plots.moving(*shown)


def test_badges_are_true(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    texts = ElementTree.parse(repository / "docs/pictures/badges.svg").findall(".//{*}text")
    assert [each.text for each in texts] == [
        *("python", project["requires-python"], "license", project["license"]),
        *("methods", str(len(TABLES)), "papers' claims", str(len(load()))),
    ]


def test_the_readme_is_short(repository: Path) -> None:
    lines = re.sub(r"<!--.*?-->", "", (repository / "README.md").read_text()).splitlines()
    assert len(lines) <= 100
    assert max(map(len, lines)) <= 220


@pytest.mark.parametrize("name", PAGES)
def test_every_file_that_a_page_names_exists(name: str, repository: Path) -> None:
    text = (repository / name).read_text()
    links = re.findall(r"\]\(([^)#]+)\)", text)
    folders = re.findall(r"^    ([a-z]+/\S*|pipekit/\S+)  ", text, re.MULTILINE)
    for path in [*links, *folders]:
        folder = repository if path in folders else (repository / name).parent
        assert (folder / path).exists(), path


def test_the_readme_names_only_functions_that_exist(repository: Path) -> None:
    rows = re.findall(
        r"`(?:\w+\.)?(\w+)` in \[[^]]+\]\(([^)]+)\)", (repository / "docs/methods.md").read_text()
    )
    assert len(rows) >= 9
    for function, path in rows:
        assert re.search(
            rf"(def|class) {function}\b|\b{function}:", (repository / "docs" / path).read_text()
        )


RESULTS = re.compile(r'^results_dir: str = "([^"]+)"', re.MULTILINE)


def test_papermills_recipes_write_inside_the_repository(repository: Path) -> None:
    """A notebook's folders are relative to where it runs: papermill has to be told where it lies."""
    pages = [*repository.glob("*.md"), *repository.glob("docs/*.md")]
    lines = [line for page in pages for line in page.read_text().splitlines()]
    recipes = [shlex.split(line) for line in lines if re.match(r"\s*papermill ", line)]
    assert recipes
    for recipe in recipes:
        notebook = repository / recipe[1]
        runs_in = repository / recipe[recipe.index("--cwd") + 1]
        cells = nbformat.read(notebook, as_version=4).cells
        (results,) = RESULTS.findall("\n".join(cell.source for cell in cells))
        assert (runs_in / results).resolve().is_relative_to(repository / "results")


def test_every_name_of_ours_and_of_torchs_beside_other_tools_exists(repository: Path) -> None:
    page = (repository / OTHERS).read_text()
    for home, pattern in (
        (schedules, r"\bschedules\.(\w+)"),
        (pk, r"\bpk\.(\w+)"),
        (pk.Pipeline, r"\bpipeline\.(\w+)\("),
    ):
        assert [name for name in re.findall(pattern, page) if not hasattr(home, name)] == []
    named = set(re.findall(r"\bSchedule[A-Z0-9]\w+", page))
    assert named == {name for name in pipelining.__all__ if name.startswith("Schedule")}
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert len(rows) > 30
    assert {row.count("|") for row in rows} == {3}


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs/gradients.md").read_text()


@pytest.mark.long
def test_the_adapter_of_the_page_is_judged_as_the_page_shows(page: str, tmp_path: Path) -> None:
    (_, adapter), (_, shown) = BLOCK.findall(page)[:2]
    file = tmp_path / "adapter.py"
    file.write_text(adapter)
    verdict = parity(f"{file}:Adapter", processes=2, timeout=120)
    first, _, _ = verdict.text.partition("\n")
    assert re.sub(r"within \S+ ulps", "", first) == re.sub(r"within \S+ ulps", "", shown.strip())


def test_the_adapter_has_ten_lines_of_its_own(page: str) -> None:
    _, adapter = BLOCK.findall(page)[0]
    body = [line for line in adapter.partition("class ")[2].splitlines()[1:] if line.strip()]
    assert len([line for line in body if "def " not in line]) <= 10


def test_every_class_and_every_model_is_on_the_page(page: str) -> None:
    text = " ".join(page.split()).replace(", or the first,", "")
    known = {name: value for name, value in vars(Fault).items() if name.isupper()}
    single = {"ONLY_FIRST", "TIED_TWICE", "LATE", "LOST", "STALE", "NOT_FINITE", "CLIPPED_BY_STAGE"}
    for name, fault in known.items():
        assert name in single or fault in text, fault
    for model in SUITE:
        assert f"| `{model}` |" in page
    assert f"{TOLERANCE} ulps" in text
    assert f"every divisor of the rows, {ROWS}" in text
