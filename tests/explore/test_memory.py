from typing import Any

import pytest

from pipekit.explore.memory import CUTS, DEVICES, OPTIMIZERS, see
from pipekit.explore.page.view import Timeline

MODEL: dict[str, Any] = {"model": "gpt-355M", "microbatches": 4}


def seen(**setting: Any) -> Timeline:
    (timeline,) = see(**{**MODEL, **setting}).timelines
    return timeline


def test_the_title_says_whether_it_fits_the_device() -> None:
    fits, full = (seen(rows=rows) for rows in (1, 64))
    assert fits.name == "gpt-355M by PipeDream-2BW fits"
    assert "does not fit worker 0, worker 1" in full.name
    assert fits.capacity == DEVICES["V100 16GB"].memory_bytes
    assert fits.memory


def test_the_optimizers_state_is_a_tensor_for_each_weight() -> None:
    frames = [seen(optimizer=name).held.frame for name in OPTIMIZERS]
    sgd, momentum, adam = (frame["optimizer"].max() for frame in frames)
    assert sgd == 0
    assert adam == 2 * momentum
    assert momentum == pytest.approx(frames[0]["weights"].max() / 2)  # 2BW keeps two versions


def test_recomputing_makes_the_fullest_worker_emptier() -> None:
    always, never = (seen(recompute=how, rows=8).held for how in ("always", "never"))
    assert max(always.peak_bytes) < max(never.peak_bytes)


def test_stages_may_be_of_equal_time_or_of_equal_size() -> None:
    texts = {see(by=by, **MODEL).text for by in CUTS}
    assert len(texts) == len(CUTS)


def test_every_device_has_a_float32_rate() -> None:
    assert all("float32" in device.peak_flops for device in DEVICES.values())
