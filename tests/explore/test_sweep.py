"""A sweep's table as a heatmap."""

import pandas as pd
import pytest

from pipekit.explore import sweep
from pipekit.plots import style

TABLE = pd.DataFrame(
    [
        ("adam", "2bw", 0, 3.0),
        ("adam", "2bw", 1, 5.0),
        ("adam", "flush", 0, 1.0),
        ("sgd", "2bw", 0, 2.0),
        ("sgd", "flush", 0, float("inf")),  # it diverged
    ],
    columns=["optimizer", "method", "seed", "loss"],
)
SETTING = {"value": "loss", "across": "optimizer", "down": "method"}


def test_a_cell_is_the_mean_of_its_rows_and_the_best_is_named() -> None:
    view = sweep.see(TABLE, "measured", **SETTING)
    cells = view.plots["sweep"].data.set_index(["optimizer", "method"])["mean"]
    assert cells["adam", "2bw"] == 4
    assert cells.isna().to_dict()["sgd", "flush"]
    assert view.text.startswith(
        "Less is better: 1 at optimizer adam, method flush (mean of 1 rows)"
    )
    assert "4 of 5 rows" in view.text
    assert "the mean over seed." in view.text
    one = sweep.see(TABLE, "measured", **SETTING, only="seed = 0, method = 2bw").text
    assert "2 of 5 rows" in one
    with pytest.raises(ValueError, match="did you mean 'seed'"):
        sweep.see(TABLE, "measured", **SETTING, only="seeds = 0")
    title = style.whole(view.plots["sweep"].figure.layout.title.text)
    assert title == "loss, mean of all rows (measured)"


def test_what_can_be_an_axis_or_a_number() -> None:
    axes, values = sweep.columns(TABLE)
    assert axes == ["optimizer", "method", "seed", "loss"]
    assert values == ["seed", "loss"]
    controls = sweep.controls(TABLE)
    assert "method = flush" in controls["only"]().options


@pytest.mark.parametrize(
    ("change", "says"),
    [({"down": "optimizer"}, "both axes are"), ({"only": "seed = 7"}, "no row with seed = 7")],
)
def test_what_cannot_be_drawn_is_said(change: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        sweep.see(TABLE, "measured", **(SETTING | change))


def test_a_table_without_axes_is_refused() -> None:
    with pytest.raises(ValueError, match="needs two columns"):
        sweep.columns(TABLE[["loss"]])
