"""The outermost level of the recurrence, for few cuts: all numbers of replicas in one go."""

import numpy as np

from pipekit.planning.layer_ranges import Floats


class Outermost:
    """The best for the layers from each cut to the last, on exactly 1, 2, ... members.

    On m members that is a first stage on r of them and the best of the rest on m - r, which on
    nobody is nothing: there the layers must have come to an end.  ``stages`` are such first stages
    with their transfers, ``[replicas - 1, stop, first]``; there may be more of them than members.

    Args:
        cuts: how many there are.
        members: most that may be asked for.

    Attributes:
        candidates: how many were compared: a first stage, its members, and what others run.
    """

    def __init__(self, cuts: int, members: int) -> None:
        self._best = np.full((members + 1, cuts), np.inf)  # [members, first]
        self._best[0, -1] = 0
        self.candidates = 0

    def least(self, members: int, stages: Floats) -> float:
        """Return the value of all layers; those of fewer members must have been asked for."""
        stages, rest = self._parts(members, stages)
        joined = np.maximum(stages, rest[:, :, None])
        self.candidates += min(members - 1, len(stages)) * (joined.shape[-1] - 2) ** 2
        joined.reshape(-1, joined.shape[-1]).min(axis=0, out=self._best[members])
        return float(self._best[members, 0])

    def first_stage(
        self, members: int, stages: Floats, first: int, limit: float
    ) -> tuple[int, int]:
        """Return where a first stage ends, and its replicas, if nothing may exceed the limit.

        It has the most layers that it can have, and then the fewest replicas.
        """
        stages, rest = self._parts(members, stages)
        within = np.maximum(stages[:, :, first], rest) <= limit
        stop = int(np.flatnonzero(within.any(axis=0))[-1])
        return stop, 1 + int(within[:, stop].argmax())

    def _parts(self, members: int, stages: Floats) -> tuple[Floats, Floats]:
        """Return a first stage on 1, 2, ... members, and what is best for the rest."""
        stages = stages[:members]
        return stages, self._best[members - 1 :: -1][: len(stages)]
