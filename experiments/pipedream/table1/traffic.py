"""What a plan sends (PipeDream, section 3.2), and how fast its links let it be."""

from typing import NamedTuple

from pipekit.clusters import Cluster
from pipekit.clusters.paths import all_reduce_bytes
from pipekit.plans import Plan
from pipekit.profiling import Profile


class Sent(NamedTuple):
    """Bytes that all workers together send a minibatch, each counted once."""

    weights: float
    activations: float

    @property
    def total(self) -> float:
        """Both."""
        return self.weights + self.activations


def sent(profile: Profile, plan: Plan) -> Sent:
    """Return the closed form of what a plan sends (section 3.2).

    In a round of m minibatches each of m replicas sends 2 (m - 1) / m |w| and receives as much:
    the paper's 4 (m - 1) / m |w| counts both.  A cut is passed by an activation and its gradient.
    """
    weights = sum(
        all_reduce_bytes(profile.stage(s.first, s.stop).parameter_bytes, s.replicas)
        for s in plan.stages
    )
    cuts = (profile.boundary_bytes(stage.first) for stage in plan.stages[1:])
    return Sent(weights, 2 * sum(cuts))


def reduction(ours: Sent, bsp: Sent, activations_once: bool = False) -> float:
    """Return by what part (0 to 1) less is sent than by data parallelism.

    ``activations_once`` counts weights at both ends of a link, as 4 (m - 1) / m |w| does, and
    activations at one; by default both are counted alike.
    """
    return 1 - (ours.total - ours.activations / 2 * activations_once) / bsp.total


def link_seconds(profile: Profile, plan: Plan, cluster: Cluster) -> float:
    """Return the seconds a minibatch that the busiest link needs in each direction.

    A plan cannot be faster; it can be as fast if its messages and sums share links perfectly.
    """
    return max(
        (
            all_reduce_bytes(profile.stage(s.first, s.stop).parameter_bytes, s.replicas)
            + (profile.boundary_bytes(s.first) if s.first else 0)
            + (profile.boundary_bytes(s.stop) if s.stop < len(profile) else 0)
        )
        / (s.replicas * cluster.levels[0].used_bandwidth)
        for s in plan.stages
    )


def formula_speedup(workers: int, calibrated_on: tuple[int, float]) -> float:
    """Return BSP's speedup if traffic, 4 (m - 1) / m |w| a worker, were all; fitted on a row."""
    known, speedup = calibrated_on
    a_byte = (known / speedup - 1) * known / (known - 1)  # of computing time, for each |w| sent
    return workers / (1 + a_byte * (workers - 1) / workers)
