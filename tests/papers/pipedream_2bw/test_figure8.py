import pytest

from pipekit.papers.pipedream_2bw import figure8
from pipekit.papers.pipedream_2bw.systems import Job
from pipekit.profiling import Profile


def test_what_is_not_simulated_costs_what_the_last_microbatches_cost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simulated = []

    def seconds(job: Job, system: str) -> float:
        simulated.append(job.microbatches)
        return 5 + job.depth * job.microbatches

    monkeypatch.setattr(figure8, "simulated", seconds)
    frame = figure8.figure8(
        [64, 1024, 4096], lambda _, rows: Profile.uniform(16).scaled(rows), longest=16
    ).set_index(["depth", "rows", "batch"])
    assert list(frame.index) == [
        *[(4, 1, batch) for batch in (64, 1024, 4096)],
        *[(8, 1, batch) for batch in (64, 1024, 4096)],
        (8, 32, 4096),  # 8 pipelines, 16 microbatches; fewer sequences do not fill 8 stages
    ]
    assert max(simulated) == 16
    for (depth, rows, batch), rate in frame["throughput"].items():
        microbatches = batch * depth / 64 / rows
        assert rate == pytest.approx(batch / (5 + depth * microbatches))


def test_deeper_stages_compute_less_and_pass_on_as_much() -> None:
    parts = figure8.compute_and_bytes("1.3B", [4, 8], rows=2)
    assert parts["bytes"].tolist() == [2 * 2 * 512 * 2048] * 2
    assert parts["compute_s"][0] == pytest.approx(2 * parts["compute_s"][1])


def test_every_microbatch_size_has_a_rate() -> None:
    rates = figure8.block_rates([1, 2], hidden=16, heads=2, tokens=4, repeats=1)
    assert len(rates) == 2
    assert min(rates) > 0
