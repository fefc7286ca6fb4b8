"""Batch norm in a pipeline (3.2): statistics of a microbatch, moving averages of a minibatch."""

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product

import torch
from torch import Tensor, nn
from torch.optim import SGD

from pipekit.batch_norm import DeferredBatchNorm
from pipekit.datasets import Batch
from pipekit.engine import Pipeline
from pipekit.layers.pass_state import is_checkpointing, is_recomputing
from pipekit.papers.differences import TakeGradient, bit_equal, relative_difference
from pipekit.papers.findings import Finding
from pipekit.plans import Recompute
from pipekit.schedules import gpipe

AVERAGES = ("running_mean", "running_var")
RECOMPUTED: tuple[Recompute, ...] = "never", "always"


def network(seed: int) -> nn.Sequential:
    """Return a convolutional network with batch norm for images [B, 1, 8, 8]: 9 layers."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),  # [B, 8, 8, 8]
        DeferredBatchNorm(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, padding=1),  # [B, 16, 8, 8]
        DeferredBatchNorm(16),
        nn.ReLU(),
        nn.MaxPool2d(2),  # [B, 16, 4, 4]
        nn.Flatten(),
        nn.Linear(256, 10),
    )


def microbatch_statistics(batch: Batch, stages: int, microbatches: int) -> tuple[bool, float]:
    """Return whether batch norm in training normalises by each microbatch's own statistics.

    Args:
        batch: one minibatch of images [N, 1, 8, 8], of T equal microbatches.
        stages: K.
        microbatches: T.

    Returns:
        Whether GPipe's outputs are those of the plain model that sees one microbatch at a time, to
        the bit; and their relative difference from the outputs for the unsplit minibatch.
    """
    model, outputs = network(seed=0), list[Tensor]()
    loss = _keeping(nn.CrossEntropyLoss(), outputs.append)
    schedule = gpipe(stages, microbatches)
    Pipeline(model, schedule, optimizer=TakeGradient, loss=loss).train([batch], trace=False)
    found = torch.cat(outputs)
    plain = _ordinary(model)
    with torch.no_grad():
        by_hand = torch.cat([plain(part) for part in torch.tensor_split(batch[0], microbatches)])
        unsplit = plain(batch[0])
    return torch.equal(found, by_hand), relative_difference({"y": found}, {"y": unsplit})


def moving_averages(
    batches: Sequence[Batch], stages: int, microbatches: int, recompute: Recompute
) -> tuple[float, float, float]:
    """Return whether moving averages are those of whole minibatches, each counted once.

    The weights stay as they are, so that all minibatches are seen by the same network.

    Args:
        batches: minibatches of images [N, 1, 8, 8].
        stages: K.
        microbatches: T.
        recompute: which forwards run again.

    Returns:
        The largest relative difference of a layer's averages from those of ordinary batch norm that
        gets the layer's own inputs, each minibatch unsplit; how many times a minibatch is counted;
        and the largest difference from a wholly unsplit network, where the second layer's inputs
        are others, since the first one normalises by other statistics.
    """
    model = network(seed=0)
    norms = [number for number, layer in enumerate(model) if isinstance(layer, DeferredBatchNorm)]
    inputs: dict[int, list[Tensor]] = {number: [] for number in norms}
    watched = copy.deepcopy(model)
    for number in norms:
        watched[number].register_forward_pre_hook(_keeping_inputs(inputs[number]))
    pipeline = Pipeline(
        watched,
        partial(gpipe, stages, microbatches),
        optimizer=partial(SGD, lr=0.0),
        loss=nn.CrossEntropyLoss(),
        recompute=recompute,
    )
    pipeline.train(batches, trace=False)
    state = pipeline.state_dict()

    unsplit, by_layer = _ordinary(model), _ordinary(model)
    with torch.no_grad():
        for x, _ in batches:
            unsplit(x)
        for number in norms:
            for t in range(len(batches)):
                own = inputs[number][t * microbatches : (t + 1) * microbatches]
                by_layer[number](torch.cat(own))
    counted = {float(state[f"{number}.num_batches_tracked"]) / len(batches) for number in norms}
    return (
        _apart(state, by_layer, norms),
        max(counted, key=lambda times: abs(times - 1)),
        _apart(state, unsplit, norms),
    )


def partitions_agree(batches: Sequence[Batch], stages: Sequence[int], microbatches: int) -> bool:
    """Return whether weights and moving averages are equal to the bit for all numbers of stages.

    Args:
        batches: of images [N, 1, 8, 8], one update each.
        stages: numbers of partitions.
        microbatches: T.
    """
    states = []
    for count in stages:
        pipeline = Pipeline(
            network(seed=0),
            partial(gpipe, count, microbatches),
            optimizer=partial(SGD, lr=0.05, momentum=0.9),
            loss=nn.CrossEntropyLoss(),
        )
        pipeline.train(batches, trace=False)
        states.append(pipeline.state_dict())
    return all(bit_equal(state, states[0]) for state in states)


def findings(batches: Sequence[Batch]) -> list[Finding]:
    """Return what section 3.2 claims of batch norm, for several K and T.

    Args:
        batches: four minibatches or more of images [N, 1, 8, 8].
    """
    apart = [microbatch_statistics(batches[0], k, t) for k, t in product([1, 2, 4, 8], [2, 4, 8])]
    averages = [
        moving_averages(batches[:4], k, t, recompute)
        for k, t, recompute in product([1, 4, 8], [2, 4, 8], RECOMPUTED)
    ]
    full = [difference for _, difference in apart]
    return [
        Finding.exact(
            "gpipe-bn-microbatch-stats",
            all(equal and difference > 0 for equal, difference in apart),
            f"K = 1, 2, 4, 8 and T = 2, 4, 8: to the bit; outputs are {min(full):.1%} to "
            f"{max(full):.1%} from the unsplit minibatch's",
        ),
        Finding.exact(
            "gpipe-bn-moving-average-minibatch",
            [
                max(own for own, _, _ in averages),
                max((times for _, times, _ in averages), key=lambda n: abs(n - 1)),
            ],
            "each layer against ordinary batch norm on its own inputs, unsplit; with and without "
            "recomputation. From a wholly unsplit network the second layer's averages are up to "
            f"{max(far for _, _, far in averages):.1e} away: its inputs are normalised by "
            "microbatch",
        ),
    ]


def _ordinary(model: nn.Sequential) -> nn.Sequential:
    """Return a copy with torch's own batch norm, in training mode."""
    layers: list[nn.Module] = []
    for layer in copy.deepcopy(model):
        if isinstance(layer, DeferredBatchNorm):
            norm = nn.BatchNorm2d(layer.num_features)
            norm.load_state_dict(layer.state_dict())
            layers.append(norm)
        else:
            layers.append(layer)
    return nn.Sequential(*layers).train()


def _apart(state: Mapping[str, Tensor], model: nn.Sequential, norms: Sequence[int]) -> float:
    expected = model.state_dict()
    keys = [f"{number}.{name}" for number in norms for name in AVERAGES]
    return max(relative_difference({k: state[k]}, {k: expected[k]}) for k in keys)


def _keeping(loss: nn.Module, keep: Callable[[Tensor], None]) -> Callable[[Tensor, Tensor], Tensor]:
    def kept(output: Tensor, target: Tensor) -> Tensor:
        keep(output.detach().clone())
        value: Tensor = loss(output, target)
        return value

    return kept


def _keeping_inputs(kept: list[Tensor]) -> Callable[[nn.Module, tuple[Tensor]], None]:
    """Return a hook that keeps a layer's inputs in training, each once."""

    def keep(_: nn.Module, inputs: tuple[Tensor]) -> None:
        first = torch.is_grad_enabled() or is_checkpointing()  # not when the engine tries the model
        if first and not is_recomputing():
            kept.append(inputs[0].detach().clone())

    return keep
