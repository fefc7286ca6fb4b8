"""Weights that layers of several stages share, as the embeddings of input and output.

Every stage has a copy.  At each update the gradients of the copies are summed, each stage's own sum
in the order of the stages (those of one worker first), so that all copies take the same step and
stay equal for ever.
"""

import copy
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pipekit.devices import synchronize
from pipekit.engine.updates.all_reduce import Exchange, Round
from pipekit.engine.updates.buckets import Flat, Gradients, parameter_buckets
from pipekit.engine.updates.weight_versions import WeightVersions


class Tie(NamedTuple):
    """Trained parameters of which the same stages have copies.

    Attributes:
        stages: those that have them, in order.
        places: for each of these, where they stand among its trained parameters.
    """

    stages: tuple[int, ...]
    places: tuple[tuple[int, ...], ...]

    def members(self, homes: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """Return the workers that have a copy, or several, given those of each stage."""
        return tuple(dict.fromkeys(worker for stage in self.stages for worker in homes[stage]))


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
    """Sums the gradients of a worker's copies with those of the others, on the worker's thread.

    Args:
        number: of the tie.
        tie: what is shared by which stages.
        worker: this one.
        homes: the workers of every stage.
        versions: of the worker's stages, by index.
        exchange: with all workers that have a copy.
        device: where the gradients lie.
    """

    def __init__(
        self,
        number: int,
        tie: Tie,
        worker: int,
        homes: Sequence[Sequence[int]],
        versions: Mapping[int, WeightVersions],
        exchange: Exchange,
        device: torch.device,
    ) -> None:
        self._number, self._exchange, self._device = number, exchange, device
        copies = {s: p for s, p in zip(tie.stages, tie.places, strict=True) if s in versions}
        first, *_ = copies
        # Where a parameter's copies stand, by the number of the first of them.
        self._copies = {
            each[0]: list(zip(copies, each, strict=True))
            for each in zip(*copies.values(), strict=True)
        }
        shared = {p: versions[first].parameters[0][p] for p in copies[first]}
        self._buckets = parameter_buckets(shared, versions[first].take)
        # All workers of a stage have the stage's sum: the first one contributes it.
        self._contributors = list(dict.fromkeys(homes[stage][0] for stage in tie.stages))
        self._contributed = {stage for stage in copies if homes[stage][0] == worker}
        self._lent: list[Flat] = []  # what the last update's gradients lie in

    @property
    def sent(self) -> dict[int, int]:
        """Bytes of gradients sent, by receiver."""
        return dict(self._exchange.sent)

    def sum(self, gradients: Mapping[int, Gradients], update: int) -> None:
        """Put the sums over all copies into the gradients of the worker's stages, by index.

        They last until the next call.
        """
        contents = []
        for place, bucket in enumerate(self._buckets):
            own = bucket.flat([self._own(gradients, number) for number in bucket.parameters])
            round = Round(
                self._number, (update - 1) * len(self._buckets) + place, self._contributors
            )
            contents.append(self._exchange.sum(round, own))
        synchronize(self._device)
        # All workers have finished the last update's sums now, and read what they were sent of it.
        for bucket, content in zip(self._buckets, self._lent, strict=False):
            bucket.release(content)
        self._lent = contents
        for bucket, content in zip(self._buckets, contents, strict=True):
            for number, total in bucket.gradients(content):
                (stage, place), *others = self._copies[number]
                gradients[stage][place] = total
                for stage, place in others:  # each scales its own
                    gradients[stage][place] = None if total is None else total.clone()

    def _own(self, gradients: Mapping[int, Gradients], number: int) -> Tensor | None:
        """Return the sum over the copies of one parameter that this worker contributes."""
        total = None
        for stage, place in self._copies[number]:
            gradient = gradients[stage][place] if stage in self._contributed else None
            if gradient is not None:
                total = gradient if total is None else total + gradient
        return total
