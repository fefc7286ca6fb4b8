"""The memory model beside real training."""

import pytest
import torch

from experiments.torchgpipe.memory import small


def test_bytes_of_real_training_are_predicted() -> None:
    torch.manual_seed(0)
    frame = small.beside_simulated((1, 4), 4, 64, [(2, 2, "except_last")])
    assert frame["what"].tolist() == ["n = 2"] * 2
    assert frame["simulated"].to_numpy() == pytest.approx(frame["measured"].to_numpy(), rel=0.05)
    assert frame["measured (MB)"].tolist() == (frame["measured"] / 1e6).tolist()
