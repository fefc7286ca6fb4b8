"""The report's page: whole, safe, and in need of nothing but itself."""

import base64
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipekit.ledger import claims
from pipekit.ledger.ledger import load
from pipekit.ledger.report import destination, frame, write

SPEEDUP = "pipedream-table1-vgg16-8A-pp-speedup"
RATIO = "pipedream-table1-vgg16-8A-pp-over-bsp"
CONFIG = "pipedream-table1-vgg16-8A-config"
SVG = "<svg xmlns='http://www.w3.org/2000/svg'><rect width='9' height='9'/></svg>"
HOSTILE = '</td><script>alert("1")</script><img src=http://example.org/x.png>'


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a run's folder in which one notebook has recorded four claims."""
    files = tmp_path / "2026-01-31T12-00-00.000000Z" / "table1"
    files.mkdir(parents=True)
    (files.parent / "provenance.json").write_text("{}")
    (files / "bars.svg").write_text(SVG)
    kept: dict[str, Any] = {"results_dir": files, "figure": "bars.svg"}
    claims.record(SPEEDUP, 7.0, "simulated", **kept, seed=11)
    claims.record(RATIO, 0.9, "emulated", **kept, note=HOSTILE)
    claims.record(CONFIG, HOSTILE, "simulated", results_dir=files)
    claims.record("pipedream-vsync-more-state", [4, 1], "exact", results_dir=files)
    return files.parent


@pytest.fixture
def page(run: Path) -> str:
    return write(claims.outcomes(run), run).read_text(encoding="utf-8")


def row(page: str, id: str) -> str:
    found = re.search(rf'<tr class="claim" id="{re.escape(id)}".*?</tr>', page, re.DOTALL)
    assert found
    return found.group()


class TestPage:
    def test_every_claim_has_its_row(self, page: str) -> None:
        assert re.findall(r'<tr class="claim" id="([^"]+)"', page) != []
        assert set(re.findall(r'<tr class="claim" id="([^"]+)"', page)) == set(load())

    def test_a_row_shows_both_values_and_the_outcome_in_words(self, page: str) -> None:
        passed = row(page, SPEEDUP)
        for shown in ("✔", "pass", "7.04", ">7<", "0.994", "wanted emulated, ours simulated"):
            assert shown in passed
        for shown in ("from table1", "<dt>seed</dt><dd>11</dd>", "<dt>utc</dt>", "<dt>commit</dt>"):
            assert shown in passed
        missed = row(page, RATIO)
        for shown in ("✘", "miss", "0.9 is not within 20% of 2.99; 0.9 is not above 1"):
            assert shown in missed
        assert "✔" not in missed

    def test_what_was_not_run_or_is_out_of_reach_says_so(self, page: str) -> None:
        assert "not run" in row(page, "gpipe-eq-bubble")
        away = row(page, "pipedream-sec52-asp-7-4x")
        assert "out of reach" in away
        assert "see pipedream-sec2-asp-statistical" in away

    def test_the_summary_counts(self, page: str) -> None:
        summary = page.partition("<tbody>")[2].partition("</tbody>")[0]
        first = summary.partition("</tr>")[0]
        out_of_reach, preset = unreached("pipedream")
        left = 164 - 4 - out_of_reach - preset
        counted = [2, 2, 0, 0, 0, preset, left, out_of_reach, 164]
        shares = ["2 %", "50 %"]  # decided, 4 of 164; of them met
        weaker = "1"  # simulated, wanted emulated
        cells = re.findall(r'<td class="number">([^<]*)</td>', first)
        assert cells == [*map(str, counted), *shares, weaker]

    def test_what_cannot_be_confirmed_gives_its_reason(self, page: str) -> None:
        preset = row(page, "pipedream-batch-sizes")
        assert "what the authors chose" in preset
        assert "wanted" not in preset

    def test_repeats_show_their_spread(self, run: Path) -> None:
        near = [5.9, 6.0, 6.1]  # 15 % below 7.04 is 5.984
        claims.record(SPEEDUP, 6.0, "emulated", results_dir=run / "table1", repeats=near)
        page = write(claims.outcomes(run), run).read_text(encoding="utf-8")
        undecided = row(page, SPEEDUP)
        for shown in ("undecided", "6 ± 0.35", "the criterion lies within the spread of 3 repeats"):
            assert shown in undecided

    def test_hostile_text_stays_text(self, page: str) -> None:
        assert "<script>alert" not in page
        assert "&lt;script&gt;alert" in row(page, RATIO)
        assert "&lt;script&gt;alert" in row(page, CONFIG)

    def test_it_loads_nothing_from_anywhere(self, page: str) -> None:
        loaded = re.findall(
            r"""<[^>]*\s(?:src|href|srcset|action|data)\s*=\s*["']?([^"'\s>]+)""", page
        )
        assert loaded != []
        assert [link for link in loaded if not link.startswith(("#", "data:image/"))] == []
        assert "@import" not in page
        assert "url(" not in page
        assert "default-src 'none'" in page

    def test_a_figure_is_embedded_once_for_all_its_claims(self, page: str) -> None:
        data = base64.b64encode(SVG.encode()).decode()
        assert page.count(data) == 1
        caption = page.partition(data)[2].partition("</figcaption>")[0]
        assert "made by table1 in the run 2026-01-31T12-00-00.000000Z" in caption
        assert re.findall(r'href="#([^"]+)"', caption) == [SPEEDUP, RATIO]
        assert 'href="#figure-1"' in row(page, SPEEDUP)
        assert "figure-1" not in row(page, CONFIG)

    def test_a_figure_that_is_gone_is_left_out(self, run: Path) -> None:
        (run / "table1" / "bars.svg").unlink()
        page = write(claims.outcomes(run), run).read_text(encoding="utf-8")
        assert "<figure" not in page

    def test_with_nothing_recorded_there_is_still_a_page(self, tmp_path: Path) -> None:
        page = write(claims.outcomes(tmp_path), tmp_path).read_text(encoding="utf-8")
        assert "no run has recorded any" in page
        assert "0 of 490 claims" in page


