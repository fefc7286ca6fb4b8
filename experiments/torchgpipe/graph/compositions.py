"""What a GPipe minibatch really does (3.1, 3.2): composition, places, bytes and gradients."""

import threading
from collections.abc import Sequence
from copy import deepcopy
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn

from pipekit.datasets import Batch
from pipekit.engine import Observer, Pipeline, PipelinedModule
from experiments.recorded.findings import Finding
from experiments.gpipe.timelines.partition import splits
from experiments.study.differences import TakeGradient
from experiments.study.differences import noted
from pipekit.schedules import Step, gpipe
from pipekit.trees import Tree, leaves


class _Inputs(Observer):
    """Keeps what each forward takes in."""

    def __init__(self) -> None:
        self.inputs: list[Tensor] = []

    def before_compute(self, worker: int, step: Step, activity: str, inputs: Tree) -> None:
        self.inputs.append(leaves(inputs)[0])


def splits_into_microbatches(x: Tensor, microbatches: int) -> bool:
    """Return whether the engine cuts x, [N, ...], as [T, N/T, ...] has it, with nothing lost (3.2).

    T divides N.
    """
    seen = _Inputs()
    PipelinedModule(nn.Sequential(nn.Identity()), [1], chunks=microbatches, observers=[seen])(x)
    reshaped = x.reshape(microbatches, len(x) // microbatches, *x.shape[1:])
    whole = torch.equal(torch.cat(seen.inputs), x)
    return whole and torch.equal(torch.stack(seen.inputs), reshaped)


def differing_compositions(model: nn.Sequential, inputs: Tensor, stages: Sequence[int]) -> int:
    """Return in how many splits the pipeline's output is not, to the bit, the unsplit model's.

    A stage is the composition of some neighbours of the layers f_1, ..., f_L (3.1).  All contiguous
    splits into so many stages are tried; inputs are [B, ...].
    """
    with torch.no_grad():
        expected = model.eval()(inputs)
    differing = 0
    for count in stages:
        for balance in splits(len(model), count):
            pipeline = Pipeline(
                model, gpipe(count, 1), balance=balance, optimizer=TakeGradient, loss=nn.MSELoss()
            )
            unlike = pipeline.evaluate([(inputs, expected)], lambda y, e: (y != e).float().mean())
            differing += unlike != 0
    return differing


def loss_place(
    model: nn.Sequential, batch: Batch, stages: int, microbatches: int, loss: nn.Module
) -> tuple[bool, float]:
    """Train on one minibatch and return where its loss is computed, and whether it is the loss.

    That is, whether the last layer's worker computes it, on the device of that layer's output, and
    no worker before does; and the relative difference from the loss of the unsplit minibatch, all
    outputs concatenated.  The model has neither dropout nor batch norm; the loss is a mean.
    """

    def place(_: nn.Module, __: Tensor, output: Tensor) -> tuple[bool, int, str]:
        # The engine first tries the model, without gradients.
        return torch.is_grad_enabled(), threading.get_ident(), str(output.device)

    watched, watched_loss = deepcopy(model), deepcopy(loss)
    seen = [noted([part], place) for part in (*watched, watched_loss)]
    pipeline = Pipeline(
        watched, gpipe(stages, microbatches), optimizer=TakeGradient, loss=watched_loss
    )
    (found,) = pipeline.train([batch]).losses
    *of_layers, of_loss = ({(t, d) for training, t, d in places if training} for places in seen)
    first_of_last = sum((pipeline.balance or [])[:-1])
    threads_before = {thread for places in of_layers[:first_of_last] for thread, _ in places}
    there = of_loss == of_layers[-1] and not threads_before & {thread for thread, _ in of_loss}
    with torch.no_grad():
        expected = float(loss(model(batch[0]), batch[1]))
    return there, abs(found - expected) / abs(expected)


def boundary_bytes(
    model: nn.Sequential, batch: Batch, stages: int, microbatches: int, loss: nn.Module
) -> tuple[int, int]:
    """Return the bytes that a minibatch sends where it should not, and those too many or too few.

    That is, bytes between workers that are no neighbours; and, summed over all pairs of neighbours
    and both directions, how far the bytes are from one activation, or one gradient, for each
    microbatch.  The layers pass on one tensor.
    """
    pipeline = Pipeline(model, gpipe(stages, microbatches), optimizer=TakeGradient, loss=loss)
    traffic = pipeline.train([batch], trace=False).traffic
    far = (traffic["source"] - traffic["destination"]).abs() != 1
    sent = traffic.set_index(["source", "destination", "purpose"])["bytes"]
    x, expected = batch[0], dict.fromkeys(sent.index, 0)
    ends = list(accumulate((pipeline.balance or [])[:-1], initial=0))
    with torch.no_grad():
        for boundary, (first, stop) in enumerate(pairwise(ends)):
            x = model[first:stop](x)
            expected[boundary, boundary + 1, "activation"] = x.nbytes
            expected[boundary + 1, boundary, "gradient"] = x.nbytes
    off = sum(abs(int(sent.get(place, 0)) - size) for place, size in expected.items())
    return int(traffic.loc[far, "bytes"].sum()), off


def findings(model: nn.Sequential, batch: Batch, loss: nn.Module) -> list[Finding]:
    """Return what sections 3.1 and 3.2 claim of stages, microbatches, the loss and messages.

    The model has nine layers at least, without dropout or batch norm; the batch a multiple of 16
    rows; the loss is a mean.
    """
    tried, sizes = [1, 2, 3, 4], [(2, 4), (4, 4), (4, 8), (8, 4)]
    count = sum(1 for k in tried for _ in splits(len(model), k))
    equal = differing_compositions(model, batch[0], tried) == 0
    reshaped = all(splits_into_microbatches(batch[0], t) for t in (1, 2, 4, 8, 16))
    places = [loss_place(model, batch, *kt, loss) for kt in sizes]
    sent = [boundary_bytes(model, batch, *kt, loss) for kt in [(1, 4), *sizes]]
    (there, apart), (far, off) = zip(*places, strict=True), zip(*sent, strict=True)
    place = (
        "the thread and device of the loss are those of the last layer's output, and no other "
        "stage's; the loss is that of the concatenated outputs, relative difference "
        f"{max(apart):.1e}"
    )
    counted = "K = 1, 2, 4, 8; bytes counted by the engine"
    return [
        Finding.exact("gpipe-eq-composition", equal, f"{count} splits, to the bit"),
        Finding.exact("gpipe-microbatch-reshape", reshaped, "T = 1, 2, 4, 8, 16"),
        Finding.exact("gpipe-last-stage-loss", all(there) and max(apart) < 1e-6, place),
        Finding.exact("gpipe-boundary-communication-only", [max(far), max(off)], counted),
    ]
