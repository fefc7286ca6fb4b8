"""The page that says where a pipeline pays has the numbers that were measured."""

import json
import runpy
from pathlib import Path
from typing import Any

import pandas as pd
import pytest


@pytest.fixture(scope="module")
def script(repository: Path) -> dict[str, Any]:
    return runpy.run_path(str(repository / "experiments" / "benchmarks" / "where_it_pays.py"))


def test_ratios_are_between_runs_of_one_repeat(script: dict[str, Any]) -> None:
    seconds = {  # in a slow repeat, and in a fast one
        "serial, one core": (4.0, 2.0),
        "limit": (2.0, 1.0),
        "pipekit, threads": (2.5, 1.25),
        "DDP": (2.2, 1.1),
        "pipekit, one stage on all": (2.0, 1.0),
    }
    runs = pd.DataFrame(
        [
            {"network": "n", "stages": 2, "repeat": r, "contestant": c, "seconds": each}
            for c, both in seconds.items()
            for r, each in enumerate(both)
        ]
    )

    rows = script["summarise"](runs, microbatches=3, cores=2).set_index("contestant")

    assert rows.loc["pipekit, threads", "vs_serial_min"] == 1.6
    assert rows.loc["pipekit, threads", "vs_serial_max"] == 1.6
    assert rows.loc["pipekit, threads", "share_of_limit"] == pytest.approx(0.8 / (3 / 4))
    assert rows.loc["pipekit, one stage on all", "vs_ddp"] == pytest.approx(1.1)
    assert rows.loc["limit", "ms"] == 1500
    fewer = script["summarise"](runs, microbatches=3, cores=1).set_index("contestant")
    assert pd.isna(fewer.loc["pipekit, threads", "share_of_limit"])


def test_the_page_shows_the_runs_that_lie_beside_it(
    script: dict[str, Any], repository: Path
) -> None:
    folder = repository / "results" / "reference" / "benchmarks"
    record = json.loads((folder / "networks.json").read_text(encoding="utf-8"))
    runs = pd.read_csv(folder / "networks.csv")
    page = (folder / "README.md").read_text(encoding="utf-8")

    summary = script["summarise"](runs, record["microbatches"], record["cores"])

    assert record["label"] == "measured"
    assert script["markdown"](summary) in page
    assert script["rendered"](page, summary) == page
