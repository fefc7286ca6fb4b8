"""torchgpipe's benchmarks as data, and cells of its tables on P40s, simulated and emulated (4.2).

Partitions and Table 2's batch sizes are where the paper says (section 4, footnote 4):
github.com/kakaobrain/torchgpipe, benchmarks/*/main.py, here as of commit a4710261.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from torch.nn import Parameter
from torch.optim import SGD

from experiments import study
from experiments.study.claims import Emulated
from pipekit.clusters import P40, Cluster, Device, Level, torchgpipe_p40
from pipekit.ledger import claims
from pipekit.models.unet import DEPTH
from pipekit.planning import balance
from pipekit.plans import Plan, Recompute
from pipekit.profiling import Profile
from pipekit.schedules import Op, Schedule
from pipekit.simulation import simulate
from pipekit.traces import Trace


@dataclass(frozen=True)
class Benchmark:
    """One cell of a table."""

    name: str  # as the ledger calls it: "m4-n2", "pipeline-2"
    network: str  # a key of :data:`pipekit.models.PUBLISHED`
    microbatches: int  # m
    batch: int  # rows of a batch
    balance: tuple[int, ...]  # layers of each stage, counted in our networks
    recompute: Recompute  # which microbatches are recomputed

    @property
    def stages(self) -> int:
        return len(self.balance)

    @property
    def rows(self) -> int:
        return self.batch // self.microbatches

    def plan(self, balance: Sequence[int] | None = None) -> Plan:
        return Plan.by_hand(balance or self.balance, rows=self.rows, recompute=self.recompute)


def unet_balance(published: Sequence[int], convolutions: int) -> tuple[int, ...]:
    """Return a U-Net's partition in our layers; a cut within one goes to its nearer end.

    In the repository a convolution, its dropout, its norm and its activation are four layers, and
    stash and max-pool two, as upsampling and joining.
    """
    cell = [4] * convolutions
    sizes = [*([*cell, 2] * DEPTH), *cell, *([2, *cell] * DEPTH), 1]
    ends = [0, *accumulate(sizes)]
    if (found := sum(published)) != ends[-1]:
        what = f"a U-Net of {convolutions} convolutions has {ends[-1]} layers there"
        raise ValueError(f"{what}, not {found}")
    cuts = [
        min(range(len(ends)), key=lambda layer: abs(ends[layer] - cut))
        for cut in (0, *accumulate(published))
    ]
    return tuple(b - a for a, b in pairwise(cuts))


# (m, n): batch and partition.  At m = 1 the microbatch is recomputed (section 4.2.1).
_AMOEBANET = {
    (1, 2): (96, (7, 17)),
    (1, 4): (160, (3, 4, 5, 12)),
    (1, 8): (196, (2, 2, 2, 2, 2, 3, 4, 7)),
    (4, 2): (256, (9, 15)),
    (4, 4): (360, (3, 6, 7, 8)),
    (4, 8): (480, (2, 2, 2, 3, 3, 4, 4, 4)),
    (32, 2): (1280, (9, 15)),
    (32, 4): (1152, (3, 6, 7, 8)),
    (32, 8): (1280, (2, 2, 2, 3, 3, 4, 4, 4)),
}


def _unet(name: str, size: tuple[int, int], m: int, batch: int, published: list[int]) -> Benchmark:
    network, balance = "unet-{}-{}".format(*size), unet_balance(published, size[0])
    return Benchmark(name, network, m, batch, balance, "except_last")


TABLE1 = _unet("table1", (5, 64), 8, 128, [34, 76, 70, 61])
"""U-Net (5, 64) with and without the components (section 4.1; benchmarks/unet-timeline)."""

TABLE2: Mapping[tuple[int, int], Benchmark] = {
    (m, n): Benchmark(
        f"m{m}-n{n}", "amoebanet-d-18-256", m, *sizes, "always" if m == 1 else "except_last"
    )
    for (m, n), sizes in _AMOEBANET.items()
}
"""AmoebaNet-D (18, 256), by (m, n)."""

TABLE3: tuple[Benchmark, ...] = (
    Benchmark("naive-1", "unet-6-72", 1, 32, (11 * 7,), "never"),
    _unet("pipeline-1", (11, 128), 32, 32, [505]),
    _unet("pipeline-2", (24, 128), 32, 32, [526, 551]),
    _unet("pipeline-4", (24, 160), 32, 32, [472, 54, 36, 515]),
    # 128 microbatches there; but a batch is cut into no more parts than it has rows.
    _unet("pipeline-8", (48, 160), 32, 32, [800, 140, 62, 36, 36, 36, 36, 987]),
)
"""U-Nets for memory."""

TABLE4: tuple[Benchmark, ...] = (
    Benchmark("naive-1", "unet-5-64", 1, 40, (11 * 6,), "never"),
    _unet("pipeline-1", (5, 64), 2, 80, [241]),
    _unet("pipeline-2", (5, 64), 32, 512, [104, 137]),
    _unet("pipeline-4", (5, 64), 16, 512, [30, 66, 84, 61]),
    _unet("pipeline-8", (5, 64), 40, 640, [16, 27, 31, 44, 22, 57, 27, 17]),
)
"""U-Net (5, 64) for speed."""


def plain_sgd(parameters: list[Parameter]) -> SGD:
    """Return the paper's optimizer (section 4.2.1); the learning rate is the repository's."""
    return SGD(parameters, lr=0.1)


TPU_V3_CORE = Device("TPU-v3 core 16GB", 16 * 2**30, {"bfloat16": 61.5e12}, 450e9, "XLA")
"""One of the two cores of a TPU-v3 chip (Google Cloud TPU system architecture: 123 TFLOPS, 32 GiB
and 900 GB/s a chip)."""


def tpu_v3(cores: int) -> Cluster:
    """Return the accelerators of Table 2's GPipe, "Cloud TPUv3s" by its caption.

    656 Gbps is one link in one direction (Jouppi et al., "A Domain-Specific Supercomputer for
    Training Deep Neural Networks", CACM 2020).
    """
    return Cluster("TPU-v3 board", TPU_V3_CORE, (Level("interconnect", cores, 656e9 / 8),))


def printed_cell(table: int, cell: str) -> float | None:
    """Return a number of the paper's tables, or None where it prints none."""
    known = claims.load().get(f"torchgpipe-table{table}-{cell}")
    return None if known is None else float(known.value)


# Causes of misses, by the names that claims share in the report.
P40S_CUT = "the published partition, balanced for the real P40 and not for our costs"
P40S_SHARE = "the share of its peak that a P40 attains"

AT_ONCE = 4  # emulations beside one another: nearly all that they do is wait


def as_drawn(stages: int, microbatches: int) -> Schedule:
    """Return a batch of GPipe's schedule with backwards from the last microbatch to the first."""
    batch = range(microbatches)
    order = [(Op.FORWARD, k) for k in batch] + [(Op.BACKWARD, k) for k in reversed(batch)]
    workers = ([(op, stage, k) for op, k in order] for stage in range(stages))
    return Schedule.one_batch("GPipe as drawn", workers)


def profiles_of(cells: Sequence[Benchmark]) -> dict[str, Profile]:
    """Return what the smallest microbatch of each network costs on the P40 (simulated)."""
    rows = {cell.network: cell.rows for cell in sorted(cells, key=lambda cell: -cell.rows)}
    return {network: study.published(network, least, P40) for network, least in rows.items()}


def blocks(profile: Profile, stages: int) -> list[int]:
    """Return the partition of torchgpipe's algorithm, by time (section 3)."""
    seconds = [layer.forward_s + layer.backward_s for layer in profile.layers]
    return balance(seconds, stages, "block")


def simulated(
    cell: Benchmark, profile: Profile, cluster: Cluster | None, balance: Sequence[int] | None = None
) -> Trace:
    table = as_drawn(cell.stages, cell.microbatches)
    return simulate(table, profile, cell.plan(balance), cluster)


def faster_than_printed() -> float:
    """Return how many times as fast as Table 4 prints our P40 is at naive-1, without a pipeline."""
    naive, cluster = TABLE4[0], torchgpipe_p40(1)
    seconds = simulated(naive, profiles_of(TABLE4)[naive.network], cluster).makespan_s
    printed = printed_cell(4, f"{naive.name}-throughput")
    assert printed is not None
    return naive.batch / seconds / printed


def recomputed_late_speedup(cell: Benchmark, over: Benchmark, profile: Profile) -> float:
    """Return a speedup of cells that recompute everything, once the gradient is there."""
    costs = study.recomputed_late(profile)

    def rate(each: Benchmark) -> float:
        kept, cluster = replace(each, recompute="never"), torchgpipe_p40(each.stages)
        return each.batch / simulated(kept, costs, cluster).makespan_s

    return rate(cell) / rate(over)


def emulated(
    cells: Sequence[Benchmark], faster: float, emulations: int
) -> study.Rounds[dict[Benchmark, Emulated]]:
    profiles = profiles_of(cells)

    def time(cell: Benchmark) -> Emulated:
        profile, cluster = profiles[cell.network], torchgpipe_p40(cell.stages)
        table = as_drawn(cell.stages, cell.microbatches)

        def seconds(pace: float) -> float:
            how = profile, cell.plan(), cluster, faster * pace
            return study.emulate_at_pace(table, *how).trace.makespan_s

        return study.emulated(seconds, simulated(cell, profile, cluster).makespan_s, emulations)

    longest_first = sorted(cells, key=lambda cell: cell.batch / cell.stages, reverse=True)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = dict(zip(longest_first, pool.map(time, longest_first), strict=True))
    *rounds, simulation = (
        {cell: found[cell].only(n) for cell in cells} for n in (*range(emulations), None)
    )
    return study.Rounds(tuple(rounds), simulation)
