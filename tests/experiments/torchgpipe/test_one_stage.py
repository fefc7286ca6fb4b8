"""What recomputation saves and costs, on networks small enough to count by hand."""

from functools import partial

import torch
from torch import nn

from experiments.torchgpipe.one_stage import OneStage


def test_bytes_fall_by_the_number_of_microbatches() -> None:
    layers = [nn.Linear(16, 16), nn.Tanh()] * 3
    stage = OneStage(
        nn.Sequential(*layers),
        torch.rand(32, 16),
        torch.rand(32, 16),
        4,
        loss=nn.MSELoss(),
        optimizer=partial(torch.optim.SGD, lr=0.1),
    )
    held = stage.held()
    kept = {mode: each.intermediate_bytes for mode, each in held.items()}
    # Three outputs of a tanh, [32, 16] floats each, and the loss of each microbatch.
    assert kept["never"] == 3 * 32 * 16 * 4 + 4 * 4
    assert kept["never"] == 4 * kept["except_last"] == 4 * kept["always"]
    assert held["always"].peak_bytes == held["except_last"].peak_bytes
    assert {each.bytes_per_parameter for each in held.values()} == {8}
