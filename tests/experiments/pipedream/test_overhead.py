"""Data parallelism's steps and stalls by hand."""

import pytest

from experiments.pipedream import overhead
from pipekit import bucketing
from pipekit.clusters import flat
from pipekit.profiling import LayerProfile, Profile

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


def test_a_simulated_step_is_compute_and_what_is_not_hidden() -> None:
    found = overhead.step(UNEVEN, flat(2, 2))
    assert found["step_s"] == pytest.approx(3 + 4 + 1.5)
    assert (found["compute_s"], found["exchange_s"]) == (7, 4.5)
    assert found["overhead"] == pytest.approx(100 * 1.5 / 8.5)


def test_what_the_backward_does_not_hide() -> None:
    assert overhead.exposed_seconds(UNEVEN, 2, bandwidth=2) == 1.5
    assert overhead.exposed_seconds(UNEVEN, 2, bandwidth=1e9) == pytest.approx(1e-9)
