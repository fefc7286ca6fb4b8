"""GPipe's scenarios (section 4), the bars of its Figure 3, and where a step's time goes (3.3, 4.2).

Its partitioner minimises the variance of a *static* estimate of each layer's cost (3.1, 3.2): here
its operations.  Seconds are the roofline's.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise
from typing import Literal

import pandas as pd
from torch import nn

from experiments.gpipe import bubble
from experiments.study.claims import Rounds, emulated
from experiments.study.costs import emulate_at_pace, estimated, images, with_costs
from experiments.study.traces import busy_s, memory_of
from pipekit.clusters import TPU_V2_CORE, Cluster, gpipe_tpu_v2
from pipekit.models import amoebanet_d, resnet101
from pipekit.planning import balance
from pipekit.plans import Plan, Recompute
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import Schedule, gpipe
from pipekit.simulation import simulate
from pipekit.traces import Trace
from pipekit.traces.breakdown import ALL

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
        return self.minibatch // self.microbatches

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


By = Literal["operations", "time"]  # by which a partition is balanced


def least_variance(profile: Profile, stages: int, by: By = "operations") -> list[int]:
    """Return the layers of each stage by GPipe's partitioner (sections 3.1 and 3.2)."""
    costs = [
        layer.flops if by == "operations" else layer.forward_s + layer.backward_s
        for layer in profile.layers
    ]
    return balance(costs, stages, by="variance")


DTYPE_BYTES = 2
EFFICIENCY = 0.75  # of the memory's bandwidth; Profile.analytic's own
STATE_BYTES = 12  # of a parameter: itself, its moving average and its momentum (section 4.1)

AMOEBANET, RESNET = "AmoebaNet-D (4, 512)", "ResNet-101"
NETWORKS: Mapping[str, Callable[..., nn.Sequential]] = {
    AMOEBANET: partial(amoebanet_d, 3 * 4, 512),
    RESNET: resnet101,
}
"""By name; GPipe counts the normal cells of one group, of which there are three."""

SCENARIOS: Mapping[str, Sequence[str]] = {
    AMOEBANET: ("naive-2", "pipeline-2", "pipeline-4", "pipeline-8"),
    RESNET: ("naive-1", "pipeline-1", "pipeline-2", "pipeline-4", "pipeline-8"),
}
"""Of Figure 3's panels, the baseline first."""


