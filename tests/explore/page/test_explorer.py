from pathlib import Path
from typing import Any

import ipywidgets as widgets
import pandas as pd
import pytest

from pipekit import Profile, schedules, simulate
from pipekit.explore.page import explorer, still
from pipekit.explore.page.canvas import TimelineCanvas
from pipekit.explore.page.chart import Chart
from pipekit.explore.page.controls import choice, whole
from pipekit.explore.page.explorer import Explorer, explore
from pipekit.explore.page.view import Plot, Timeline, View
from pipekit.plots import in_flight


def see(stages: int = 3, method: str = "flush") -> View:
    if stages > 5:
        raise ValueError("use at most 5 <stages>")
    flush = getattr(schedules, method)(stages, 2)
    trace = simulate(flush, Profile.uniform(stages, 0.01, 0.02))
    return View(
        text=f"{stages} stages",
        timelines=[Timeline(trace, memory=True), Timeline(trace, title="again")],
        plots={"in_flight": Plot(in_flight(flush), pd.DataFrame())},
        table=pd.DataFrame({"stages": [stages], "ratio": [1 / 3]}),
        caption="ratios (exact)",
    )


def controls() -> dict[str, widgets.ValueWidget]:
    return {"stages": whole("stages", 1, 8), "method": choice("method", ["flush", "gpipe"])}


def inside(widget: Any, kind: type) -> list[Any]:
    """Return all widgets of a kind in a widget."""
    found = [widget] if isinstance(widget, kind) else []
    return found + [
        each for child in getattr(widget, "children", ()) for each in inside(child, kind)
    ]


def texts(widget: Any) -> str:
    return " ".join(html.value for html in inside(widget, widgets.HTML))


def test_it_begins_at_the_defaults_but_for_what_is_given() -> None:
    live = Explorer(see, controls(), {"method": "gpipe"})
    assert live.values() == {"stages": 3, "method": "gpipe"}
    first, second = inside(live, TimelineCanvas)
    assert first.picture["title"].startswith("GPipe: bubble")
    assert second.picture["title"].startswith("again: bubble")
    assert (first.picture["legend"], second.picture["legend"]) == (True, False)
    assert "3 stages" in texts(live)
    assert "0.3333" in texts(live)


def test_everything_follows_a_control_in_place() -> None:
    slider = controls()["stages"]
    live = Explorer(see, {**controls(), "stages": slider}, {})
    before = inside(live, (TimelineCanvas, Chart))  # type: ignore[arg-type]
    figure = inside(live, Chart)[0].figure
    slider.value = 5
    assert inside(live, (TimelineCanvas, Chart)) == before  # type: ignore[arg-type]
    assert len(before[0].picture["lanes"]) == 5
    assert inside(live, Chart)[0].figure != figure
    assert "5 stages" in texts(live)


def test_a_setting_that_cannot_be_is_answered_by_its_sentence_until_it_can() -> None:
    slider = controls()["stages"]
    live = Explorer(see, {"stages": slider}, {})
    slider.value = 6
    assert "use at most 5 &lt;stages&gt;" in texts(live)
    stale = [box for box in inside(live, widgets.VBox) if "pipekit-stale" in box._dom_classes]
    assert len(stale) == 1
    assert len(inside(live, TimelineCanvas)[0].picture["lanes"]) == 3
    slider.value = 4
    assert "use at most" not in texts(live)
    assert "pipekit-stale" not in stale[0]._dom_classes


def test_without_a_front_end_figures_are_shown_and_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[Any] = []
    monkeypatch.setattr(still, "display", lambda *what, **how: shown.extend(what))
    explore(see, controls, False, tmp_path, stages=2)
    assert capsys.readouterr().out == "2 stages\n"
    timelines, memory, curves, _table = shown
    assert (
        {*timelines}
        == {*memory}
        == {*curves}
        == {"application/vnd.plotly.v1+json", "image/svg+xml"}
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "in_flight.csv",
        "in_flight.svg",
        "memory.csv",
        "memory.svg",
        "table.csv",
        "timelines.csv",
        "timelines.svg",
    ]


def test_with_one_the_explorer_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shown: list[Any] = []
    monkeypatch.setattr(explorer, "display", shown.append)
    explore(see, controls, True, tmp_path, stages=2)
    assert shown[0].values()["stages"] == 2
    assert not any(tmp_path.iterdir())


def test_the_first_chart_of_a_page_is_sent_plotly(monkeypatch: pytest.MonkeyPatch) -> None:
    chart, sent = Chart(), []
    monkeypatch.setattr(chart, "send", lambda content, buffers: sent.append(buffers))
    chart._handle_custom_msg("plotly", [])
    chart._handle_custom_msg("something else", [])
    ((script,),) = sent
    assert b"window.Plotly" in script
