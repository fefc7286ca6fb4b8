"""A point a series in each named row."""

import pandas as pd

from experiments.study.figures import named_rows


def test_rows_stand_in_the_tables_order_from_the_top() -> None:
    numbers = pd.DataFrame({"paper": [1.0, 2.0], "ours": [1.5, 4.0]}, index=["small", "large"])
    figure, drawn = named_rows(numbers, "GiB", title="two rows", label="exact")
    assert figure.layout.yaxis.ticktext == ("small", "large")
    assert figure.layout.yaxis.range[0] > figure.layout.yaxis.range[1]
    assert drawn.query("place == 1")["GiB"].tolist() == [2.0, 4.0]