@cache
def profile_of(network: str) -> Profile:
    """Return a network's costs on a TPU-v2 core, for one of Table 1's microbatches."""
    build, sample = NETWORKS[network], images(MINIBATCH // MICROBATCHES, PIXELS)
    profile = estimated(build, sample, TPU_V2_CORE, dtype="bfloat16", memory_efficiency=EFFICIENCY)
    # An update takes as long as its bytes: the gradient, and the parameter's read and written.
    a_byte = (2 * STATE_BYTES / DTYPE_BYTES + 1) / TPU_V2_CORE.memory_bandwidth / EFFICIENCY
    return with_costs(profile, update_s=lambda layers: layers["parameter_bytes"] * a_byte)


@dataclass(frozen=True)
class Bar:
    """A scenario of Figure 3 with sizes that can be simulated and emulated."""

    scenario: Scenario
    profile: Profile  # of the network
    plan: Plan  # which layers each stage has
    cluster: Cluster  # the accelerators

    def simulated(self, batches: int = 1) -> Trace:
        states = STATE_BYTES / DTYPE_BYTES - 2  # weights and gradients are counted anyway
        schedule = self.scenario.schedule.take(batches)
        return simulate(schedule, self.profile, self.plan, self.cluster, optimizer_states=states)

    def rounds(self, simulated: Trace, slower: float, repeats: int) -> list[Trace]:
        """Return a minibatch run so many times slower, so often; simulated if too few count."""
        traces: dict[float, Trace] = {}
        costs = self.scenario.schedule.take(1), self.profile, self.plan, self.cluster

        def run(pace: float) -> float:
            trace = emulate_at_pace(*costs, pace / slower).trace
            traces[trace.makespan_s] = trace
            return trace.makespan_s

        timed = emulated(run, simulated.makespan_s, repeats)
        return [traces[seconds] for seconds in timed.counted] or [simulated] * repeats

    @property
    def peak_bytes(self) -> int:
        """The most bytes on any accelerator; the optimizer's state is there from the 2nd batch."""
        return max(memory_of(self.simulated(batches=2)).peak_bytes)

    @property
    def stages(self) -> list[LayerProfile]:
        profile = self.profile.scaled(self.plan.microbatch_rows)
        return [profile.stage(stage.first, stage.stop) for stage in self.plan.stages]


def sized(
    profile: Profile,
    scenario: Scenario,
    rows: int,
    by: By = "operations",
    board: Callable[[int], Cluster] = gpipe_tpu_v2,
) -> Bar:
    """Return a scenario with microbatches of so many images, whether they fit or not."""
    layers = least_variance(profile, scenario.stages, by)
    plan = Plan.by_hand(layers, rows=rows, recompute=scenario.recompute)
    adjusted = replace(scenario, minibatch=rows * scenario.microbatches)
    return Bar(adjusted, profile, plan, board(scenario.stages))


def fitting(profile: Profile, scenario: Scenario, by: By = "operations") -> Bar:
    """Return a scenario with the sizes that fit its accelerators; arguments as :func:`sized`."""
    rows = MINIBATCH if scenario.recompute == "never" else profile.rows
    while rows:
        found = sized(profile, scenario, rows, by)
        if found.peak_bytes <= found.cluster.device.memory_bytes:
            return found
        rows //= 2
    raise ValueError(f"{scenario.name} does not fit {TPU_V2_CORE}: use more stages")


@dataclass(frozen=True)
class Panel:
    """A panel of Figure 3: its bars, the baseline first, each with a minibatch's trace."""

    runs: Sequence[tuple[Bar, Trace]]

    @classmethod
    def simulated(cls, network: str, by: By = "operations") -> "Panel":
        bars = (fitting(profile_of(network), named(name), by) for name in SCENARIOS[network])
        return cls([(bar, bar.simulated()) for bar in bars])

    @property
    def label(self) -> str:
        """The weakest kind of its numbers: a simulated trace stands in where none counts."""
        return "emulated" if {t.label for _, t in self.runs} == {"emulated"} else "simulated"

    @property
    def speedups(self) -> list[float]:
        rates = [bar.scenario.minibatch / trace.makespan_s for bar, trace in self.runs]
        return [rate / rates[0] for rate in rates]

    @property
    def steps(self) -> dict[int, tuple[Bar, Trace]]:
        """The bar and its step by K, for K above 1: what Figure 4 takes apart."""
        return {run[0].scenario.stages: run for run in self.runs if run[0].scenario.stages > 1}

    def emulated(self, slower: float, repeats: int) -> Rounds["Panel"]:
        """Return the same, run on the engine so often; see :mod:`experiments.study.claims`."""
        ran = [[(bar, t) for t in bar.rounds(own, slower, repeats)] for bar, own in self.runs]
        return Rounds(tuple(map(Panel, zip(*ran, strict=True))), self)


def read_off(trace: Trace) -> pd.Series:
    """Return where a minibatch's time goes, in percent, read off as Figure 4's caption says.

    Imbalance is "the waiting time for the next micro-batch": idle time within a worker's forwards,
    or within its backwards.  Bubble is the "idle time between forward and backward passes", also
    what others wait there for a slow stage.  Communication and other are idle time here.
    """
    imbalance = bubble = 0.0
    for _, own in trace.frame.groupby("worker"):
        forwards = own[own["op"] == "FORWARD"]
        turn = own.loc[own["op"] == "BACKWARD", "start_s"].min()
        early = own[(own["op"] == "RECOMPUTE") & (own["start_s"] < turn)]  # within the bubble
        backwards = own[own["op"].isin(["RECOMPUTE", "BACKWARD"]) & (own["start_s"] >= turn)]
        phases = sum(
            float(each["end_s"].max() - each["start_s"].min()) for each in (forwards, backwards)
        )
        imbalance += phases - busy_s(forwards) - busy_s(backwards)
        bubble += trace.makespan_s - phases - busy_s(early) - busy_s(own[own["op"] == "UPDATE"])
    shares = trace.breakdown().loc[ALL].copy()
    shares["imbalance"] = 100 * imbalance / (trace.workers * trace.makespan_s)
    shares["bubble"] = 100 * bubble / (trace.workers * trace.makespan_s)
    shares["communication"] = shares["other"] = 0.0
    return shares


def bubble_over_theory(trace: Trace, stages: int, microbatches: int) -> float:
    """Return the bubble that is read off a step over (K-1)/(T+K-1), of which section 4.2 speaks."""
    return float(read_off(trace)["bubble"]) / 100 / bubble(stages, microbatches)


def recomputes_early(trace: Trace) -> bool:
    """Return whether each stage but the last recomputes before its first gradient is computed."""
    firsts = trace.frame.groupby(["stage", "op"]).first()
    return all(
        firsts["start_s"][stage, "RECOMPUTE"] < firsts["end_s"][after, "BACKWARD"]
        for stage, after in pairwise(sorted(trace.frame["stage"].unique()))
    )
