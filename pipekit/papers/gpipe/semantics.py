"""What a GPipe minibatch really does (3.1, 3.2): composition, places, bytes and gradients."""

import threading
from collections.abc import Callable, Sequence
from copy import deepcopy
from itertools import pairwise

import torch
from torch import Tensor, nn

from pipekit.datasets import Batch
from pipekit.engine import Observer, Pipeline, PipelinedModule
from pipekit.papers.differences import TakeGradient
from pipekit.papers.findings import Finding
from pipekit.papers.gpipe.partition import splits
from pipekit.schedules import Step, gpipe
from pipekit.trees import Tree, leaves

Place = tuple[int, str]
"""A thread, and the device of what it computed."""


def splits_into_microbatches(x: Tensor, microbatches: int) -> bool:
    """Return whether the engine cuts [N, ...] as [T, N/T, ...] has it, and nothing is lost (3.2).

    Args:
        x: a minibatch, [N, ...].
        microbatches: T, which divides N.
    """
    seen = _Inputs()
    PipelinedModule(nn.Sequential(nn.Identity()), [1], chunks=microbatches, observers=[seen])(x)
    parts = seen.inputs
    reshaped = x.reshape(microbatches, len(x) // microbatches, *x.shape[1:])
    return bool(torch.equal(torch.stack(parts), reshaped) and torch.equal(torch.cat(parts), x))


def differing_compositions(model: nn.Sequential, inputs: Tensor, stages: Sequence[int]) -> int:
    """Return in how many splits the pipeline's output is not, to the bit, the unsplit model's.

    Args:
        model: layers f_1, ..., f_L; a stage is the composition of some neighbours (3.1).
        inputs: [B, ...].
        stages: numbers of stages; all contiguous splits into so many are tried.
    """
    with torch.no_grad():
        expected = model.eval()(inputs)
    differing = 0
    for count in stages:
        for balance in splits(len(model), count):
            outputs: list[Tensor] = []
            pipeline = Pipeline(
                model, gpipe(count, 1), balance=balance, optimizer=TakeGradient, loss=nn.MSELoss()
            )
            pipeline.evaluate([(inputs, inputs)], _keeping(outputs))
            differing += not torch.equal(outputs[0], expected)
    return differing


def loss_place(
    model: nn.Sequential, batch: Batch, stages: int, microbatches: int, loss: nn.Module
) -> tuple[bool, float]:
    """Train on one minibatch and return where its loss is computed, and whether it is the loss.

    Args:
        model: without dropout or batch norm.
        batch: one minibatch.
        stages: K.
        microbatches: T.
        loss: of a microbatch, a mean.

    Returns:
        Whether the last layer's worker computes the loss, on the device of that layer's output, and
        no worker before it does; and the relative difference from the loss of the unsplit
        minibatch, all outputs concatenated.
    """
    of_layers: list[set[Place]] = [set() for _ in model]
    of_loss: set[Place] = set()
    watched, watched_loss = deepcopy(model), deepcopy(loss)
    for part, seen in zip([*watched, watched_loss], [*of_layers, of_loss], strict=True):
        part.register_forward_hook(_noting(seen))
    pipeline = Pipeline(
        watched,
        gpipe(stages, microbatches),
        optimizer=TakeGradient,
        loss=watched_loss,
    )
    (found,) = pipeline.train([batch]).losses
    with torch.no_grad():
        expected = float(loss(model(batch[0]), batch[1]))
    first_of_last = sum((pipeline.balance or [])[:-1])
    before = {place for seen in of_layers[:first_of_last] for place in seen}
    threads_before = {thread for thread, _ in before}
    there = of_loss == of_layers[-1] and not threads_before & {thread for thread, _ in of_loss}
    return there, abs(found - expected) / abs(expected)


def boundary_bytes(
    model: nn.Sequential, batch: Batch, stages: int, microbatches: int, loss: nn.Module
) -> tuple[int, int]:
    """Return the bytes that a minibatch sends where it should not, and those too many or too few.

    Args:
        model: whose layers pass on one tensor.
        batch: one minibatch.
        stages: K.
        microbatches: T.
        loss: of a microbatch.

    Returns:
        Bytes between workers that are no neighbours; and, summed over all pairs of neighbours and
        both directions, how far the bytes are from one activation, or one gradient, for each
        microbatch.
    """
    pipeline = Pipeline(model, gpipe(stages, microbatches), optimizer=TakeGradient, loss=loss)
    traffic = pipeline.train([batch], trace=False).traffic
    far = (traffic["source"] - traffic["destination"]).abs() != 1
    sent = traffic.set_index(["source", "destination", "purpose"])["bytes"]
    x, expected = batch[0], dict.fromkeys(sent.index, 0)
    with torch.no_grad():
        ends = torch.tensor(pipeline.balance).cumsum(0).tolist()[:-1]
        for boundary, (first, stop) in enumerate(pairwise([0, *ends])):
            x = model[first:stop](x)
            expected[boundary, boundary + 1, "activation"] = x.nbytes
            expected[boundary + 1, boundary, "gradient"] = x.nbytes
    off = sum(abs(int(sent.get(place, 0)) - size) for place, size in expected.items())
    return int(traffic.loc[far, "bytes"].sum()), off


def findings(model: nn.Sequential, batch: Batch, loss: nn.Module) -> list[Finding]:
    """Return what sections 3.1 and 3.2 claim of stages, microbatches, the loss and messages.

    Args:
        model: without dropout or batch norm, of nine layers at least.
        batch: one minibatch, of a multiple of 16 rows.
        loss: of a microbatch, a mean.
    """
    tried = [1, 2, 3, 4]
    count = sum(1 for k in tried for _ in splits(len(model), k))
    places = [loss_place(model, batch, k, t, loss) for k, t in [(2, 4), (4, 4), (4, 8), (8, 4)]]
    apart = max(difference for _, difference in places)
    sent = [
        boundary_bytes(model, batch, k, t, loss)
        for k, t in [(1, 4), (2, 4), (4, 4), (4, 8), (8, 4)]
    ]
    return [
        Finding.exact(
            "gpipe-eq-composition",
            differing_compositions(model, batch[0], tried) == 0,
            f"{count} splits, to the bit",
        ),
        Finding.exact(
            "gpipe-microbatch-reshape",
            all(splits_into_microbatches(batch[0], t) for t in (1, 2, 4, 8, 16)),
            "T = 1, 2, 4, 8, 16",
        ),
        Finding.exact(
            "gpipe-last-stage-loss",
            all(there for there, _ in places) and apart < 1e-6,
            "the thread and device of the loss are those of the last layer's output, and no other "
            "stage's; the loss is that of the concatenated outputs, relative difference "
            f"{apart:.1e}",
        ),
        Finding.exact(
            "gpipe-boundary-communication-only",
            [max(far for far, _ in sent), max(off for _, off in sent)],
            "K = 1, 2, 4, 8; bytes counted by the engine",
        ),
    ]


class _Inputs(Observer):
    """Keeps what each forward takes in."""

    def __init__(self) -> None:
        self.inputs: list[Tensor] = []

    def before_compute(self, worker: int, step: Step, activity: str, inputs: Tree) -> None:
        self.inputs.append(leaves(inputs)[0])


def _noting(seen: set[Place]) -> Callable[[nn.Module, object, Tensor], None]:
    """Return a hook that notes where a layer, or a loss, computes in training."""

    def note(_: nn.Module, __: object, output: Tensor) -> None:
        if torch.is_grad_enabled():  # the engine first tries the model without gradients
            seen.add((threading.get_ident(), str(output.device)))

    return note


def _keeping(outputs: list[Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    def keep(output: Tensor, target: Tensor) -> Tensor:
        outputs.append(output)
        return torch.zeros(())

    return keep
