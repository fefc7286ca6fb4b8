import re
from pathlib import Path

import pytest

from pipekit import units


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (16e9, "16 GB"),
        (1e9, "1 GB"),
        (999.9e6, "999.9 MB"),
        (2e4, "20 kB"),
        (12, "0.012 kB"),
        (0, "0 kB"),
    ],
)
def test_bytes_are_written_in_the_largest_unit_that_has_one(number: float, text: str) -> None:
    assert units.written(number, units.BYTES) == text


def test_numbers_one_a_worker() -> None:
    assert units.listed((4, 3, 2, 1)) == "4 3 2 1"


ROOT = Path(__file__).parents[1]
BINARY = re.compile(r"\b[GMK]i[Bb]\b|_gib\b|\bGIB\b|2\s?\*\*\s?[23]0\b|1 << [23]0")
"""What counts bytes by powers of two."""
BY_HAND = re.compile(r"(/ ?1e|\* ?1e-)[369]:[^{}]*\} ?[GMk]B\b")
"""Bytes of a sentence that are not written by pipekit.units."""
CAPACITIES = {
    "pipekit/units.py",
    "pipekit/clusters",  # what a device has
    "pipekit/explore/staleness.py",  # a slider of it
    "pipekit/papers/pipedream/settings.py",
    "pipekit/papers/pipedream_2bw/planner/depths.py",
    "pipekit/papers/pipedream_2bw/throughput/findings.py",
    "notebooks/gpipe/memory.ipynb",  # an accelerator of the board
    "pipekit/papers/pipedream_2bw/memory",  # the paper's memory figures, up to a V100's 16 GiB
    "notebooks/pipedream_2bw/memory.ipynb",
    "pipekit/papers/torchgpipe",  # whose tables are in GiB
    "notebooks/torchgpipe",
    "docs/papers.md",
    "CONTRIBUTING.md",  # the rule
}
NO_MEMORY = {
    "pipekit/engine/transports/processes/shared_memory.py",  # a buffer's length
    "pipekit/clusters/rates.py",  # a queue's length
    "pipekit/papers/pipedream/figure5/profile_runs.py",  # malloc's setting
}
SOURCES = [
    *(path for folder in ("pipekit", "notebooks") for path in (ROOT / folder).rglob("*.*")),
    *(ROOT / "docs").glob("*.md"),
    *ROOT.glob("*.md"),
]


def test_bytes_are_decimal_but_for_what_a_device_has_and_a_paper_prints() -> None:
    allowed = [ROOT / name for name in CAPACITIES | NO_MEMORY]
    stray = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in SOURCES
        if path.suffix in (".py", ".md", ".ipynb", ".j2")
        and path.name != "CHANGELOG.md"
        and not any(path.is_relative_to(place) for place in allowed)
        for line in path.read_text().splitlines()
        if BINARY.search(line)
    ]
    assert stray == []


def test_bytes_in_sentences_are_written_by_one_function() -> None:
    stray = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in SOURCES
        if path.suffix == ".py" and path.name != "cluster.py"  # rates, in bits as well
        for line in path.read_text().splitlines()
        if BY_HAND.search(line)
    ]
    assert stray == []
