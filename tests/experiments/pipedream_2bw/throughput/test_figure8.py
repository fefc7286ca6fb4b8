import time

import pandas as pd
import pytest

from experiments.pipedream_2bw.systems import Pipelines
from experiments.pipedream_2bw.throughput import figure8
from pipekit.clusters.papers import two_bw_v100
from pipekit.profiling import Profile


def test_what_is_not_simulated_costs_what_the_last_microbatches_cost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simulated = []

    def seconds(job: Pipelines, system: str) -> float:
        simulated.append(job.microbatches)
        return 5 + 100 * job.depth * job.microbatches

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
        assert rate == pytest.approx(batch / (5 + 100 * depth * microbatches))


def test_microbatches_that_something_hides_are_no_price_of_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As long as a sum of gradients, of 40 microbatches' seconds, is longer than their compute."""

    def seconds(job: Pipelines, system: str) -> float:
        assert job.microbatches <= 128, "from there on a pipeline is full"
        return max(40, job.microbatches) * job.slowest_s

    monkeypatch.setattr(figure8, "simulated", seconds)
    job = Pipelines(Profile.uniform(16), two_bw_v100(), 4, 16, 4)
    found = figure8.batch_seconds(job, [4, 64, 256, 1024], longest=16)
    assert [found[count] / job.slowest_s for count in found] == pytest.approx([40, 64, 256, 1024])


def test_deeper_stages_compute_less_and_pass_on_as_much() -> None:
    parts = figure8.compute_and_bytes("1.3B", [4, 8], rows=2)
    assert parts["bytes"].tolist() == [2 * 2 * 512 * 2048] * 2
    assert parts["compute_s"][0] == pytest.approx(2 * parts["compute_s"][1])


def test_a_rate_is_of_a_pass_of_each_turn_but_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two passes of 1 sample and one of 2 take 4 and 5 s, then 2 and 8 s, then 3 and 4 s."""
    now = iter([0, 4, 0, 5, 0, 2, 0, 8, 0, 3, 0, 4])
    monkeypatch.setattr(time, "thread_time", lambda: next(now))
    rates = figure8.block_rates([1, 2], hidden=16, heads=2, tokens=4, repeats=2)
    assert rates == [[2 / 2, 2 / 8], [2 / 3, 2 / 4]]


def curves() -> pd.DataFrame:
    rows = [
        {"depth": d, "rows": b, "batch": batch, "throughput": batch * d * b / 100 + extra}
        for (d, b), extra in {(4, 1): 0, (8, 1): 0, (8, 32): 0}.items()
        for batch in (64, 128)
    ]
    return pd.DataFrame(rows)


def test_findings_are_read_off_the_curves() -> None:
    frame = curves()
    faster = frame.assign(throughput=2 * frame["throughput"])
    study = figure8.Figure8(frame, frame[frame["batch"] == 128], faster)
    claim, rises, widths = study.findings()
    assert claim.value is True
    assert rises.value == pytest.approx(64 * 4 / 100)
    assert rises.causes[0].value == pytest.approx(2 * 64 * 4 / 100)
    assert rises.causes[0].changed == "100 Gbps between servers"
    assert widths.value == [16, 8]
    assert "slower at 2 of 2 batch sizes" in study.figure().layout.title.text
    frame.loc[(frame["depth"] == 4) & (frame["batch"] == 64), "throughput"] = 1e3
    changed = figure8.Figure8(frame, frame[frame["batch"] == 128], faster).findings()
    assert changed[0].value is False
    assert changed[1].value < 0


def test_compute_falls_with_the_depth() -> None:
    assert figure8.compute_finding().value is True
