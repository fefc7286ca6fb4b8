"""Small networks in several precisions (GPipe, 3.2 and 4.3), and with batch norm (3.2)."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import SGD

from experiments.study.tables import farthest
from experiments.study.training import Recipe, noted, relative_difference, trained_weights
from pipekit import Execution, is_checkpointing, is_recomputing
from pipekit.datasets import Batch, digits
from pipekit.layers.batch_norm import DeferredBatchNorm
from pipekit.plans import Recompute
from pipekit.schedules import gpipe

OPTIMIZER = partial(SGD, lr=0.05, momentum=0.9)
BATCH_ROWS = 64


def network(seed: int) -> nn.Sequential:
    """Return a convolutional network for images [B, 1, 8, 8], giving logits [B, 10]: 9 layers."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),  # [B, 8, 8, 8]
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, padding=1),  # [B, 16, 8, 8]
        nn.ReLU(),
        nn.MaxPool2d(2),  # [B, 16, 4, 4]
        nn.Flatten(),
        nn.Linear(256, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def recipe(seed: int, epochs: int) -> Recipe:
    """Return the training that all runs share: 1,437 images of digits, 360 to test on."""
    return Recipe(network(seed), digits(), OPTIMIZER, BATCH_ROWS, epochs, seed)


class Cast(nn.Module):
    """A layer that computes in bfloat16 where autocast knows how, and gives another type."""

    def __init__(self, layer: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer, self.dtype = layer, dtype

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            y: Tensor = self.layer(x)
        return y.to(self.dtype)


def in_bfloat16(training: Recipe) -> Recipe:
    """Return a training whose layers compute in and pass on bfloat16; the logits are float32."""
    layers = [Cast(layer, torch.bfloat16) for layer in training.model]
    return replace(training, model=nn.Sequential(*layers, Cast(nn.Identity(), torch.float32)))


def in_float64(training: Recipe) -> Recipe:
    """Return the same training with a billion times less rounding."""
    data, model = training.data, copy.deepcopy(training.model).double()
    inputs = data.train_inputs.double(), data.test_inputs.double()
    exact = replace(data, train_inputs=inputs[0], test_inputs=inputs[1])
    return replace(training, model=model, data=exact)


def without_kinks(training: Recipe) -> Recipe:
    """Return the same training with smooth layers, where no rounding can tip a choice."""
    smooth = {nn.ReLU: nn.Tanh(), nn.MaxPool2d: nn.AvgPool2d(2)}
    layers = (smooth.get(type(layer), layer) for layer in training.model)
    return replace(training, model=nn.Sequential(*layers))


NORMS = 1, 4  # the layers of with_batch_norm that are batch norm


def with_batch_norm(norm: Callable[[int], nn.Module] = DeferredBatchNorm) -> nn.Sequential:
    """Return the network with batch norm behind both convolutions: 11 layers."""
    first, relu, second, *others = network(seed=0)
    return nn.Sequential(first, norm(8), relu, second, norm(16), *others)


def moving_averages(
    batches: Sequence[Batch], stages: int, microbatches: int, recompute: Recompute
) -> dict[str, float]:
    """Return how far moving averages are from those of whole minibatches, each counted once.

    "own" is the largest relative difference from ordinary batch norm on the layer's own inputs,
    "unsplit" that from the wholly unsplit network; "counted" how often a minibatch counted.
    """
    watched = with_batch_norm()
    inputs = [noted([watched[number]], _first_input) for number in NORMS]
    how = {"optimizer": partial(SGD, lr=0.0), "loss": nn.CrossEntropyLoss()}
    how |= {"execution": Execution(recompute=recompute)}
    state = trained_weights(watched, gpipe(stages, microbatches), batches, **how)

    unsplit = with_batch_norm(nn.BatchNorm2d)
    by_layer = copy.deepcopy(unsplit)
    with torch.no_grad():
        for x, _ in batches:
            unsplit(x)
        for number, seen in zip(NORMS, inputs, strict=True):
            own = [x for x in seen if x is not None]
            for first in range(0, len(own), microbatches):
                by_layer[number](torch.cat(own[first : first + microbatches]))
    counted = [float(state[f"{number}.num_batches_tracked"]) / len(batches) for number in NORMS]
    apart = {"own": _apart(state, by_layer), "unsplit": _apart(state, unsplit)}
    return apart | {"counted": farthest(counted, 1)}


def _apart(state: Mapping[str, Tensor], model: nn.Sequential) -> float:
    expected = model.state_dict()
    keys = [f"{number}.running_{name}" for number in NORMS for name in ("mean", "var")]
    return max(relative_difference({k: state[k]}, {k: expected[k]}) for k in keys)


def _first_input(_: nn.Module, x: Tensor, __: Tensor) -> Tensor | None:
    """Return a layer's input in training, but not when the engine tries the model or recomputes."""
    first = (torch.is_grad_enabled() or is_checkpointing()) and not is_recomputing()
    return x.detach().clone() if first else None
