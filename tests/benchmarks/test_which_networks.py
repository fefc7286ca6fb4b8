"""The page that says which networks enter, from rows whose outcomes are known."""

import runpy
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

NETWORKS = pd.DataFrame(
    [
        ("net", "record", None, "equal", 5, 4, 12.345, 13.0, None),
        ("net", "export", None, "refused", None, None, None, None, "a | b"),
        ("net", "export", "fastpath off", "equal", 5, 4, 1.0, 2.0, None),
        ("other", "record", None, "trains differently", 3, 2, 1.0, 1.0, None),
        ("torchvision new", "record", None, "equal", 2, 1, 1.0, 1.0, None),
    ],
    columns=[
        *("network", "way", "set", "outcome", "layers", "cuts", "ms_plain", "ms_converted"),
        "sentence",
    ],
)
REFUSED = pd.DataFrame([("an if", "record", "refused", "why")], columns=list("abcd"))
RECORD = {
    "seed": 7,
    **dict.fromkeys(("cpu", "torch", "torchvision", "transformers"), "some"),
}


@pytest.fixture(scope="module")
def script(repository: Path) -> dict[str, Any]:
    return runpy.run_path(str(repository / "experiments" / "which_networks.py"))


def test_each_outcome_is_a_row_and_those_drawn_stand_apart(script: dict[str, Any]) -> None:
    known, drawn = script["page"](NETWORKS, REFUSED, RECORD).split("## Drawn at random")
    assert "| net | record | 5 | 4 | equal | 12.3 | 13 |" in known
    assert r"| net | export |  |  | refused: a \| b |  |  |" in known
    assert "| net | export, fastpath off | 5 | 4 | equal | 1 | 2 |" in known
    assert "| torchvision new | record | 2 | 1 | equal | 1 | 1 |" in drawn
    assert "| an if | record | refused | why |" in drawn


def test_a_network_enters_if_it_trains_alike_by_any_way(script: dict[str, Any]) -> None:
    text = script["page"](NETWORKS, REFUSED, RECORD)
    assert "1 of 2 enter (record: 1 of 2, export: 1 of 1)." in text
