"""What of a host is read off a training, judged by simulations of hosts that are known."""

from dataclasses import asdict

import pytest

from pipekit import Profile, schedules, simulate
from pipekit.emulation.measured_host import gaps, host_from, longer
from pipekit.plans import Plan
from pipekit.profiling import LayerProfile
from pipekit.simulation import Host


def costs(message: float) -> Profile:
    return Profile(
        (
            LayerProfile("first", 1, 2, output_bytes=message, update_s=0.5),
            LayerProfile("last", 3, 6, update_s=0.5),
        )
    )


def test_a_host_is_found_again_from_the_gaps_of_its_own_runs() -> None:
    host = Host(
        pass_s=0.25,
        task_s=0.03,
        batch_s=0.05,
        send_s=0.02,
        send_byte_s=0.001,
        receive_s=0.04,
        receive_byte_s=0.002,
        wake_s=0.07,
    )
    sizes, split = (10.0, 80.0), Plan.by_hand([1, 1])
    found = []
    for size in sizes:
        frame = simulate(schedules.gpipe(2, 4).take(8), costs(size), host=host).frame
        found.append(gaps(frame) | {"pass": longer(frame, costs(size), split)})
    again = host_from(sizes, found)
    assert asdict(again) == pytest.approx(asdict(host))


def test_what_comes_out_below_nothing_counts_as_nothing() -> None:
    found = {"task": 1.0, "batch": 0.5, "send": 2.0, "receive": 0.5, "answer": 1.0, "pass": -1.0}
    larger = found | {"send": 1.5}
    assert host_from([1.0, 2.0], [found, larger]) == Host(task_s=1.0, send_s=1.0)
