from typing import Any

import pytest

from pipekit.explore.memory import CUTS, DEVICES, OPTIMIZERS, controls, see

MODEL: dict[str, Any] = {"model": "gpt-355M", "microbatches": 4}


def peaks(**setting: Any) -> list[float]:
    frame = see(**{**MODEL, **setting}).plots["memory"].data
    total = frame.drop(columns=["worker", "time_s"]).sum(axis=1)
    return [float(peak) for peak in total.groupby(frame["worker"]).max()]


def test_the_title_says_whether_it_fits_the_device() -> None:
    fits, full = (see(rows=rows, **MODEL).plots["memory"].figure for rows in (1, 64))
    assert fits.layout.title.text.startswith("gpt-355M by PipeDream-2BW fits: at most ")
    assert "does not fit worker 0, worker 1" in full.layout.title.text
    assert any(trace.name == "capacity, 17.18 GB" for trace in fits.data)


def test_the_optimizers_state_is_a_tensor_for_each_weight() -> None:
    frames = [see(optimizer=name, **MODEL).plots["memory"].data for name in OPTIMIZERS]
    sgd, momentum, adam = (frame["optimizer"].max() for frame in frames)
    assert sgd == 0
    assert adam == 2 * momentum
    assert momentum == pytest.approx(frames[0]["weights"].max() / 2)  # 2BW keeps two versions


def test_recomputing_makes_the_fullest_worker_emptier() -> None:
    assert max(peaks(recompute="always", rows=8)) < max(peaks(recompute="never", rows=8))


def test_stages_may_be_of_equal_time_or_of_equal_size() -> None:
    texts = {see(cut=cut, **MODEL).text for cut in CUTS}
    assert len(texts) == len(CUTS)


def test_every_argument_has_a_control_and_every_device_a_float32_rate() -> None:
    assert {*controls()} == {*see.__annotations__} - {"return"}
    assert all("float32" in device.peak_flops for device in DEVICES.values())
