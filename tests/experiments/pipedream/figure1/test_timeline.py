"""Figure 2 of PipeDream: the stall by hand, and emulated."""

from dataclasses import replace

import pytest

from experiments.pipedream.figure1 import timeline
from pipekit import bucketing
from pipekit.clusters import flat
from pipekit.profiling import LayerProfile, Profile
from tests.emulation.own_time import own_time

UNEVEN = Profile(
    (
        LayerProfile("conv", forward_s=1, backward_s=2, parameter_bytes=1),
        LayerProfile("pool", forward_s=1, backward_s=1),
        LayerProfile("fc", forward_s=1, backward_s=1, parameter_bytes=8),
    )
)
"""On 2 workers at 2 bytes/s: fc's gradients travel from 1 to 5 s of a backward that ends at 4 s;
conv's follow until 5.5 s."""


@pytest.fixture(autouse=True)
def _a_bucket_for_each_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucketing, "BUCKET_BYTES", 1)


def test_what_the_backward_does_not_hide() -> None:
    assert timeline.exposed_seconds(UNEVEN, 2, bandwidth=2) == 1.5
    assert timeline.exposed_seconds(UNEVEN, 2, bandwidth=1e9) == pytest.approx(1e-9)


def test_figure_two_as_emulated() -> None:
    costs = Profile.uniform(2, 0.01, 0.02, parameter_bytes=3e7)
    with own_time():
        found = timeline.timeline(costs, flat(4, bandwidth=7.5e8), rounds=3)
    assert found.trace.label == "emulated"
    assert found.order == "FBUFBUFBU"
    assert found.exchange_s == pytest.approx(0.12)
    assert found.expected_s == pytest.approx(0.1)  # 0.02 s of it beside the first layer's backward
    assert found.stall_s == pytest.approx(found.expected_s)
    exact = replace(found, stall_s=found.expected_s, simulated_s=found.trace.makespan_s)
    assert exact.finding(0.1).value is True
    assert exact.finding(0.1).invalid == ""
    assert "beyond 5%" in replace(exact, simulated_s=exact.simulated_s / 2).finding(0.1).invalid
    assert replace(exact, stall_s=0.112).finding(0.1).value is False
    assert replace(exact, order="FUBFBUFBU").finding(0.1).value is False
    assert "exchange less overlap 100 ms, the whole exchange 120 ms" in found.finding(0.5).note
