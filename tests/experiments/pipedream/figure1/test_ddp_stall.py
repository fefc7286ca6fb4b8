"""Stalls over slow links: the sums behind the table, and two real workers."""

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from experiments.pipedream.figure1 import ddp_stall, ddp_worker
from experiments.pipedream.figure1.ddp_stall import Measured
from experiments.pipedream.figure1.ddp_worker import AFTER, COMPUTE, ENGINE, WAIT_FREE
from pipekit.clusters.namespaces import available

REASON = available()
MEASURED = Measured(
    "80mbit",
    {COMPUTE: [0.1, 0.1, 9], WAIT_FREE: [0.4], AFTER: [0.5], ENGINE: [0.5]},
    [1.0, 0.8, 0.9],
)


def test_stalls_are_what_is_beyond_the_median_compute() -> None:
    assert MEASURED.stall_s(WAIT_FREE) == pytest.approx(0.3)
    assert MEASURED.throughput_ratio == pytest.approx(0.8)
    frame = ddp_stall.table([MEASURED]).set_index("way")
    assert frame["stall_percent"][AFTER] == pytest.approx(80)
    assert list(frame["link"].unique()) == ["80mbit"]


def test_a_turns_throughput_is_compared_with_the_same_turns() -> None:
    steps = {WAIT_FREE: [1.0, 1.0, 2.0, 2.0], ENGINE: [2.0, 2.0, 2.0, 2.0], COMPUTE: [1.0]}
    turns = Measured(None, steps | {AFTER: [1.0]}, [], turns=2)
    assert turns.throughput_ratios == [0.5, 1.0]
    (fair,) = ddp_stall.findings([turns])
    assert (fair.value, fair.repeats) == (0.75, (0.5, 1.0))


def test_findings_are_of_the_links_that_say_something() -> None:
    free = Measured(None, MEASURED.steps | {ENGINE: [0.8]}, [0.1])
    assert [each.link for each in ddp_stall.limited([free, MEASURED])] == ["80mbit"]
    stalls, model, same, fair = ddp_stall.findings([free, MEASURED])
    assert stalls.value == pytest.approx([0.3, 0.4])
    assert model.value == same.value == MEASURED.transfer_ratio
    assert same.claim == "2bw-comm-time-model"
    assert fair.value == pytest.approx(0.5)
    assert "at no limit, 800 ms a step, DDP 400 ms" in fair.note
    assert [each.claim for each in ddp_stall.findings([free])] == [fair.claim]
    assert ddp_stall.findings([]) == []


def test_a_point_a_way_and_limited_link() -> None:
    points = ddp_stall.stall_points([MEASURED, Measured(None, MEASURED.steps, [])])
    assert points["link (Mbit/s)"].tolist() == [80.0] * 3
    assert points["stall (% of a step)"].tolist() == pytest.approx([75, 80, 80])
    assert "At 80mbit" in ddp_stall.stall_figure([MEASURED]).layout.title.text


def test_a_transfer_is_compared_with_bytes_over_bandwidth() -> None:
    assert MEASURED.transfer_ratio == pytest.approx(0.9 / 2.5690112)  # pool3 at 10 MB/s


def test_the_exchange_at_the_links_rate() -> None:
    parameter_bytes = sum(p.nbytes for p in ddp_worker.network().parameters())
    assert MEASURED.exchange_s == pytest.approx(parameter_bytes / 10e6)
    assert Measured(None, {}, []).exchange_s == 0


def test_the_linear_layers_have_nearly_all_weights() -> None:
    model = ddp_worker.network()
    linear = sum(p.numel() for m in model if isinstance(m, nn.Linear) for p in m.parameters())
    assert linear / sum(p.numel() for p in model.parameters()) > 0.99
    assert model(torch.rand(2, 1, 28, 28)).shape == (2, 10)


def test_a_step_alone_trains() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    weight = next(model.parameters())
    before = weight.detach().clone()
    batch = torch.rand(3, 2, 2), torch.tensor([0, 1, 1])
    assert len(ddp_worker.timed(ddp_worker.alone(model), [batch] * 3)) == 2
    assert not torch.equal(before, weight)


def test_sums_after_the_backward_are_averages(monkeypatch: pytest.MonkeyPatch) -> None:
    def double(tensor: Tensor) -> None:  # the other worker has the same gradients
        tensor *= 2

    monkeypatch.setattr("torch.distributed.all_reduce", double)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    weights = []
    for step_of in (ddp_worker.alone, ddp_worker.summed_after):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
        step_of(model)(torch.ones(1, 2, 2), torch.tensor([0]))
        weights.append(next(model.parameters()))
    assert torch.equal(weights[0], weights[1])


@pytest.mark.long
@pytest.mark.skipif(REASON is not None, reason=str(REASON))
def test_two_workers_over_a_slow_link() -> None:
    found = ddp_stall.measure("1gbit", rows=4, steps=2, repeats=1)
    assert set(found.steps) == {COMPUTE, WAIT_FREE, AFTER, ENGINE}
    assert all(len(seconds) == 2 for seconds in found.steps.values())
    physics = 0.7 * found.exchange_s  # an idle link lets a burst through at once
    for way in (WAIT_FREE, AFTER, ENGINE):
        assert found.step_s(way) > physics > 0
    assert len(found.transfers) == ddp_worker.TRANSFERS
    assert found.transfer_ratio > 0.9


@pytest.mark.slow
@pytest.mark.skipif(REASON is not None, reason=str(REASON))
def test_a_failing_worker_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no such module: $2 >&2\nexit 3\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(
        RuntimeError, match=f"exit code 3:\n.*no such module: {ddp_worker.__name__}"
    ):
        ddp_stall.measure("1gbit", rows=4, steps=1, repeats=1)
