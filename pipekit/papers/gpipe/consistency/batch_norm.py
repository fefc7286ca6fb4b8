"""Batch norm in a pipeline (3.2): statistics of a microbatch, moving averages of a minibatch."""

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product

import torch
from torch import Tensor, nn
from torch.optim import SGD

from pipekit import is_checkpointing, is_recomputing
from pipekit.datasets import Batch
from pipekit.engine import Pipeline
from pipekit.layers.batch_norm import DeferredBatchNorm
from pipekit.papers.findings import Finding
from pipekit.papers.gpipe.consistency.gradients import trained_weights
from pipekit.papers.trainings.differences import TakeGradient, bit_equal, relative_difference
from pipekit.papers.trainings.hooks import noted
from pipekit.plans import Recompute
from pipekit.schedules import gpipe

NORMS = 1, 4
"""The layers of :func:`network` that are batch norm."""

RECOMPUTED: tuple[Recompute, ...] = "never", "always"


def network(norm: Callable[[int], nn.Module] = DeferredBatchNorm) -> nn.Sequential:
    """Return a convolutional network with batch norm for images [B, 1, 8, 8]: 9 layers.

    Always with the same weights; in training mode.
    """
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),  # [B, 8, 8, 8]
        norm(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, padding=1),  # [B, 16, 8, 8]
        norm(16),
        nn.ReLU(),
        nn.MaxPool2d(2),  # [B, 16, 4, 4]
        nn.Flatten(),
        nn.Linear(256, 10),
    )


def microbatch_statistics(batch: Batch, stages: int, microbatches: int) -> tuple[bool, float]:
    """Return whether batch norm in training normalises by each microbatch's own statistics.

    That is, whether GPipe's outputs are those of the plain model that sees one microbatch at a
    time, to the bit; and their relative difference from the outputs for the unsplit minibatch.
    """
    loss, schedule = nn.CrossEntropyLoss(), gpipe(stages, microbatches).take(1)
    outputs = noted([loss], lambda _, output, __: output.detach().clone())
    Pipeline(network(), schedule, optimizer=TakeGradient, loss=loss).train([batch], trace=False)
    found, plain = torch.cat(outputs), network(nn.BatchNorm2d)
    with torch.no_grad():
        by_hand = torch.cat([plain(part) for part in torch.tensor_split(batch[0], microbatches)])
        unsplit = plain(batch[0])
    return torch.equal(found, by_hand), relative_difference({"y": found}, {"y": unsplit})


def moving_averages(
    batches: Sequence[Batch], stages: int, microbatches: int, recompute: Recompute
) -> tuple[float, float, float]:
    """Return whether moving averages are those of whole minibatches, each counted once.

    Returns:
        The largest relative difference of a layer's averages from those of ordinary batch norm
        that sees the layer's own inputs, unsplit; how often a minibatch was counted, 1 in every
        layer or the farthest from it; and the largest relative difference from the averages of the
        wholly unsplit network, whose later layers get other inputs, normalised by other
        statistics.
    """
    watched = network()
    inputs = [noted([watched[number]], _first_input) for number in NORMS]
    pipeline = Pipeline(
        watched,
        gpipe(stages, microbatches),
        optimizer=partial(SGD, lr=0.0),
        loss=nn.CrossEntropyLoss(),
        recompute=recompute,
    )
    pipeline.train(batches, trace=False)
    state = pipeline.state_dict()

    unsplit = network(nn.BatchNorm2d)
    by_layer = copy.deepcopy(unsplit)
    with torch.no_grad():
        for x, _ in batches:
            unsplit(x)
        for number, seen in zip(NORMS, inputs, strict=True):
            own = [x for x in seen if x is not None]
            for first in range(0, len(own), microbatches):
                by_layer[number](torch.cat(own[first : first + microbatches]))
    counted = {float(state[f"{number}.num_batches_tracked"]) / len(batches) for number in NORMS}
    times = max(counted, key=lambda times: abs(times - 1))
    return _apart(state, by_layer), times, _apart(state, unsplit)


def partitions_agree(batches: Sequence[Batch], stages: Sequence[int], microbatches: int) -> bool:
    """Return whether weights and moving averages are equal to the bit for all numbers of stages."""
    states = [trained_weights(network(), batches, count, microbatches) for count in stages]
    return all(bit_equal(state, states[0]) for state in states)


def findings(batches: Sequence[Batch]) -> list[Finding]:
    """Return what section 3.2 claims of batch norm, for several K and T.

    Batches are four minibatches or more of images [N, 1, 8, 8].
    """
    equal, apart = zip(
        *(microbatch_statistics(batches[0], k, t) for k, t in product([1, 2, 4, 8], [2, 4, 8])),
        strict=True,
    )
    cases = product([1, 4, 8], [2, 4, 8], RECOMPUTED)
    own, times, far = zip(*(moving_averages(batches[:4], *case) for case in cases), strict=True)
    to_the_bit = (
        f"K = 1, 2, 4, 8 and T = 2, 4, 8: to the bit; outputs are {min(apart):.1%} to "
        f"{max(apart):.1%} from the unsplit minibatch's"
    )
    by_layer = (
        "each layer against ordinary batch norm on its own inputs, unsplit; with and without "
        "recomputation. From a wholly unsplit network the second layer's averages are up to "
        f"{max(far):.1e} away: its inputs are normalised by microbatch"
    )
    counted = max(times, key=lambda n: abs(n - 1))
    own_statistics = all(equal) and min(apart) > 0
    return [
        Finding.exact("gpipe-bn-microbatch-stats", own_statistics, to_the_bit),
        Finding.exact("gpipe-bn-moving-average-minibatch", [max(own), counted], by_layer),
    ]


def _apart(state: Mapping[str, Tensor], model: nn.Sequential) -> float:
    expected = model.state_dict()
    keys = [f"{number}.running_{name}" for number in NORMS for name in ("mean", "var")]
    return max(relative_difference({k: state[k]}, {k: expected[k]}) for k in keys)


def _first_input(_: nn.Module, x: Tensor, __: Tensor) -> Tensor | None:
    """Return a layer's input in training, but not when the engine tries the model or recomputes."""
    first = (torch.is_grad_enabled() or is_checkpointing()) and not is_recomputing()
    return x.detach().clone() if first else None
