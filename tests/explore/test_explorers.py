"""All explorers are there at once, with a control for each argument; and what each shows."""

import subprocess
import sys
from collections.abc import Iterator
from inspect import signature
from typing import Any

import pytest
from ipywidgets import ValueWidget

from pipekit.explore import choose_parallelism, own_schedule, search, timeline, why_slow
from pipekit.explore.page.controls import declared
from pipekit.explore.search import CAPS
from pipekit.explore.timeline import CUTS, DEVICES, NOTHING, PRESETS
from pipekit.schedules.methods.by_name import METHODS

EXPLORERS = "choose_parallelism", "search", "timeline", "why_slow"
CODE = f"""
import sys
from pipekit.explore import {", ".join(EXPLORERS)}
from pipekit.explore import own_schedule
from pipekit.explore.puzzles.page import html
from pipekit.explore.browser.picture import explained, picture
for shown in timeline.see().timelines:
    picture(shown.trace), explained(shown.trace)
html()
print(*({{"torch", "matplotlib", "networkx", "scipy"}} & sys.modules.keys()))
"""


def test_neither_torch_nor_matplotlib_is_loaded_before_a_timelines_first_picture() -> None:
    run = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == ""


@pytest.mark.parametrize("explorer", [choose_parallelism, search, timeline, why_slow, own_schedule])
def test_every_argument_has_a_control(explorer: Any) -> None:
    controls = {name: make() for name, make in declared(explorer.see).items()}
    assert all(isinstance(each, ValueWidget) for each in controls.values())
    assert [*controls] == [*signature(explorer.see).parameters]


def test_two_methods_are_seen_and_one_beside_itself_is_one() -> None:
    assert [each.trace.name for each in timeline.see().timelines] == ["PipeDream", "GPipe"]
    assert len(timeline.see("gpipe", "gpipe").timelines) == 1
    three = timeline.see("gpipe", "flush", "zb-h1").timelines
    assert [each.trace.name for each in three] == ["GPipe", "PipeDream-Flush", "ZB-H1"]


def test_a_network_of_the_papers_has_its_own_costs() -> None:
    (run,) = timeline.see("flush", NOTHING, network="vgg16", stages=2).timelines
    assert run.held.frame["weights"].max() > 4 * 100e6, "VGG16 has 138 million parameters"


def test_a_title_says_whether_a_network_fits_the_device() -> None:
    setting: dict[str, Any] = {"network": "gpt-355M", "optimizer": "Adam", "batches": 2}
    fits, full = (
        timeline.see("2bw", NOTHING, rows=rows, **setting).timelines[0] for rows in (1, 64)
    )
    assert fits.name == "gpt-355M by PipeDream-2BW fits the 16 GiB of a V100 16GB"
    assert "does not fit (worker 0, worker 1" in full.name
    assert fits.capacity == DEVICES["V100 16GB"].memory_bytes


def test_stages_may_be_of_equal_time_or_of_equal_size() -> None:
    seen = (timeline.see("flush", NOTHING, network="vgg16", by=by).timelines[0] for by in CUTS)
    assert len({run.held.peak_bytes for run in seen}) == len(CUTS)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_can_be_seen(preset: str) -> None:
    assert timeline.see(**PRESETS[preset] | {"batches": 1}).timelines


def test_notes_say_what_each_worker_keeps() -> None:
    pipedream, gpipe = timeline.see().timelines
    slots = [note.splitlines()[0] for note in pipedream.notes]
    assert slots == [*(f"{n} weight slots" for n in (4, 3, 2)), "1 weight slot"]
    assert all(note.startswith("1 weight slot\n4 in flight\n") for note in gpipe.notes)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_compared_on_as_many_workers_with_as_much_work(method: str) -> None:
    view = timeline.see(method, "flush", microbatches=8, batches=1)
    assert all(each.memory for each in view.timelines)
    frames = [each.trace.frame for each in view.timelines]
    work = [(f["end_s"] - f["start_s"]).groupby(f["worker"]).sum() for f in frames]
    assert work[0].to_list() == pytest.approx(work[-1].to_list())


def test_a_device_without_bfloat16_computes_in_float16_unless_told_otherwise() -> None:
    view = choose_parallelism.see("gpt2-xl", "V100 16GB", 8, 32, 1024)
    assert "tried in float16" in view.text


def test_what_a_method_refuses_is_said_with_its_remedy() -> None:
    with pytest.raises(ValueError, match="needs"):
        timeline.see("2bw", stages=8, microbatches=4)


SETTING: dict[str, Any] = {"workers": 2, "microbatches": 4}


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(search, "SECONDS", 0.02)
    yield
    search._curve.cache_clear()


def test_more_memory_never_takes_longer_and_no_named_method_is_below_the_curve() -> None:
    frame = search.see(**SETTING).plots["time_against_memory"].data
    found, named = (frame[frame["kind"] == kind] for kind in ("found", "named"))
    assert len(found) == CAPS
    assert found["makespan_s"].is_monotonic_decreasing
    assert (found["peak_bytes"] <= found["cap_bytes"] * (1 + 1e-9)).all()
    for _, point in named.iterrows():
        under = found[found["cap_bytes"] >= point["peak_bytes"] * (1 - 1e-9)]
        assert under["makespan_s"].max() <= point["makespan_s"] * (1 + 1e-9)


def test_the_timelines_are_of_what_is_found_and_the_best_named_method() -> None:
    view = search.see(cap=CAPS // 2, **SETTING)
    found, named = view.timelines
    frame = view.plots["time_against_memory"].data
    cap = frame["cap_bytes"].dropna().iloc[CAPS // 2]
    fitting = frame[(frame["kind"] == "named") & (frame["peak_bytes"] <= cap)]
    assert named.trace.makespan_s == pytest.approx(fitting["makespan_s"].min())
    assert found.trace.makespan_s <= named.trace.makespan_s
    assert named.trace.name in view.text
