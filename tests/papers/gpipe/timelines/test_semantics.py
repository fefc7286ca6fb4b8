import pytest
import torch
from torch import nn

from pipekit import models
from pipekit.papers.gpipe.timelines import semantics

LOSS = nn.CrossEntropyLoss()


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # with more, sums are split and rounded otherwise


@pytest.fixture
def model() -> nn.Sequential:
    torch.manual_seed(0)
    return models.mlp(width=6, depth=3)


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(8, 6, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 6


def test_any_split_gives_the_unsplit_output(model: nn.Sequential) -> None:
    assert semantics.differing_compositions(model, torch.randn(4, 6), [1, 2, 5]) == 0


def test_microbatches_are_the_reshaped_minibatch() -> None:
    assert semantics.splits_into_microbatches(torch.randn(12, 3, 2), 4)


def test_the_last_worker_computes_the_loss(
    model: nn.Sequential, batch: tuple[torch.Tensor, torch.Tensor]
) -> None:
    there, apart = semantics.loss_place(model, batch, 3, 4, LOSS)
    assert there
    assert apart < 1e-6


def test_bytes_are_one_activation_and_one_gradient_a_boundary(
    model: nn.Sequential, batch: tuple[torch.Tensor, torch.Tensor]
) -> None:
    for stages in (1, 2, 4):
        assert semantics.boundary_bytes(model, batch, stages, 4, LOSS) == (0, 0)
