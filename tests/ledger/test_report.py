"""The report's page: whole, safe, and in need of nothing but itself."""

import json
import re
import shutil
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipekit.ledger import claims
from pipekit.ledger.ledger import load
from pipekit.ledger.outcomes import judge, show
from pipekit.ledger.report import scoreboard, write
from pipekit.ledger.report.scoreboard import sentences

SPEEDUP = "pipedream-table1-vgg16-8A-pp-speedup"
RATIO = "pipedream-table1-vgg16-8A-pp-over-bsp"
CONFIG = "pipedream-table1-vgg16-8A-config"
SVG = "<svg xmlns='http://www.w3.org/2000/svg'><rect width='9' height='9'/></svg>"
HOSTILE = '</td><script>alert("1")</script><img src=http://example.org/x.png>'


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run's folder in which one notebook has recorded four claims."""
    files = tmp_path_factory.mktemp("runs") / "2026-01-31T12-00-00.000000Z" / "table1"
    files.mkdir(parents=True)
    (files / "bars.svg").write_text(SVG)
    (files / "bars.csv").write_text("speedup")
    said = [{"output_type": "stream", "text": [f"pass: {SPEEDUP}: paper 7.04 x\n"]}]
    cells = [{"cell_type": "markdown"}, {"cell_type": "code", "outputs": said, "id": "cell-b"}]
    (files.parent / "table1.ipynb").write_text(json.dumps({"cells": cells}))
    kept: dict[str, Any] = {"results_dir": files, "figure": "bars.svg"}
    claims.record(SPEEDUP, 7.0, "simulated", **kept, seed=11)
    printed = claims.Cause("links of the printed bandwidth", 2.9, "simulated")
    claims.record(RATIO, 0.9, "emulated", **kept, note=HOSTILE, causes=[printed])
    claims.record(CONFIG, HOSTILE, "simulated", results_dir=files)
    claims.record("pipedream-vsync-more-state", [4, 1], "exact", results_dir=files)
    return files.parent


@pytest.fixture(scope="module")
def page(run: Path) -> str:
    return write(claims.outcomes(run), run).read_text(encoding="utf-8")


def card(page: str, id: str) -> str:
    found = re.search(
        rf'<article class="claim [^"]*" id="{re.escape(id)}".*?</article>', page, re.S
    )
    assert found
    return found.group()


def shown_text(html: str) -> str:
    """Return what a reader sees of it."""
    return unescape(" ".join(re.sub(r"<[^>]+>", " ", html).split()))


class TestPage:
    def test_every_claim_has_one_card(self, page: str) -> None:
        ids = re.findall(r'<article class="claim [^"]*" id="([^"]+)"', page)
        assert sorted(ids) == sorted(load())

    def test_a_card_shows_both_values_and_the_outcome_in_words(self, page: str) -> None:
        passed = shown_text(card(page, SPEEDUP))
        for shown in (
            "✔ pass",
            "paper 7.04 x",
            "ours, simulated 7 x",
            "ours over the paper's 0.994",
            "wanted emulated, ours simulated",
            "Passes if within 15 % of the paper's value.",
            "from table1",
            "seed 11",
        ):
            assert shown in passed
        missed = shown_text(card(page, RATIO))
        for shown in ("✘ miss", "0.9 is not within 20 % of 2.99; 0.9 is not above 1"):
            assert shown in missed
        assert "Cause: links of the printed bandwidth" in missed
        assert "✔" not in missed

    def test_the_score_of_each_paper_says_whether_it_was_run(self, page: str) -> None:
        scores = shown_text(page.partition('<div class="scores">')[2].partition("<h2")[0])
        assert f"All papers 2 met, 2 missed of {len(load())} claims 4 are decided" in scores
        assert "PipeDream 2 met, 2 missed decided: 4 of 164, 1 by a weaker kind of number" in scores
        assert "GPipe not run" in scores

    def test_misses_are_grouped_by_cause(self, page: str) -> None:
        causes = page.partition('id="causes"')[2].partition("<section")[0]
        named, unknown = re.findall(r'<details class="cause".*?</details>', causes, re.S)
        assert "links of the printed bandwidth: 1 claim" in shown_text(named)
        assert re.findall(r'href="#([^"]+)"', named) == [RATIO]
        assert "no experiment has found the cause: 1 claim" in shown_text(unknown)
        assert re.findall(r'href="#([^"]+)"', unknown) == [CONFIG]

    def test_hostile_text_stays_text(self, page: str) -> None:
        assert "<script>alert" not in page
        assert "&lt;script&gt;alert" in card(page, RATIO)
        assert "&lt;script&gt;alert" in card(page, CONFIG)

    def test_it_loads_its_runs_pictures_and_nothing_else(self, page: str) -> None:
        loaded = re.findall(r"""<[^>]*\s(?:src|srcset|action|data)\s*=\s*["']?([^"'\s>]+)""", page)
        assert loaded == ["table1/bars.svg"]
        assert "@import" not in page
        assert "url(" not in page
        assert "default-src 'none'" in page

    def test_links_lead_to_the_executed_cell_and_the_numbers(self, page: str, run: Path) -> None:
        links = dict(re.findall(r'<a href="([^"#]+)[^"]*">([^<]+)</a>', card(page, SPEEDUP)))
        for href in links:
            assert (run / href).exists()
        assert [*links.values()] == ["table1.ipynb, cell 2", "bars.csv"]

    def test_a_cell_is_shown_on_the_notebooks_page_where_there_is_one(
        self, run: Path, tmp_path: Path
    ) -> None:
        paged = shutil.copytree(run, tmp_path / "run")
        (paged / "table1.html").touch()
        page = write(claims.outcomes(paged), paged).read_text(encoding="utf-8")
        link = '<a href="table1.html#cell-id=cell-b">table1.ipynb, cell 2</a>'
        assert link in card(page, SPEEDUP)


