"""The judge judged: parameters that are frozen, unused, or shared between stages."""

import itertools

import pytest
import torch
from torch import Tensor, nn

from tests.oracle.examples import OPTIMIZERS, network, train


def test_frozen_parameters_are_carried_along() -> None:
    model, frozen = network(), ["0.weight", "0.bias", "5.bias"]
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)
    run = train("pipedream", [1, 4, 4], model=model)
    for name, start in model.named_parameters():
        assert (name in run.gradients[0]) == (name not in frozen)
        assert torch.equal(run.weights[-1][name], start) == (name in frozen)


class Skippable(nn.Module):
    """A layer that leaves itself out for inputs with a negative sum."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, value: Tensor) -> Tensor:
        return value if value.sum() < 0 else self.linear(value)


def test_a_parameter_without_gradient_is_not_updated() -> None:
    """Not even by its momentum: torch skips it."""
    x, y = torch.ones(4, 6), torch.zeros(4, 6)
    run = train(
        "gpipe",
        [1, 1],
        model=nn.Sequential(Skippable(), nn.Linear(6, 6)),
        batches=[(x, y), (-x, y), (x, y)],
        optimizer=OPTIMIZERS["momentum"],
        loss=nn.MSELoss(),
    )
    name = "0.linear.weight"
    assert [name in gradient for gradient in run.gradients] == [True, False, True]
    path = [weights[name] for weights in run.weights]
    assert [torch.equal(a, b) for a, b in itertools.pairwise(path)] == [False, True, False]


@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize(
    "balance", [[9], [1, 8], [3, 6], [2, 3, 4], [5, 2, 2], [1, 3, 1, 2, 2], [1] * 9], ids=str
)
def test_a_parameter_shared_between_stages_is_trained_as_pytorch_does(
    balance: list[int], m: int
) -> None:
    """Used five times, once also as a layer: the order of its sums shows in the last bits."""
    torch.manual_seed(2)
    model = nn.Sequential(*(nn.Linear(6, 6) if n % 2 == 0 else nn.Tanh() for n in range(9)))
    for layer in (2, 4, 8):
        model[layer].weight = model[0].weight
    model[6] = model[2]
    batches = [(torch.randn(9, 6), torch.randn(9, 6)) for _ in range(3)]
    run = train(
        "sequential",
        balance,
        model=model,
        batches=batches,
        loss=nn.MSELoss(),
        clip_norm=0.1,
        microbatches=m,
    )
    optimizer = OPTIMIZERS["adam"](list(model.parameters()))
    for x, y in batches:
        optimizer.zero_grad()
        for rows, targets in zip(x.chunk(m), y.chunk(m), strict=True):
            loss = nn.functional.mse_loss(model(rows), targets)
            torch.autograd.backward(loss * (len(rows) / 9))
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    for name, weight in model.state_dict().items():
        assert torch.equal(run.weights[-1][name], weight)


def test_a_shared_parameter_whose_stages_are_joined_by_no_gradient() -> None:
    """Its first stage gives whole numbers, so that no backward begins there."""

    class Rounded(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).round().long()

    class Words(nn.Embedding):
        def forward(self, numbers: torch.Tensor) -> torch.Tensor:
            return super().forward(numbers % 6)

    first, words = Rounded(6, 6), Words(6, 6)
    words.weight = first.weight
    model = nn.Sequential(first, words, nn.Linear(6, 6))
    batches = [(torch.randn(8, 6), torch.randn(8, 6, 6))]
    run = train("sequential", [1, 1, 1], model=model, batches=batches, loss=nn.MSELoss())
    assert not torch.equal(run.weights[-1]["0.weight"], first.weight)
    assert torch.equal(run.weights[-1]["0.weight"], run.weights[-1]["1.weight"])
