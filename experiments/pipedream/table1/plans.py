"""Plans of Table 1, its rows as printed (5.1, 5.2), and the bandwidth that explains them.

The printed bandwidths do not; the *effective* one, a number for all networks of a cluster, makes
simulated data parallelism as fast as the cells that it is fitted on, in the geometric mean.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from torch import Tensor, nn
from torch.types import Device

from experiments import study
from experiments.pipedream import ROWS, WORDS
from experiments.pipedream.timelines import run_length, seconds_a_minibatch
from experiments.study.costs import as_published
from pipekit.clusters import Cluster, pipedream_a, pipedream_b
from pipekit.clusters.cluster import AllReduce
from pipekit.clusters.traffic import all_reduce_bytes
from pipekit.models import s2vt
from pipekit.models.devices import on
from pipekit.planning.layer_ranges import LayerRanges
from pipekit.planning.objectives import Bytes, Cost, Seconds
from pipekit.plans import Plan
from pipekit.profiling import Profile
from pipekit.schedules import Op, Schedule, Task, optimal_in_flight, pipedream
from pipekit.schedules.methods.one_f_one_b import without_end
from pipekit.simulation import simulate

Method = Callable[[Plan], Schedule]  # a plan to its schedule, without end

SIMULATED = 200  # minibatches in steady state: waits in a pipeline may repeat only after many
MARGIN = 3  # of what fills and drains: enough for twice as many minibatches in flight


def pipelined(plan: Plan) -> Schedule:
    return pipedream(plan.replicas)


def twice_in_flight(plan: Plan) -> Schedule:
    """Return PipeDream's schedule with twice NOAM (3.2) in flight, some to travel or to wait."""
    counts, admitted = list[int](), math.inf
    for count, width in zip(optimal_in_flight(plan.replicas), plan.replicas, strict=True):
        counts.append(int(min(2 * count, admitted // width)))
        admitted = min(admitted, counts[-1] * width)
    return pipedream(plan.replicas, in_flight=counts)


def sums_a_round_late(plan: Plan) -> Schedule:
    """Return PipeDream's schedule in which a replica does not wait for its round's sum.

    It goes on with the newest weights that have arrived (section 4), those of the round before.
    """
    in_flight, every = optimal_in_flight(plan.replicas), math.lcm(*plan.replicas)

    def worker(stage: int, replica: int) -> tuple[tuple[Task, ...], tuple[Task, ...]]:
        width = plan.replicas[stage]
        late = width > 1

        def tasks(op: Op, place: int) -> Iterator[Task]:
            reads = max(0, place + 1 - in_flight[stage] - late)
            yield Task(op, stage, replica + place * width, reads)
            if op is Op.BACKWARD and place >= late:
                made = place + 1 - late
                yield Task(Op.UPDATE, stage, made * width - 1, made)

        settled = in_flight[stage] - 1 + late
        return without_end(tasks, in_flight[stage], settled, every // width)

    workers = [worker(stage, j) for stage, width in enumerate(plan.replicas) for j in range(width)]
    head, period = zip(*workers, strict=True)
    return Schedule(head, "PipeDream, sums a round late", batch_size=1, period=period)


def compute_seconds(profile: Profile) -> float:
    """Return the seconds a minibatch on one machine, which has nothing to wait for."""
    return sum(layer.forward_s + layer.backward_s + layer.update_s for layer in profile.layers)


def simulated_seconds(
    profile: Profile,
    plan: Plan,
    cluster: Cluster | None,
    method: Method = pipelined,
    minibatches: int = SIMULATED,
) -> float:
    table = method(plan).take(run_length(plan.replicas, minibatches, MARGIN))
    return seconds_a_minibatch(simulate(table, profile, plan, cluster), plan.replicas, MARGIN)


def data_parallel(profile: Profile, workers: int) -> Plan:
    """Return data parallelism as a plan: one stage on all workers (PipeDream, section 4)."""
    return Plan.by_hand([len(profile)], rows=profile.rows, replicas=[workers])


class Sent(NamedTuple):
    """Bytes that all workers together send a minibatch, each counted once."""

    weights: float
    activations: float

    @property
    def total(self) -> float:
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


def summed_late(profile: Profile, plan: Plan) -> tuple[Profile, Plan]:
    """Return a profile and its plan with a layer a stage: its sums begin after its backward."""
    layers = tuple(profile.stage(stage.first, stage.stop) for stage in plan.stages)
    alone = Plan.by_hand([1] * len(layers), rows=profile.rows, replicas=plan.replicas)
    return replace(profile, layers=layers), alone


def best_cut(
    profile: Profile, cluster: Cluster, replicas: Sequence[int], cost: Cost = "paper"
) -> Plan:
    """Return the plan with these replicas that the planner's cost model finds the fastest."""
    (level,), spans, layers = cluster.levels, LayerRanges(profile), len(profile)
    objective = Seconds(
        spans, [level], cost, Bytes(spans, optimizer_states=1), cluster.device.memory_bytes
    )
    in_flight = optimal_in_flight(replicas)
    stages = [
        objective.replicated(objective.worker(passing), 0, count)
        for passing, count in zip(in_flight, replicas, strict=True)
    ]
    passing = objective.transfer(0)
    inner = np.array(list(combinations(range(1, layers), len(replicas) - 1)), dtype=int)
    edges = np.pad(inner, ((0, 0), (1, 1)), constant_values=(0, layers))  # [cuts, stages + 1]
    parts = [stage[edges[:, i], edges[:, i + 1]] for i, stage in enumerate(stages)]
    seconds = np.max([*parts, *(passing[cut] for cut in inner.T)], axis=0)
    best = int(seconds.argmin())
    if np.isinf(seconds[best]):
        raise ValueError(f"no cut for replicas {list(replicas)} fits the workers' memory")
    plan = Plan.by_hand(np.diff(edges[best]).tolist(), rows=profile.rows, replicas=replicas)
    return replace(plan, in_flight=in_flight[0], predicted_s=float(seconds[best]))


class Setting(NamedTuple):
    """A network on so many workers of a cluster, "A" or "B"."""

    model: str
    workers: int
    cluster: str

    @property
    def name(self) -> str:
        return f"{self.model.removesuffix('-v3')}-{self.workers}{self.cluster}"

    def machines(self, sums: AllReduce = "ring") -> Cluster:
        """Return the workers, with the bandwidth that the paper prints; they sum in some way."""
        cluster = {"A": pipedream_a, "B": pipedream_b}[self.cluster]
        return replace(cluster(self.workers), all_reduce=sums)


TABLE1 = FOUR, EIGHT, SIXTEEN, EIGHT_B, INCEPTION, INCEPTION_B, S2VT = (
    Setting("vgg16", 4, "A"),
    Setting("vgg16", 8, "A"),
    Setting("vgg16", 16, "A"),
    Setting("vgg16", 8, "B"),
    Setting("inception-v3", 8, "A"),
    Setting("inception-v3", 8, "B"),
    Setting("s2vt", 4, "A"),
)
"""The rows of Table 1."""

THROUGHPUT = RESNET, ALEXNET = Setting("resnet50", 8, "B"), Setting("alexnet", 8, "B")
"""What section 5.2 reports without end-to-end results."""

MINIBATCHES = 32, 128
"""Rows that a machine's minibatch of :data:`THROUGHPUT` may have, since the paper prints none: the
other image networks', and those of ResNet-50's released profile."""

CALIBRATED_ON = {"A": (FOUR,), "B": (EIGHT_B, INCEPTION_B)}
"""The rows whose BSP cells, named so in the ledger from its beginning, give the one bandwidth of a
cluster. Of S2VT the paper prints no layers: nothing can be fitted on ours."""


def printed(setting: Setting, column: str) -> str:
    """Return what Table 1 prints of a row, say in column "pp-over-bsp", read from the ledger."""
    return study.printed(f"pipedream-table1-{setting.name}-{column}")


def printed_number(setting: Setting, column: str) -> float | None:
    """Return the same as a number; None where Table 1 has no such row."""
    return float(printed(setting, column)) if setting in TABLE1 else None


def printed_replicas(setting: Setting) -> list[int]:
    """Return the replicas of each stage of a printed configuration: "2-1-1" is [2, 1, 1]."""
    return [int(count) for count in printed(setting, "config").split("-")]


def bsp_speedup(profile: Profile, cluster: Cluster) -> float:
    """Return the simulated speedup of data parallelism on all of a cluster over one machine."""
    plan = data_parallel(profile, cluster.workers)
    one_round = simulated_seconds(profile, plan, cluster, minibatches=cluster.workers)
    return compute_seconds(profile) / one_round


def effective(cells: Sequence[tuple[Profile, Cluster, float]]) -> float:
    """Return the bytes/s with which simulated data parallelism is as fast as published.

    It stands for all that the simulator does not know: copies between GPU and host, serialisation,
    other users of the network.  A cell has a network, a cluster, and the speedup over one machine.
    """

    def miss(exponent: float) -> float:
        total = 0.0
        for profile, cluster, speedup in cells:
            linked = cluster.calibrated(cluster.levels[0].name, math.exp(exponent), "a trial")
            total += math.log(bsp_speedup(profile, linked) / speedup)
        return total

    return math.exp(brentq(miss, math.log(1e6), math.log(1e12), rtol=1e-9))


class _WordsLookedUp(nn.Module):
    """S2VT's second LSTM if words enter it as they are; only what it costs is right."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(hidden, hidden, batch_first=True)
        self.columns = nn.Embedding(WORDS, 4 * hidden)  # of its matrix: a word's goes to each gate

    def forward(self, inputs: tuple[Tensor, Tensor]) -> Tensor:
        video, words = inputs  # [B, F + W, hidden], [B, W]
        steps: Tensor = self.lstm(video)[0][:, -words.shape[1] :]  # [B, W, hidden]
        gates: Tensor = self.columns(words).unflatten(2, (4, -1))  # [B, W, 4, hidden]
        return steps + gates.sum(2)


def without_embeddings(device: Device = None) -> nn.Sequential:
    """Return S2VT with its authors' 1,000 units if frames and words enter as they are: 366 MB."""
    _, first, _, last = s2vt(embedding=4096, hidden=1000, device=device)
    with on(device):
        return nn.Sequential(first, _WordsLookedUp(1000), last)


@cache
def roofline(setting: Setting) -> Profile:
    """Return what a minibatch costs on one worker, estimated for its GPU."""
    return study.published(setting.model, ROWS[setting.model], setting.machines().device)


@cache
def profile_of(setting: Setting) -> Profile:
    """Return the same, with the seconds that others published of that network and GPU, if any."""
    return as_published(roofline(setting), setting.model, setting.machines().device)


@cache
def fitted(cells: tuple[Setting, ...], sums: AllReduce = "ring") -> float:
    """Return the bytes/s that fit the BSP cells of some rows of Table 1, summed in some way."""
    return effective(
        [(profile_of(row), row.machines(sums), float(printed(row, "bsp-speedup"))) for row in cells]
    )


def calibrated(
    setting: Setting, on: tuple[Setting, ...] | None = None, sums: AllReduce = "ring"
) -> Cluster:
    """Return a setting's machines with the bandwidth of its cluster's cells, or of those ``on``."""
    rows, machines = on or CALIBRATED_ON[setting.cluster], setting.machines(sums)
    origin = f"BSP of {' and '.join(row.name for row in rows)}, Table 1"
    return machines.calibrated(machines.levels[0].name, fitted(rows, sums), origin)