@pytest.mark.parametrize(
    ("check", "words"),
    [
        ("within 15%", "within 15 % of the paper's value"),
        ("within 20% and above 1", "within 20 % of the paper's value; above 1"),
        ("equal", "equal to the paper's value"),
        ("holds", "found to hold"),
        ("between 0.8 1.2", "between 0.8 and 1.2"),
        ("between [0, null] [1, 2]", "value 1 between 0 and 1, value 2 at most 2"),
        (
            "above [0, null] and between [null, 0] [null, 5]",
            "value 1 above 0; value 2 between 0 and 5",
        ),
        ("3 values and increasing", "3 values; each value above the one before"),
    ],
)
def test_criteria_in_words(check: str, words: str) -> None:
    assert judge(replace(load()[SPEEDUP], check=check), None).passes_if == words


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2.98e-8, "<1e-7"),
        (-0.0, "0"),
        ([None, 3.14159], "–, 3.142"),
        ([12_345.6, True], "12,346, yes"),
    ],
)
def test_values_are_written_for_readers(value: Any, text: str) -> None:
    assert show(value) == text


class TestTable:
    def test_the_csv_has_every_claim_and_our_values_as_json(self, run: Path, page: str) -> None:
        del page  # written for its table
        table = pd.read_csv(run / "report.csv", keep_default_na=False).set_index("id")
        assert list(table.index) == list(load())
        found = table.loc[SPEEDUP, ["ours", "label", "status", "seed"]].tolist()
        assert found == ["7.0", "simulated", "pass", "11.0"]
        assert table.loc["pipedream-vsync-more-state", "ours"] == "[4, 1]"
        assert table.loc["gpipe-eq-bubble", "status"] == "not run"


class TestScoreboard:
    def test_three_sentences_say_what_was_found_and_why_others_miss(self, run: Path) -> None:
        assert sentences([o for o in claims.outcomes(run) if o.record]) == [
            "Of 4 claims: 2 met, 2 missed.",
            "The cause of misses: links of the printed bandwidth (1 claim); "
            "no experiment has found it (1 claim).",
            "Our values are simulated (2), exact (1), emulated (1).",
        ]

    def test_the_papers_table_comes_first_and_cells_lead_to_cards(self, run: Path) -> None:
        table, _, cards = scoreboard(claims.outcomes(run)).partition("<details")
        assert "VGG16, 8 workers, Cluster-A" in table
        assert "7.04 / 7.00 ✔" in shown_text(table)
        assert "2.99 / 0.90 ✘" in shown_text(table)
        assert "9.86 / not run ○" in shown_text(table)
        for cell in re.findall(r'href="#([^"]+)"', table):
            assert f'id="{cell}"' in cards or cell not in (SPEEDUP, RATIO, CONFIG)

    def test_what_a_notebook_wrote_is_text_not_markup(self, run: Path) -> None:
        assert "<script" not in scoreboard(claims.outcomes(run))
