"""Small cells: trained, and beside them what equal stages would do."""

from functools import partial

import pytest
import torch
from torch import nn

from pipekit.papers.torchgpipe.speed_measured import Small, measured


def test_small_cells_are_really_trained() -> None:
    layers = [nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh()]
    table = measured(
        nn.Sequential(*layers),
        torch.rand(1, 8),
        torch.rand(1, 8),
        {
            "naive": Small(1, 1, "never", 4),
            "two": Small(2, 2, "except_last", 8),
        },
        loss=nn.MSELoss(),
        optimizer=partial(torch.optim.SGD, lr=0.1),
        rounds=1,
    )
    assert list(table["cell"]) == ["naive", "two"]
    assert table["speedup"][0] == 1
    assert (table["rows/s"] > 0).all()
    # Naive: 12 s for 4 rows.  Two: forwards of 2 s, the last stage's 3 and backwards of 4 s each,
    # with one second forward between them, and the first stage's last backward.
    assert table["speedup (simulated)"][1] == pytest.approx(8 / 20 * 12 / 4)
