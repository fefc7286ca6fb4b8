"""Weights that layers of several stages share, as the embeddings of input and output.

Every stage has a copy.  At each update the gradients of the copies are summed, each stage's own sum
in the order of the stages, so that all copies take the same step and stay equal for ever.
"""

import copy
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import nn

from pipekit.engine.buckets import Flat, Gradients, parameter_buckets
from pipekit.engine.exchange import Exchange, Round
from pipekit.engine.versions import WeightVersions


class Tie(NamedTuple):
    """Trained parameters of which the same stages have copies.

    Attributes:
        stages: those that have them, in order.
        places: for each of these, where they stand among its trained parameters.
    """

    stages: tuple[int, ...]
    places: tuple[tuple[int, ...], ...]

    def members(self, homes: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """Return the workers that have a copy, given those of each stage."""
        return tuple(worker for stage in self.stages for worker in homes[stage])


def trained(stage: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that an optimizer of the stage updates, each once."""
    return [p for p in stage.parameters() if p.requires_grad]


def find_ties(stages: Sequence[nn.Module]) -> tuple[Tie, ...]:
    """Return what stages share."""
    places: dict[nn.Parameter, dict[int, int]] = defaultdict(dict)
    for index, stage in enumerate(stages):
        for place, parameter in enumerate(trained(stage)):
            places[parameter][index] = place
    ties: dict[tuple[int, ...], list[tuple[int, ...]]] = defaultdict(list)
    for where in places.values():
        if len(where) > 1:
            ties[tuple(where)].append(tuple(where.values()))
    return tuple(Tie(s, tuple(zip(*each, strict=True))) for s, each in ties.items())


def parameter_numbers(stages: Sequence[nn.Module]) -> list[list[int | None]]:
    """Return the number of every stage's trained parameters in the unsplit model.

    None stands for the copy of an earlier stage's, which counts there.
    """
    known: set[nn.Parameter] = set()
    found: list[list[int | None]] = []
    for stage in stages:
        found.append([])
        for parameter in trained(stage):
            found[-1].append(None if parameter in known else len(known))
            known.add(parameter)
    return found


def separated(stages: Sequence[nn.Sequential]) -> Iterator[nn.Sequential]:
    """Yield the stages, each with parameters of its own."""
    known: set[nn.Parameter] = set()
    for stage in stages:
        own = set(stage.parameters())
        yield stage if known.isdisjoint(own) else copy.deepcopy(stage)
        known |= own


class TiedSum:
    """Sums the gradients of one stage's copies with those of the others, on the worker's thread.

    Args:
        number: of the tie.
        tie: what is shared by which stages.
        stage: the one that is here.
        homes: the workers of every stage.
        versions: of the stage, here.
        exchange: with all workers that have a copy.
        device: where the gradients lie.
    """

    def __init__(
        self,
        number: int,
        tie: Tie,
        stage: int,
        homes: Sequence[Sequence[int]],
        versions: WeightVersions,
        exchange: Exchange,
        device: torch.device,
    ) -> None:
        self.number, self.stage = number, stage
        self._exchange, self._device = exchange, device
        shared = {p: versions.parameters[0][p] for p in tie.places[tie.stages.index(stage)]}
        self._buckets = parameter_buckets(shared, versions.take)
        # All workers of a stage have the stage's sum: the first one contributes it.
        self._contributors = [homes[stage][0] for stage in tie.stages]
        self._lent: list[Flat] = []  # what the last update's gradients lie in

    @property
    def sent(self) -> dict[int, int]:
        """Bytes of gradients sent, by receiver."""
        return dict(self._exchange.sent)

    def sum(self, gradients: Gradients, update: int) -> None:
        """Put the sums over the stages into a stage's gradients; they last until the next call."""
        contents = []
        for place, bucket in enumerate(self._buckets):
            own = bucket.flat([gradients[number] for number in bucket.parameters])
            round = Round(
                self.number, (update - 1) * len(self._buckets) + place, self._contributors
            )
            contents.append(self._exchange.sum(round, own))
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        # All workers have finished the last update's sums now, and read what they were sent of it.
        for bucket, content in zip(self._buckets, self._lent, strict=False):
            bucket.release(content)
        self._lent = contents
        for bucket, content in zip(self._buckets, contents, strict=True):
            for number, gradient in bucket.gradients(content):
                gradients[number] = gradient
