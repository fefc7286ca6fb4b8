import pandas as pd
import pytest

from pipekit.plots import curves, style

FRAME = pd.DataFrame(
    {"method": ["b", "b", "a", "a"], "epoch": [0, 1, 0, 1], "loss": [3.0, 2.0, 2.5, 1.5]}
)


def test_a_line_for_each_series_in_the_order_of_the_frame() -> None:
    figure = curves(FRAME, "epoch", "loss", "method", title="Loss", label="measured")
    assert [line.name for line in figure.data] == ["b", "a"]
    assert figure.data[1].y.tolist() == [2.5, 1.5]
    assert [(line.line.color, line.line.dash) for line in figure.data] == [
        (style.line(i)["color"], style.line(i)["dash"]) for i in range(2)
    ]


def test_title_carries_the_label_and_axes_their_units() -> None:
    figure = curves(
        FRAME, "epoch", "loss", "method", title="Loss", label="measured", y_title="loss (nats)"
    )
    assert figure.layout.title.text == "Loss (measured)"
    assert (figure.layout.xaxis.title.text, figure.layout.yaxis.title.text) == (
        "epoch",
        "loss (nats)",
    )


def test_a_missing_column_and_an_empty_frame_are_refused() -> None:
    with pytest.raises(ValueError, match="lacks the column 'time'; it has"):
        curves(FRAME, "time", "loss", "method", title="Loss", label="measured")
    with pytest.raises(ValueError, match="no rows"):
        curves(FRAME.iloc[:0], "epoch", "loss", "method", title="Loss", label="measured")
