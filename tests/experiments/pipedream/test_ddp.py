"""Data parallelism: its steps by hand, ways of training, and two real workers over a slow link."""

import pytest

from experiments.pipedream import overhead
from experiments.pipedream.overhead import COMPUTE, ENGINE, TRANSFER, WAIT_FREE
from pipekit import bucketing
from pipekit.clusters import flat
from pipekit.clusters.namespaces import available
from pipekit.profiling import LayerProfile, Profile

REASON = available()


@pytest.mark.long
@pytest.mark.skipif(REASON is not None, reason=str(REASON))
def test_two_workers_over_a_slow_link() -> None:
    found = overhead.measure("1gbit", rows=4, steps=2, repeats=1)
    counts = found.groupby("way")["seconds"].count()
    expected = dict.fromkeys([COMPUTE, WAIT_FREE, ENGINE], 2) | {TRANSFER: overhead.TRANSFERS}
    assert counts.to_dict() == expected
    middle = found.groupby("way")["seconds"].median()
    physics = 0.7 * sum(p.nbytes for p in overhead.network().parameters()) / 125e6
    assert middle[[WAIT_FREE, ENGINE]].min() > physics  # an idle link lets a burst through
    assert middle[TRANSFER] > 0.9 * overhead.TRANSFERRED_BYTES / 125e6


UNEVEN = Profile(
    (
        LayerProfile("conv", forward_s=1, backward_s=2, parameter_bytes=1),
        LayerProfile("pool", forward_s=1, backward_s=1),
        LayerProfile("fc", forward_s=1, backward_s=1, parameter_bytes=8),
    )
)
"""On 2 workers at 2 bytes/s: fc's gradients travel from 1 to 5 s of a backward that ends at 4 s;
conv's follow until 5.5 s."""


def test_a_simulated_step_is_compute_and_what_is_not_hidden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bucketing, "BUCKET_BYTES", 1)  # a bucket for each layer
    found = overhead.step(UNEVEN, flat(2, 2))
    assert found["step_s"] == pytest.approx(3 + 4 + 1.5)
    assert (found["compute_s"], found["exchange_s"]) == (7, 4.5)
    assert found["overhead"] == pytest.approx(100 * 1.5 / 8.5)
