"""Numbers in prose are those of the committed tables; criteria say which were written after values."""

import csv
import io
import re
import subprocess
from pathlib import Path

import pytest

from pipekit.ledger import claims
from pipekit.ledger.numbers import REFERENCE, pages, rendered

TABLE = "what,found,chosen\nmean error,0.0123,False\nworst error,-0.5,True\nother,-0.25,False\n"


@pytest.fixture
def reference(tmp_path: Path) -> Path:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "t.csv").write_text(TABLE)
    return tmp_path


def test_every_number_of_the_pages_is_the_tables(repository: Path) -> None:
    marked = pages(repository)
    assert {repository / "README.md", repository / "docs/cost.md"} <= set(marked)
    for page in marked:
        text = page.read_text(encoding="utf-8")
        assert rendered(text, repository / REFERENCE) == text, f"{page}: run make numbers"


def test_no_line_begins_with_a_mark_which_would_end_its_paragraph(repository: Path) -> None:
    for page in pages(repository):
        cut = re.findall(r"^ *<!-- number:.{30}", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert not cut, f"{page}: put a word before {cut[0]}"


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        ("count what", "3"),
        ("count what, where chosen = False", "2"),
        ("only found, where what = mean error, as .1%", "1.2%"),
        ("worst found, as .2f", "0.50"),
        ("mean_size found, as .4f", "0.2541"),
        ("min found", "-0.5"),
        ("mean found, as .3f", "-0.246"),
    ],
)
def test_a_mark_shows_what_it_asks_for(asked: str, shown: str, reference: Path) -> None:
    text = f"so <!-- number: a/t.csv, {asked} -->old<!-- --> it is"
    assert rendered(text, reference) == text.replace("old", shown)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("a/t.csv, only found", "can only convert"),
        ("a/u.csv, count what", "count what -->1<!-- -->: FileNotFoundError.*u.csv"),
        ("a/t.csv, count that", "KeyError.*that"),
        ("a/t.csv, mode found", "KeyError.*mode"),
        ("a/t.csv", "is not as pipekit.ledger.numbers describes"),
        ("a/t.csv, max found, as q", "Unknown format code"),
    ],
)
def test_what_is_wrong_is_said(asked: str, says: str, reference: Path) -> None:
    with pytest.raises(ValueError, match=says):
        rendered(f"<!-- number: {asked} -->1<!-- -->", reference)


def criteria(text: str) -> dict[str, tuple[str, str, str]]:
    rows = csv.DictReader(io.StringIO(text))
    return {row["id"]: (row["paper"], row["check"], row["target"]) for row in rows}


def test_a_criterion_that_has_changed_says_so(repository: Path) -> None:
    """The first commit with a paper's claims is older than any value of it.

    A claim may say so of itself, too, where its author knew the value.
    """

    def git(*arguments: str) -> str:
        line = ["git", "-C", str(repository), *arguments]
        return subprocess.run(line, check=True, capture_output=True, text=True).stdout

    try:
        is_shallow = git("rev-parse", "--is-shallow-repository").strip() == "true"
        commits = git("log", "--format=%H", "--", "data/claims.csv").split()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this is not a git checkout")
    if is_shallow:
        pytest.skip("this clone has no history")
    versions = [criteria(git("show", f"{commit}:data/claims.csv")) for commit in commits]
    versions.append(criteria((repository / "data/claims.csv").read_text(encoding="utf-8")))
    first = dict[str, dict[str, tuple[str, str, str]]]()  # version, by paper
    for version in reversed(versions[:-1]):
        for paper in {paper for paper, _, _ in version.values()}:
            first.setdefault(paper, version)
    after = {
        id
        for version in versions
        for id, criterion in version.items()
        if criterion != first.get(criterion[0], {}).get(id)
    }
    said = {id for id, claim in claims.load().items() if claim.written == "after"}
    assert after <= said
