from typing import Any

import pandas as pd
import pytest

from pipekit.plots import memory, style
from pipekit.traces.memory import PARTS, Memory

MB = 1e6


def held() -> Memory:
    rows = [
        # worker, time_s, weights, gradients, optimizer, activations, recompute
        (0, 0.00, 40 * MB, 0, 0, 0, 0),
        (0, 0.01, 40 * MB, 0, 0, 30 * MB, 0),
        (0, 0.02, 40 * MB, 20 * MB, 0, 30 * MB, 0),
        (0, 0.03, 40 * MB, 0, 0, 0, 0),
        (1, 0.00, 40 * MB, 0, 0, 0, 0),
        (1, 0.04, 40 * MB, 20 * MB, 0, 0, 0),
    ]
    return Memory(pd.DataFrame(rows, columns=["worker", "time_s", *PARTS]), "simulated")


def named(figure: Any, name: str) -> list[Any]:
    return [trace for trace in figure.data if trace.name == name]


def test_every_part_is_a_stacked_area_of_steps_to_the_end_in_readable_units() -> None:
    activations = named(memory(held()), "activations")
    assert [area.x.tolist() for area in activations] == [[0, 10, 20, 30, 40], [0, 40, 40]]
    assert [area.y.tolist() for area in activations] == [[0, 30, 30, 0, 0], [0, 0, 0]]
    assert {(area.stackgroup, area.line.shape) for area in activations} == {("parts", "hv")}
    assert [area.xaxis for area in activations] == ["x", "x2"]


def test_the_title_and_the_rows_state_the_peaks() -> None:
    figure = memory(held())
    assert style.whole(figure.layout.title.text) == "Memory: at most 90 MB on worker 0 (simulated)"
    texts = [note.text for note in figure.layout.annotations]
    assert texts == ["worker 0", "worker 1", "peak 90 MB", "peak 60 MB", "MB"]
    dots = [trace for trace in figure.data if trace.mode == "markers"]
    assert [(*dot.x, *dot.y) for dot in dots] == [(20, 90), (40, 60)]
    assert memory(held(), title="2BW").layout.title.text.startswith("2BW: at most 90 MB")


def test_capacity_is_a_dashed_line_that_the_axes_reach() -> None:
    figure = memory(held(), capacity=16e9)
    lines = named(figure, "capacity, 16 GB")
    assert [(*line.x, *line.y, line.line.dash) for line in lines] == [(0, 40, 16, 16, "dash")] * 2
    assert figure.layout.yaxis.range[1] > 16
    told = [note.text for note in figure.layout.annotations]
    assert told[2:] == ["peak 90 MB", "peak 60 MB", "GB"]


def test_the_total_of_another_memory_is_a_line_in_its_own_time() -> None:
    frame = held().frame.assign(time_s=lambda frame: 2 * frame["time_s"], recompute=1 * MB)
    figure = memory(held(), Memory(frame, "measured"))
    lines = named(figure, "total, measured")
    assert [line.y.tolist() for line in lines] == [[41, 71, 91, 41, 41], [41, 61, 61]]
    assert [line.x.tolist() for line in lines] == [[0, 20, 40, 60, 80], [0, 80, 80]]
    texts = [note.text for note in figure.layout.annotations]
    assert texts[2:4] == ["peak 90 MB<br>91 MB measured", "peak 60 MB<br>61 MB measured"]
    assert style.whole(figure.layout.title.text) == (
        "Memory: at most 90 MB on worker 0 (simulated), 91 MB on worker 0 (measured)"
    )


def test_no_rows_missing_columns_and_other_workers_are_refused() -> None:
    frame = held().frame
    with pytest.raises(ValueError, match="no rows to draw"):
        memory(Memory(frame.iloc[:0], "simulated"))
    with pytest.raises(ValueError, match="lacks the column 'recompute'; it has"):
        memory(Memory(frame.drop(columns="recompute"), "simulated"))
    with pytest.raises(ValueError, match=r"is that of workers \[1\], not \[0, 1\]"):
        memory(held(), other=Memory(frame.query("worker == 1"), "measured"))
