"""The page that says where a pipeline pays, from runs whose ratios are known."""

import json
from pathlib import Path

import pandas as pd
import pytest

from experiments.benchmarks import where_it_pays

SECONDS = {  # in a slow repeat, and in a fast one
    "serial, one core": (4.0, 2.0),
    "serial, all cores, whole batch": (3.2, 1.6),
    "limit": (2.0, 1.0),
    "pipekit, threads": (2.5, 1.25),
    "DDP": (2.2, 1.1),
    "pipekit, one stage on all": (2.0, 1.0),
}
RECORD = {"cpu": "a processor", "cores": 2, "microbatches": 3}


def runs(**changed: tuple[float, float]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"network": "gpt", "stages": 2, "repeat": r, "contestant": c, "seconds": each}
            for c, both in (SECONDS | changed).items()
            for r, each in enumerate(both)
        ]
    )


def test_ratios_are_between_runs_of_one_repeat() -> None:
    rows = where_it_pays.summarise(runs(), microbatches=3, cores=2).set_index("contestant")

    assert rows.loc["pipekit, threads", "vs_serial_min"] == 1.6
    assert rows.loc["pipekit, threads", "vs_serial_max"] == 1.6
    assert rows.loc["pipekit, threads", "share_of_limit"] == pytest.approx(0.8 / (3 / 4))
    assert rows.loc["pipekit, one stage on all", "vs_ddp"] == pytest.approx(1.1)
    assert rows.loc["limit", "ms"] == 1500
    fewer_cores = where_it_pays.summarise(runs(), microbatches=3, cores=1)
    assert fewer_cores["share_of_limit"].isna().all(), "more stages than cores have no such limit"


def test_the_page_says_where_a_pipeline_pays_and_where_not() -> None:
    page = where_it_pays.page(runs(), RECORD)
    assert "- gpt, 2 stages: it does not: DDP is 1.14 times as fast as pipekit, threads." in page
    assert "| gpt | 2 | 3,000 | 1.25 (1.25 to 1.25) | 2.00 (2.00 to 2.00) | 1.60" in page
    assert "a processor,\n2 cores" in page
    page = where_it_pays.page(runs(**{"pipekit, threads": (2.0, 1.0)}), RECORD)
    assert "- gpt, 2 stages: a pipeline pays: pipekit, threads is 1.10 times as fast as DDP" in page


def test_the_committed_page_says_what_the_committed_runs_do(repository: Path) -> None:
    folder = repository / "results/reference/benchmarks"
    record = json.loads((folder / "networks.json").read_text())
    page = where_it_pays.page(pd.read_csv(folder / "networks.csv"), record)
    assert (folder / "README.md").read_text() == page
