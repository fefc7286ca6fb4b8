import pandas as pd

from pipekit.papers.pipedream.table1.bars import bars


def test_bars_are_drawn_with_gaps_where_there_is_no_number() -> None:
    frame = pd.DataFrame(
        {"row": ["a", "b", "a", "b"], "source": ["x", "x", "y", "y"], "value": [1, None, 2, 4]}
    )
    figure = bars(frame, title="A title", label="exact", x_title="speedup")
    assert [trace.name for trace in figure.data] == ["x", "y"]
    assert list(figure.layout.yaxis.ticktext) == ["a", "b"]
    assert figure.layout.title.text == "A title (exact)"
    assert figure.layout.xaxis.range[1] > 4
