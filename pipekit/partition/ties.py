"""Weights that layers of several stages share, as the embeddings of input and output.

Every stage has a copy of them.  Each begins the backward of a microbatch with the gradient that the
later stages have added up, and passes on the sum, so that the first stage has the gradient of all
uses, from the last one to the first, as it is summed in the unsplit model.
"""

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from torch import nn


class Tie(NamedTuple):
    """Trained parameters of which the same stages have copies."""

    stages: tuple[int, ...]
    places: tuple[tuple[int, ...], ...]  # by stage: where they stand among its trained parameters

    def members(self, stage_workers: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """Return the workers that have a copy, or several, given those of each stage."""
        workers = (worker for stage in self.stages for worker in stage_workers[stage])
        return tuple(dict.fromkeys(workers))


class TieWay(NamedTuple):
    """A way on which the gradient of a shared parameter goes back, from stage late to early.

    ``original`` and ``copy``: where it stands among their trained parameters.
    """

    early: int
    late: int
    original: int
    copy: int


def tie_ways(ties: Iterable[Tie]) -> Iterator[TieWay]:
    """Yield the ways between each stage of a tie and the next, for each of its parameters."""
    for tie in ties:
        for (early, originals), (late, copies) in pairwise(
            zip(tie.stages, tie.places, strict=True)
        ):
            for places in zip(originals, copies, strict=True):
                yield TieWay(early, late, *places)


def tie_ends(ties: Iterable[Tie]) -> list[tuple[int, int]]:
    """Return the stages between which the gradient of each shared parameter goes back."""
    return [(way.early, way.late) for way in tie_ways(ties)]


def trained(stage: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that an optimizer of the stage updates, each once."""
    return [p for p in stage.parameters() if p.requires_grad]


Trained = Callable[[nn.Module], list[nn.Parameter]]


def find_ties(stages: Iterable[nn.Module], trained: Trained = trained) -> tuple[Tie, ...]:
    """Return what stages share of what is trained."""
    places = defaultdict[nn.Parameter, dict[int, int]](dict)
    for index, stage in enumerate(stages):
        for place, parameter in enumerate(trained(stage)):
            places[parameter][index] = place
    ties = defaultdict[tuple[int, ...], list[tuple[int, ...]]](list)
    for where in places.values():
        if len(where) > 1:
            ties[tuple(where)].append(tuple(where.values()))
    return tuple(Tie(s, tuple(zip(*each, strict=True))) for s, each in ties.items())


def parameter_numbers(
    stages: Sequence[nn.Module], trained: Trained = trained
) -> list[list[int | None]]:
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
