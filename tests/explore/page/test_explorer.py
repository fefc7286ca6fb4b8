import math
import re
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import ipywidgets as widgets
import pandas as pd
import pytest

from pipekit import Profile, schedules, simulate
from pipekit.explore.browser.widgets import Chart, TimelineCanvas, code
from pipekit.explore.page import explorer, view
from pipekit.explore.page.controls import choice, declared, whole
from pipekit.explore.page.explorer import Explorer, explore
from pipekit.explore.page.view import Plot, Timeline, View
from pipekit.plots import memory
from tests.explore.inside import inside


def see(
    stages: Annotated[int, whole("stages", 1, 8)] = 3,
    method: Annotated[str, choice("method", ["flush", "gpipe"])] = "flush",
) -> View:
    if stages > 5:
        raise ValueError("use at most 5 <stages>")
    flush = getattr(schedules, method)(stages, 2)
    trace = simulate(flush, Profile.uniform(stages, 0.01, 0.02))
    assert trace.memory is not None
    return View(
        text=f"{stages} stages",
        timelines=[Timeline(trace, memory=True), Timeline(trace, title="again")],
        plots={"held": Plot(memory(trace.memory), pd.DataFrame())},
        table=pd.DataFrame({"stages": stages, "ratio": [1 / 3, 0.25, math.nan]}),
        caption="ratios (exact)",
    )


PRESETS: dict[str, dict[str, Any]] = {"GPipe": {"method": "gpipe"}, "five": {"stages": 5}}


def controls() -> dict[str, widgets.ValueWidget]:
    return {name: make() for name, make in declared(see).items()}


def begun(controls: dict[str, widgets.ValueWidget], **start: Any) -> Explorer:
    live = Explorer(see, controls, start, PRESETS)
    live.begin()
    return live


def texts(widget: Any) -> str:
    return " ".join(html.value for html in inside(widget, widgets.HTML))


def test_it_begins_at_the_defaults_but_for_what_is_given() -> None:
    live = begun(controls(), method="gpipe")
    assert live.values() == {"stages": 3, "method": "gpipe"}
    first, second = inside(live, TimelineCanvas)
    assert first.picture["title"].startswith("GPipe, 1 batch: bubble")
    assert second.picture["title"].startswith("again: bubble")
    assert (first.picture["legend"], second.picture["legend"]) == (True, False)
    assert "3 stages" in texts(live)
    assert "0.333" in texts(live)


def test_everything_follows_a_control_in_place() -> None:
    slider = controls()["stages"]
    live = begun({**controls(), "stages": slider})
    before = inside(live, (TimelineCanvas, Chart))
    figure = inside(live, Chart)[0].figure
    slider.value = 5
    assert inside(live, (TimelineCanvas, Chart)) == before
    assert len(before[0].picture["lanes"]) == 5
    assert inside(live, Chart)[0].figure != figure
    assert "5 stages" in texts(live)


def test_a_setting_that_cannot_be_is_answered_by_its_sentence_until_it_can() -> None:
    slider = controls()["stages"]
    live = begun({"stages": slider})
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
    monkeypatch.setattr(view, "display", lambda *what, **how: shown.extend(what))
    explore(see, False, tmp_path, stages=2)
    assert capsys.readouterr().out == "2 stages\n"
    timelines, memory, curves, table = shown
    cells = re.findall(r">([\d.]+|nan)</td>", table.to_html())
    assert cells == ["2", "0.333", "2", "0.250", "2", "nan"]
    kinds = {"application/vnd.plotly.v1+json", "image/svg+xml"}
    assert {*timelines} == {*memory} == {*curves} == kinds
    stems = "held", "memory", "timelines"
    drawn = {f"{stem}.{kind}" for stem in stems for kind in ("csv", "svg")}
    assert {path.name for path in tmp_path.iterdir()} == drawn | {"table.csv"}
    for start in {"stages": "a"}, {"stages": 2.5}, {"stages": 9}, {"stage": 2}, {"method": "naive"}:
        with pytest.raises(ValueError, match=r"stages cannot be|one of flush|mean 'stages'"):
            explore(see, False, tmp_path, **start)


def test_a_saved_notebook_has_the_first_picture_beside_the_live_explorer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[Any] = []
    for module in (view, explorer):
        monkeypatch.setattr(module, "display", lambda *what, **how: shown.extend(what))
    explore(see, True, tmp_path, stages=2)
    live, picture = shown
    assert live.values()["stages"] == 2
    assert "<svg" in picture["image/svg+xml"]
    assert "PipeDream-Flush" in picture["image/svg+xml"]
    assert [*tmp_path.iterdir()] == []
    shown.clear()
    explore(see, True, tmp_path, stages=6)  # cannot be: it has no picture yet
    assert len(shown) == 1


def test_controls_and_what_is_waited_for_are_there_before_the_first_picture() -> None:
    seen: list[bool] = []

    def slow(stages: int = 3) -> View:
        seen.append(live._setting.busy)
        return see(stages)

    live = Explorer(slow, {"stages": whole("stages", 1, 8)()}, {}, None, "a network is estimated")
    assert inside(live, TimelineCanvas) == []
    assert live._setting.waits_for == "a network is estimated"
    live.begin()
    assert seen == [True]
    assert not live._setting.busy
    assert len(inside(live, TimelineCanvas)) == 2


def test_a_preset_sets_its_controls_and_the_others_back_and_is_shown_once() -> None:
    shown: list[int] = []

    def counted(stages: int = 3, method: str = "flush") -> View:
        shown.append(stages)
        return see(stages, method)

    live = Explorer(counted, controls(), {"stages": 4}, PRESETS)
    live.begin()
    live._setting._handle_custom_msg({"preset": "GPipe"}, [])
    assert live.values() == {"stages": 3, "method": "gpipe"}
    live._setting._handle_custom_msg({"preset": "five"}, [])
    assert live.values() == {"stages": 5, "method": "flush"}
    assert shown == [4, 3, 5]


def test_the_setting_as_python_returns_what_is_shown() -> None:
    live = begun(controls(), stages=5)
    scope: dict[str, Any] = {}
    exec(live._setting.code.replace(f"from {__name__} import see", ""), {"see": see}, scope)
    assert scope["view"].text == see(stages=5).text
    assert code(partial(see, 4), {"gbit": math.inf}) == (
        f'from {__name__} import see\n\nview = see(\n    stages,\n    gbit=float("inf"),\n)\n'
    )
