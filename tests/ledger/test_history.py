"""Which criteria were written when values were known, by the history of data/claims.csv."""

import csv
import io
import subprocess
from pathlib import Path

import pytest

from pipekit.ledger import claims


def criteria(text: str) -> dict[str, tuple[str, str]]:
    return {row["id"]: (row["check"], row["target"]) for row in csv.DictReader(io.StringIO(text))}


def test_a_criterion_that_has_changed_says_so(repository: Path) -> None:
    """The ledger's first commit is older than any value."""

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
    first = criteria(git("show", f"{commits[-1]}:data/claims.csv"))
    versions = [criteria(git("show", f"{commit}:data/claims.csv")) for commit in commits]
    versions.append(criteria((repository / "data/claims.csv").read_text(encoding="utf-8")))
    after = {id for version in versions for id in version if version[id] != first.get(id)}
    assert after == {id for id, claim in claims.load().items() if claim.written == "after"}
