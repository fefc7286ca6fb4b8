"""The loss scale of each update of a run, alike on all workers."""

from itertools import repeat
from typing import Any

import torch

from pipekit.losses.losses import LossScale
from pipekit.schedules.lowering.recurring import Recurring

_FLOAT32 = torch.finfo(torch.float32)


class LossScaler:
    """The loss scale after every update of a run.

    All losses that an update sums have one scale: the one after the oldest weight version which the
    last stage reads for them.  Every stage has made that version by then, so that nobody has to
    send the scale.

    It changes by the rule of ``torch.amp.GradScaler``, with one addition for weights that come
    late: after a bad update it is at most ``backoff`` times the scale which that update had.
    Several updates in flight with the same scale lower it once.
    """

    def __init__(self, rule: LossScale) -> None:
        self._rule = rule
        self._good = 0  # good updates since the scale last changed
        self._after = [rule.initial]  # after so many updates of this run
        self._versions: Recurring[int] = Recurring(())
        self.skipped: list[int] = []  # updates of this run whose gradient was not finite, from 1

    def begin(self, versions: Recurring[int]) -> None:
        """Make ready for a run."""
        self._after = self._after[-1:]
        self._versions, self.skipped = versions, []

    def begin_after(self, updates: int) -> None:
        """Go on in a run of which so many updates were made without a scale."""
        self._after = [*repeat(1.0, updates), self._rule.initial]

    def scale(self, update: int) -> float:
        """Return the scale of an update's losses; the updates up to its version have been noted."""
        return self._after[self._versions[update - 1]]

    @property
    def scales(self) -> list[float]:
        """The scales of all updates of this run that have been noted."""
        return [self.scale(update) for update in range(1, len(self._after))]

    def note(self, update: int, finite: bool) -> None:
        """Take the next update into account: whether its gradient was finite, on all stages."""
        rule, scale = self._rule, self._after[-1]
        if finite:
            self._good += 1
            if self._good == rule.interval:
                self._good = 0
                grown = scale * rule.growth
                scale = grown if grown <= _FLOAT32.max else scale
        else:
            self._good = 0
            self.skipped.append(update)
            scale = max(min(scale, self.scale(update) * rule.backoff), _FLOAT32.tiny)
        self._after.append(scale)

    def state_dict(self) -> dict[str, Any]:
        """Return all that has been noted in this run, of which the next run needs the end."""
        return {"after": [*self._after], "good": self._good, "skipped": [*self.skipped]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Be as far in a run as the scaler was that gave ``state``."""
        self._after, self.skipped = [*state["after"]], [*state["skipped"]]
        self._good = state["good"]
