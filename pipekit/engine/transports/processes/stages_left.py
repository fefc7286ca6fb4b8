"""Stages as worker processes have left them: there, until somebody here reads them.

Most calls of ``train`` follow one another, and the next one begins with what each process has.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from pipekit.engine.execution.stage import Stage, StageConfig
from pipekit.plans import Recompute

Content = tuple[nn.Sequential, dict[str, Any] | None, tuple[nn.Sequential, ...]]
"""What a run changes of a stage: its layers with their newest weights, the state of the optimizer,
scheduler and loss scaler, and the weight slots if they are kept."""


class StagesLeft:
    """The stages of one worker after a run.

    Args:
        configs: what they were made of before, as far as that is known here.
        fetch: returns what they are by now.

    Attributes:
        known: what they were made of when somebody last read them.
        stages: each of them.
    """

    def __init__(
        self, configs: Sequence[StageConfig], fetch: Callable[[], Sequence[Content]]
    ) -> None:
        self.known, self._fetch, self._is_here = configs, fetch, False
        self.stages = [StageLeft(self, place) for place in range(len(configs))]

    def read(self) -> Sequence[StageConfig]:
        """Return what they are made of, as they stand.

        Raises:
            WorkerDied: their process has ended, and they with it.
        """
        if not self._is_here:
            parts = zip(self.known, self._fetch(), strict=True)
            self.known = [config.trained(*content) for config, content in parts]
            self._is_here = True
        return self.known


class StageLeft:
    """One of these."""

    def __init__(self, left: StagesLeft, place: int) -> None:
        self._left, self._place = left, place

    @property
    def known(self) -> StageConfig:
        """What it was made of when somebody last read it."""
        return self._left.known[self._place]

    @property
    def index(self) -> int:
        """The stage's number."""
        return self.known.index

    @property
    def recompute(self) -> Recompute:
        """Which microbatches of a batch are recomputed."""
        return self.known.recompute

    @property
    def config(self) -> StageConfig:
        """What it is made of, as it stands."""
        return self._left.read()[self._place]

    def build(self, device: torch.device) -> Stage:
        """Return the stage, on its device."""
        return self.config.build(device)
