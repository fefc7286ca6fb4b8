"""The page on gradients: its adapter runs and prints what the page shows, its table is complete."""

import re
from pathlib import Path

import pytest

from pipekit.parity.judge import parity
from pipekit.parity.suite import ROWS, SUITE
from pipekit.parity.verdict import TOLERANCE, Fault

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


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