def unreached(paper: str) -> tuple[int, int]:
    """Return how many claims of a paper are out of reach, and how many are presets."""
    theirs = [claim for claim in load().values() if claim.paper == paper]
    preset = sum(bool(claim.preset) for claim in theirs)
    return sum(claim.out_of_reach and not claim.preset for claim in theirs), preset


class TestTable:
    def test_the_csv_has_every_claim_and_our_values_as_json(self, run: Path, page: str) -> None:
        del page  # written for its table
        table = pd.read_csv(run / "report.csv", keep_default_na=False).set_index("id")
        assert list(table.index) == list(load())
        assert table.loc[SPEEDUP, ["ours", "label", "status", "seed"]].tolist() == [
            "7.0",
            "simulated",
            "pass",
            "11.0",
        ]
        assert table.loc["pipedream-vsync-more-state", "ours"] == "[4, 1]"
        assert table.loc["gpipe-eq-bubble", "status"] == "not run"

    def test_it_is_the_frame(self, run: Path) -> None:
        assert len(frame(claims.outcomes(run))) == 490


class TestDestination:
    def test_a_run_keeps_its_own_report(self, run: Path) -> None:
        assert destination(run) == run

    def test_of_several_runs_the_newest_gets_it(self, run: Path) -> None:
        newer = run.with_name("2026-02-01T00-00-00.000000Z")
        newer.mkdir()
        assert destination(run.parent) == run, "a folder without provenance.json is no run"
        (newer / "provenance.json").write_text("{}")
        assert destination(run.parent) == newer

    def test_a_folder_without_runs_gets_it_itself(self, tmp_path: Path) -> None:
        assert destination(tmp_path) == tmp_path


def test_who_reads_results_does_not_wait_for_torch() -> None:
    code = "import sys, pipekit.ledger.report; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
