"""``make gpu`` on the CPU and in small; tests/device runs it on a simulated accelerator."""

from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

from experiments.benchmarks.harness import crew
from experiments.gpu import check
from experiments.gpu.check import MICROBATCHES, STAGES, network, unsplit

WIDTH, ROWS = 32, 2


def trained(rank: int, name: str, ranks: int) -> dict[str, torch.Tensor]:
    """The weights of this rank's stages after two batches."""
    model = network(WIDTH)
    step = check.trainer(model, ROWS, name, ranks, torch.device("cpu"))
    step()
    step()
    return {name: p.detach() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.scripts
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_torchs_pipelining_trains_the_same_network(ranks: int) -> None:
    model = network(WIDTH)
    step = unsplit(model, "cpu", ROWS)
    step()
    step()
    name, *_ = check.tables(STAGES, MICROBATCHES, ranks)
    found: dict[str, Any] = {}
    with crew(ranks) as processes:
        for own in processes.call(trained, name, ranks):
            assert not found.keys() & own.keys()
            found |= own
    assert found.keys() == dict(model.named_parameters()).keys()
    torch.testing.assert_close(found, dict(model.named_parameters()), rtol=1e-4, atol=1e-6)


def test_each_process_has_equally_many_stages() -> None:
    assert [check.ranks_on(4, devices) for devices in (1, 2, 3, 4, 8)] == [1, 2, 2, 4, 4]
    for ranks in (1, 2, 4):
        for schedule in check.tables(4, 8, ranks).values():
            assert (schedule.stages, len(schedule.workers)) == (4, ranks)


@pytest.mark.scripts
def test_everybody_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "BATCHES", 1)
    found = check.speed(["cpu"] * STAGES, WIDTH, ROWS).set_index("who")
    assert {who.partition(",")[0] for who in found.index} == {
        *("unsplit", "GPipe", "1F1B", "PipeDream-2BW", "torch.distributed.pipelining")
    }
    assert (found["ms"] > 0).all()
    assert found.loc[check.UNSPLIT, "rate"] == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    app = typer.Typer()
    app.command()(check.main)
    done = CliRunner().invoke(app, [], catch_exceptions=False)
    assert done.exit_code == 1
    assert done.stderr.startswith("no GPU here")
