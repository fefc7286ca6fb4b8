import math
from typing import Any

import pytest

from pipekit.explore.timeline import CUTS, DEVICES, NOTHING, PRESETS, see
from pipekit.schedules.methods.by_name import METHODS


@pytest.mark.parametrize("microbatches", [1, 4, 16])
def test_gpipes_bubble_is_that_of_the_paper_where_links_cost_nothing(microbatches: int) -> None:
    (gpipe,) = see(
        "gpipe", NOTHING, stages=5, microbatches=microbatches, batches=1, gbit=math.inf
    ).timelines
    assert gpipe.trace.bubble == pytest.approx(4 / (microbatches + 4))  # (K-1)/(T+K-1), section 3.2


def test_two_methods_are_seen_and_one_beside_itself_is_one() -> None:
    assert [each.trace.name for each in see().timelines] == ["PipeDream", "GPipe"]
    assert len(see("gpipe", "gpipe").timelines) == 1
    three = see("gpipe", "flush", "zb-h1").timelines
    assert [each.trace.name for each in three] == ["GPipe", "PipeDream-Flush", "ZB-H1"]


def test_a_network_of_the_papers_has_its_own_costs() -> None:
    (run,) = see("flush", NOTHING, network="vgg16", stages=2).timelines
    assert run.held.frame["weights"].max() > 4 * 100e6, "VGG16 has 138 million parameters"


def test_a_title_says_whether_a_network_fits_the_device() -> None:
    setting: dict[str, Any] = {"network": "gpt-355M", "optimizer": "Adam", "batches": 2}
    fits, full = (see("2bw", NOTHING, rows=rows, **setting).timelines[0] for rows in (1, 64))
    assert fits.name == "gpt-355M by PipeDream-2BW fits the 16 GiB of a V100 16GB"
    assert "does not fit (worker 0, worker 1" in full.name
    assert fits.capacity == DEVICES["V100 16GB"].memory_bytes


def test_stages_may_be_of_equal_time_or_of_equal_size() -> None:
    seen = (see("flush", NOTHING, network="vgg16", by=by).timelines[0] for by in CUTS)
    assert len({run.held.peak_bytes for run in seen}) == len(CUTS)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_can_be_seen(preset: str) -> None:
    assert see(**PRESETS[preset] | {"batches": 1}).timelines


def test_notes_say_what_each_worker_keeps() -> None:
    pipedream, gpipe = see().timelines
    assert [note.splitlines()[0] for note in pipedream.notes] == [
        "4 weight slots",
        "3 weight slots",
        "2 weight slots",
        "1 weight slot",
    ]
    assert all(note.startswith("1 weight slot\n4 in flight\n") for note in gpipe.notes)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_compared_on_as_many_workers_with_as_much_work(method: str) -> None:
    view = see(method, "flush", microbatches=8, batches=1)
    assert all(each.memory for each in view.timelines)
    frames = [each.trace.frame for each in view.timelines]
    work = [(f["end_s"] - f["start_s"]).groupby(f["worker"]).sum() for f in frames]
    assert work[0].to_list() == pytest.approx(work[-1].to_list())


def test_what_a_method_refuses_is_said_with_its_remedy() -> None:
    with pytest.raises(ValueError, match="needs"):
        see("2bw", stages=8, microbatches=4)
