"""The loss scale of every update, known to all workers without asking."""

from typing import Any

import torch

from pipekit.losses.loss_scale import LossScale
from pipekit.schedules.lowering.recurring import Recurring

_FLOAT32 = torch.finfo(torch.float32)


class LossScaler:
    """The loss scale after every update of a run.

    All losses that an update sums have one scale: the one after the updates that are in the weights
    which the last stage reads for them (the oldest of these versions).  That is a version number of
    the table.  The last stage has made it when it computes the loss, and every stage before it
    makes the update itself, so that nobody has to send the scale to anybody.

    It changes by the rule of ``torch.amp.GradScaler``, with one addition for weights that come
    late: a bad update tells that the scale which it had is too large, so that the scale becomes at
    most ``backoff`` times that one.  Several updates in flight with the same scale lower it once.

    Attributes:
        skipped: updates of this run whose gradient was not finite, from 1.
    """

    def __init__(self, rule: LossScale) -> None:
        self._rule = rule
        self._good = 0  # good updates since the scale last changed
        self._after = {0: rule.initial}  # by the updates that have been noted, in order
        self._versions: Recurring[int] = Recurring(())
        self._made = 0  # updates of the table before the run
        self.skipped: list[int] = []

    def begin(self, versions: Recurring[int], keep: bool = False) -> None:
        """Make ready for a run.

        Args:
            versions: of which each update's losses have the scale, the first update's at 0.
            keep: whether the run goes on in the table of the last one, with its older scales.
        """
        newest, self._made = self._newest, 0
        if keep:
            self._made = newest
            self._after = {v: each for v, each in self._after.items() if v >= versions[newest]}
        else:
            self._after = {0: self._after[newest]}
        self._versions, self.skipped = versions, []

    def scale(self, update: int) -> float:
        """Return the scale of an update's losses; the updates up to its version have been noted."""
        return self._after[self._versions[update - 1]]

    @property
    def scales(self) -> list[float]:
        """The scales of all updates of this run that have been noted."""
        return [self.scale(update) for update in range(self._made + 1, self._newest + 1)]

    @property
    def _newest(self) -> int:
        return next(reversed(self._after))

    def note(self, update: int, finite: bool) -> None:
        """Take the next update into account: whether its gradient was finite, on all stages."""
        rule, scale = self._rule, self._after[self._newest]
        if finite:
            self._good += 1
            if self._good == rule.interval:
                self._good = 0
                grown = scale * rule.growth
                scale = grown if grown <= _FLOAT32.max else scale
        else:
            self._good = 0
            self.skipped.append(update - self._made)
            scale = max(min(scale, self.scale(update) * rule.backoff), _FLOAT32.tiny)
        self._after[update] = scale

    def course(self) -> dict[str, Any]:
        """Return all that has been noted in this run, for :meth:`take_up`."""
        return {
            "after": list(self._after.values()),
            "first": next(iter(self._after)),
            "good": self._good,
            "skipped": list(self.skipped),
        }

    def take_up(self, course: dict[str, Any]) -> None:
        """Be as far in a run that was interrupted as the scaler was that gave ``course``."""
        self._after = dict(enumerate(course["after"], start=course["first"]))
        self._good, self.skipped = course["good"], course["skipped"]

    def state_dict(self) -> dict[str, Any]:
        """Return what the next run needs."""
        return {"scale": self._after[self._newest], "good": self._good}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where another one was, which gave this."""
        self._after, self._good = {0: state["scale"]}, state["good"]
