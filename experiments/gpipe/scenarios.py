"""How GPipe's section 4 trains a network: its scenarios, and where they cut it."""

from dataclasses import dataclass
from typing import Literal

from pipekit.planning import balance
from pipekit.plans import Recompute
from pipekit.profiling import Profile
from pipekit.schedules import Schedule, gpipe

PIXELS, MINIBATCH, MICROBATCHES = 224, 128, 16
"""Image side, images of a minibatch, microbatches of it with GPipe (Table 1)."""


@dataclass(frozen=True)
class Scenario:
    """How a network is trained: without GPipe on accelerators that take turns, or with it."""

    name: str  # as printed: "naive-1" without GPipe, "pipeline-4" with it, on so many accelerators
    stages: int  # K, each on an accelerator of its own
    microbatches: int  # T, of a minibatch; without GPipe 1
    recompute: Recompute  # which microbatches are recomputed; without GPipe none
    minibatch: int = MINIBATCH  # its images

    @property
    def rows(self) -> int:
        """Images of a microbatch."""
        return self.minibatch // self.microbatches

    @property
    def pipelined(self) -> bool:
        """Whether GPipe is used."""
        return self.recompute != "never"

    @property
    def schedule(self) -> Schedule:
        """GPipe's schedule, of which the naive one is the case of one microbatch."""
        return gpipe(self.stages, self.microbatches)


def named(name: str, minibatch: int = MINIBATCH, microbatches: int = MICROBATCHES) -> Scenario:
    """Return a scenario by its printed name, say "pipeline-4"; only GPipe cuts the minibatch."""
    way, stages = name.split("-")
    if way == "naive":
        return Scenario(name, int(stages), 1, "never", minibatch)
    return Scenario(name, int(stages), microbatches, "always", minibatch)


By = Literal["operations", "time"]
"""What a partition is balanced by; the paper's is a static estimate, here the operations."""


def least_variance(profile: Profile, stages: int, by: By = "operations") -> list[int]:
    """Return the layers of each stage by GPipe's partitioner (sections 3.1 and 3.2)."""
    costs = [
        layer.flops if by == "operations" else layer.forward_s + layer.backward_s
        for layer in profile.layers
    ]
    return balance(costs, stages, by="variance")
