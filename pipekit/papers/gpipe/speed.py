"""GPipe's Figure 3: how fast AmoebaNet-D and ResNet-101 get on more accelerators (4.2).

The paper's machines are reckoned by the roofline, with the sizes that it prints: minibatches of
128 images in 16 microbatches (Table 1), 12 bytes a parameter (4.1), 8 GB an accelerator (4).  Its
partitioner minimises the variance of a *static* estimate of each layer's cost (3.1, 3.2): here its
operations.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from types import MappingProxyType

import torch
from torch import nn

from pipekit.clusters import Cluster
from pipekit.clusters.papers import TPU_V2_CORE, gpipe_tpu_v2
from pipekit.emulation import emulate
from pipekit.models import amoebanet_d, resnet101
from pipekit.papers.pace import faster_links, stretched
from pipekit.planning.balance import balance
from pipekit.plans import Plan, Recompute
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import Schedule, gpipe
from pipekit.simulation import simulate
from pipekit.traces import Trace

PIXELS = 224
MINIBATCH, MICROBATCHES = 128, 16
DTYPE, DTYPE_BYTES = "bfloat16", 2
STATE_BYTES = 12
"""Of a parameter: itself, its moving average and its momentum (section 4.1)."""

AMOEBANET, RESNET = "AmoebaNet-D (4, 512)", "ResNet-101"
NETWORKS: Mapping[str, Callable[..., nn.Sequential]] = MappingProxyType(
    {AMOEBANET: partial(amoebanet_d, 3 * 4, 512), RESNET: resnet101}
)
"""By name; GPipe counts the normal cells of one group, of which there are three."""

COST: Mapping[str, Callable[[LayerProfile], float]] = MappingProxyType(
    {
        "operations": lambda layer: layer.flops,
        "time": lambda layer: layer.forward_s + layer.backward_s,
    }
)
"""What a partition can be balanced by; the paper's is a static estimate."""


@dataclass(frozen=True)
class Scenario:
    """A bar of Figure 3.

    Attributes:
        name: as printed, say "pipeline-4".
        stages: K, each on an accelerator of its own.
        microbatches: T, of a minibatch.
        recompute: which microbatches are recomputed.
    """

    name: str
    stages: int
    microbatches: int
    recompute: Recompute

    @property
    def pipelined(self) -> bool:
        """Whether GPipe is used."""
        return self.recompute != "never"


def naive(stages: int) -> Scenario:
    """Return plain training without GPipe, on so many accelerators that take turns (4.2)."""
    return Scenario(f"naive-{stages}", stages, 1, "never")


def pipeline(stages: int, microbatches: int = MICROBATCHES) -> Scenario:
    """Return GPipe: everything is recomputed."""
    return Scenario(f"pipeline-{stages}", stages, microbatches, "always")


@cache
def profile_of(network: str, efficiency: float = 0.5, memory_efficiency: float = 0.75) -> Profile:
    """Return a network's costs on a TPU-v2 core, for one of Table 1's microbatches.

    An update reads the gradient, and reads and writes the 12 bytes of each parameter; as any other
    pass that computes little, it takes as long as its bytes.

    Args:
        network: a key of :data:`NETWORKS`.
        efficiency: see :meth:`Profile.analytic`.
        memory_efficiency: likewise.
    """
    with torch.device("meta"):
        sample = torch.rand(MINIBATCH // MICROBATCHES, 3, PIXELS, PIXELS)
    profile = Profile.analytic(
        NETWORKS[network](device="meta"),
        sample,
        TPU_V2_CORE,
        dtype=DTYPE,
        efficiency=efficiency,
        memory_efficiency=memory_efficiency,
    )
    a_byte = (2 * STATE_BYTES / DTYPE_BYTES + 1) / TPU_V2_CORE.memory_bandwidth / memory_efficiency
    layers = (replace(x, update_s=x.parameter_bytes * a_byte) for x in profile.layers)
    return replace(profile, layers=tuple(layers))


def split(profile: Profile, stages: int, by: str = "operations") -> list[int]:
    """Return the layers of each stage, with the least variance of what :data:`COST` names."""
    return balance([COST[by](layer) for layer in profile.layers], stages, by="variance")


@dataclass(frozen=True)
class Job:
    """A scenario with sizes: what is simulated or emulated.

    Attributes:
        scenario: of Figure 3.
        profile: of the network.
        plan: which layers each stage has.
        cluster: the accelerators.
    """

    scenario: Scenario
    profile: Profile
    plan: Plan
    cluster: Cluster

    @property
    def rows(self) -> int:
        """Images of a minibatch."""
        return self.plan.microbatch_rows * self.scenario.microbatches

    def table(self, batches: int = 1) -> Schedule:
        """Return the schedule of so many minibatches."""
        return gpipe(self.scenario.stages, self.scenario.microbatches, batches)

    def simulated(self, batches: int = 1) -> Trace:
        """Return the simulated trace."""
        states = STATE_BYTES / DTYPE_BYTES - 2  # weights and gradients are counted anyway
        return simulate(
            self.table(batches), self.profile, self.plan, self.cluster, optimizer_states=states
        )

    def emulated(self, slower: float) -> Trace:
        """Return the emulated trace of one minibatch, in which all takes ``slower`` times as long.

        Args:
            slower: so that the engine's own tenths of a millisecond count little.
        """
        profile, links = stretched(self.profile, slower), faster_links(self.cluster, 1 / slower)
        return emulate(self.table(), profile, self.plan, links).trace

    @property
    def peak_bytes(self) -> int:
        """The most bytes on any accelerator; the optimizer's state is there from the 2nd batch."""
        memory = self.simulated(batches=2).memory
        assert memory is not None
        return max(memory.peak_bytes)


def sized(
    profile: Profile, scenario: Scenario, microbatch_rows: int, by: str = "operations"
) -> Job:
    """Return a scenario with microbatches of so many images, whether they fit or not.

    Args:
        profile: of the network.
        scenario: of Figure 3.
        microbatch_rows: images of a microbatch.
        by: what the stages are balanced by, see :data:`COST`.
    """
    layers = split(profile, scenario.stages, by)
    plan = Plan.by_hand(layers, rows=microbatch_rows, recompute=scenario.recompute)
    return Job(scenario, profile, plan, gpipe_tpu_v2(scenario.stages))


def job(profile: Profile, scenario: Scenario, by: str = "operations") -> Job:
    """Return a scenario with the sizes that fit its accelerators; arguments as :func:`sized`.

    With GPipe, Table 1's microbatches; without, the largest power of two up to Table 1's minibatch.

    Raises:
        ValueError: not a single image fits.
    """
    rows = profile.rows if scenario.pipelined else MINIBATCH
    while rows:
        found = sized(profile, scenario, rows, by)
        if found.peak_bytes <= found.cluster.device.memory_bytes:
            return found
        rows //= 2
    raise ValueError(f"{scenario.name} does not fit {TPU_V2_CORE}: use more stages")


def shortest_pass_s(job: Job) -> float:
    """Return the seconds of the shortest forward of a stage."""
    profile = job.profile.scaled(job.plan.microbatch_rows)
    return min(profile.stage(s.first, s.stop).forward_s for s in job.plan.stages)


def speedups(jobs: Sequence[Job], traces: Sequence[Trace]) -> list[float]:
    """Return how many times as many images a second as the first job each one trains."""
    rates = [job.rows / trace.makespan_s for job, trace in zip(jobs, traces, strict=True)]
    return [rate / rates[0] for rate in rates]
