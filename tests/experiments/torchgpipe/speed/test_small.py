"""Small cells: trained, and beside them what equal stages would do."""

import pytest
import torch
from torch import nn

from experiments.torchgpipe.speed.small import ROUNDS, Small, measured
from pipekit.traces import Trace


def test_small_cells_are_really_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    workers: list[int] = []

    def seconds(trace: Trace) -> list[float]:
        workers.append(trace.workers)
        return [0.0, [2.0, 5.0, 3.0, 1.0][len(workers) - 1]]

    monkeypatch.setattr(Trace, "ends", lambda trace, *_, **__: seconds(trace))
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
        rounds=2,
    )
    assert workers == [1, 2, 1, 2]
    assert list(table["cell"]) == ["naive", "two"]
    assert table["rows/s"].tolist() == [4 / 2, 8 / 1]  # the faster round of each
    assert table["speedup"].tolist() == [1, 4]
    assert [len(rounds) for rounds in table[ROUNDS]] == [2, 0], "two workers wait"
    assert table[ROUNDS][0] == [1, 1]
    # Naive: 12 s for 4 rows.  Two: forwards of 2 s, the last stage's 3 and backwards of 4 s each,
    # with one second forward between them, and the first stage's last backward.
    assert table["speedup (simulated)"][1] == pytest.approx(8 / 20 * 12 / 4)
