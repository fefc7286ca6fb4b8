"""Checkpoints that were written before the engine was rebuilt (at 4f35582) are still read.

``before_rebuild`` was written in the middle of a run of PipeDream over two stages: after 3 of 6
batches, with older weights in it, running statistics, Adam's state and a loss scale.
"""

import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from pipekit import Pipeline, schedules
from tests.engine.examples import Batches, different

SAVED = Path(__file__).parent / "before_rebuild"


def batches() -> Batches:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(4, 2, generator=generator), torch.randn(4, 1, generator=generator))
        for _ in range(6)
    ]


def pipeline(transport: str = "threads") -> Pipeline:
    torch.manual_seed(0)
    return Pipeline(
        nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Dropout(0.2), nn.Linear(3, 1)),
        lambda n: schedules.pipedream(2, n),
        balance=[2, 2],
        optimizer=partial(torch.optim.Adam, lr=0.01),
        loss=nn.MSELoss(),
        seed=3,
        loss_scale="dynamic",
        transport=transport,
    )


@pytest.mark.parametrize("transport", ["threads", "distributed"])
def test_the_run_goes_on_to_the_bit(transport: str, tmp_path: Path) -> None:
    folder = shutil.copytree(SAVED, tmp_path / "saved")
    whole = pipeline()
    expected = whole.train(batches())
    resumed = pipeline(transport)
    assert resumed.resume(folder) == 0
    run = resumed.train(batches(), checkpoints=folder)
    assert run.losses == expected.losses
    assert (run.trace.frame.query("op == 'FORWARD'")["microbatch"] >= 3).all()
    assert different(dict(resumed.state_dict()), dict(whole.state_dict())) == []
