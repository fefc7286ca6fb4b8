"""The page that says which networks enter, from rows whose outcomes are known."""

import runpy
from pathlib import Path

import pandas as pd

NETWORKS = pd.DataFrame(
    [
        ("net", "equal", 5, 4, 12.345, 13.0, None),
        ("bad", "refused", None, None, None, None, "a | b"),
        ("other", "trains differently", 3, 2, 1.0, 1.0, None),
        ("torchvision new", "equal", 2, 1, 1.0, 1.0, None),
    ],
    columns=["network", "outcome", "layers", "cuts", "ms_plain", "ms_converted", "sentence"],
)
REFUSED = pd.DataFrame([("an if", "recording", "refused", "why")], columns=list("abcd"))
RECORD = {
    "seed": 7,
    **dict.fromkeys(("cpu", "torch", "torchvision", "transformers"), "some"),
}


def test_each_outcome_is_a_row_and_those_drawn_stand_apart(repository: Path) -> None:
    script = runpy.run_path(str(repository / "experiments" / "which_networks.py"))
    known, drawn = script["page"](NETWORKS, REFUSED, RECORD).split("## Drawn at random")
    assert "| net | 5 | 4 | equal | 12.3 | 13 |" in known
    assert r"| bad |  |  | refused: a \| b |  |  |" in known
    assert "1 of 3 enter." in known
    assert "| torchvision new | 2 | 1 | equal | 1 | 1 |" in drawn
    assert "| an if | recording | refused | why |" in drawn
