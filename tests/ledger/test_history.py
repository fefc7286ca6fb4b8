"""Which criteria were written when values were known, by the history of data/claims.csv."""

import csv
import io
import subprocess
from pathlib import Path

import pytest

from pipekit.ledger import claims


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
