import pandas as pd
import pytest

from pipekit import schedules
from pipekit.plots import breakdown, style
from pipekit.traces import Trace
from pipekit.traces.breakdown import CATEGORIES

SHARES = Trace.from_schedule(schedules.gpipe(2, 3).take(1)).breakdown()


def test_a_bar_for_each_row_stacked_from_0_to_100() -> None:
    figure = breakdown(SHARES, title="GPipe", label="exact")
    ends = [0.0] * len(SHARES)
    for trace in figure.data:
        assert trace.base.tolist() == pytest.approx(ends)
        ends = (trace.base + trace.x).tolist()
    assert ends == pytest.approx([100.0] * len(SHARES))
    assert list(figure.layout.yaxis.ticktext) == ["0", "1", "all"]


def test_parts_bear_their_percent_unless_they_are_thin() -> None:
    figure = breakdown(SHARES, title="GPipe", label="exact")
    texts = {trace.name: trace.text for trace in figure.data}
    assert texts["bubble"] == ("25.0", "25.0", "25.0")
    assert texts["imbalance"] is None


def test_title_carries_the_label_and_what_a_timeline_has_keeps_its_colour() -> None:
    figure = breakdown(SHARES, title="GPipe", label="exact")
    assert figure.layout.title.text == "GPipe (exact)"
    colors = {trace.name: trace.marker.color for trace in figure.data}
    assert colors["recompute"] == style.OPS["RECOMPUTE"].color
    assert len(set(colors.values())) == len(CATEGORIES)


def test_what_is_no_breakdown_is_refused() -> None:
    with pytest.raises(ValueError, match="lacks the column 'computation'"):
        breakdown(pd.DataFrame({"bubble": [1.0]}), title="GPipe", label="exact")
