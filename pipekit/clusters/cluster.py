"""What a cluster is: equal devices, joined by links in levels."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from pipekit.choices import require_choice
from pipekit.units import MOST, require_amount, whole

Library = Literal["", "cuDNN", "XLA"]
AllReduce = Literal["ring", "parameter server", "sharded parameter server"]


@dataclass(frozen=True)
class Device:
    """What one worker computes on.

    Attributes:
        name: as people call it, say "V100 16GB".
        memory_bytes: what one worker may fill; ``math.inf`` for no limit.
        peak_flops: FLOP/s by dtype ("float32", "float16", "bfloat16"), a multiply-add being two;
            empty if it is not known.
        memory_bandwidth: bytes/s between the device and its own memory.
        library: of its kernels, if that matters to :meth:`pipekit.Profile.analytic`: "cuDNN" (of
            version 5 or newer) or "XLA".

    Raises:
        ValueError: a size or rate is not above zero, or the library is unknown.
    """

    name: str
    memory_bytes: float
    peak_flops: Mapping[str, float] = field(hash=False)
    memory_bandwidth: float
    library: Library = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "peak_flops", dict(self.peak_flops))
        require_positive(f"{self.name}'s memory_bytes", self.memory_bytes)
        require_positive(f"{self.name}'s memory_bandwidth", self.memory_bandwidth)
        require_choice(f"{self.name}'s library", self.library, get_args(Library))
        for dtype, flops in self.peak_flops.items():
            require_positive(f"{self.name}'s peak_flops[{dtype!r}]", flops)

    def __str__(self) -> str:
        if math.isinf(self.memory_bytes):
            return self.name
        return f"{self.name} ({self.memory_bytes / 2**30:.3g} GiB)"


@dataclass(frozen=True)
class Calibrated:
    """A measured ``bandwidth`` in bytes/s, and its ``origin``: what was measured or fitted.

    Raises:
        ValueError: the bandwidth is not above zero, or it has no origin.
    """

    bandwidth: float
    origin: str

    def __post_init__(self) -> None:
        require_positive("a calibrated bandwidth", self.bandwidth)
        if not self.origin:
            raise ValueError("a calibrated bandwidth needs its origin: name what was measured")


@dataclass(frozen=True)
class Level:
    """One level of the hierarchy of links.

    Its *members* are the groups of the level below, or single workers at the innermost level.

    Attributes:
        name: say "NVLink" or "network"; unique within a cluster.
        width: how many members it joins.
        bandwidth: nominal bytes/s, in each direction, of one member's link, or of the one medium.
        effective: a calibrated bandwidth, used in place of the nominal one.
        latency_s: seconds before the first byte arrives.
        shared: whether the members share one medium, such as a bus; else each has a link of its own
            into a switch that carries them all at once.

    Raises:
        ValueError: it joins nothing, a bandwidth is not above zero, or the latency is negative.
    """

    name: str
    width: int
    bandwidth: float
    effective: Calibrated | None = None
    latency_s: float = 0.0
    shared: bool = False

    def __post_init__(self) -> None:
        whole(f"level {self.name!r}'s width", self.width)
        require_positive(f"level {self.name!r}'s bandwidth", self.bandwidth)
        require_amount(f"level {self.name!r}'s latency_s", self.latency_s)

    @property
    def used_bandwidth(self) -> float:
        """Bytes/s to count with: the calibrated bandwidth if there is one, else the nominal."""
        return self.effective.bandwidth if self.effective else self.bandwidth

    def __str__(self) -> str:
        rates = []
        if self.effective:
            rates.append(f"{_rate(self.effective.bandwidth)} by {self.effective.origin}")
        if not self.effective or self.bandwidth != self.effective.bandwidth:
            rates.append(f"{_rate(self.bandwidth)} nominal")
        text = f"{self.name}: joins {self.width} at {'; '.join(rates)}"
        if self.latency_s:
            text += f", latency {self.latency_s * 1e6:.3g} us"
        return text + (", shared" if self.shared else "")


@dataclass(frozen=True)
class Cluster:
    """Equal devices joined by levels of links, innermost first.

    Workers are numbered from 0 through the innermost groups: with levels of width 8 and 2, workers
    0 to 7 are the first server and 8 to 15 the second.

    Attributes:
        name: as people call it.
        device: what each worker computes on.
        levels: innermost first, at least one.
        all_reduce: how workers sum gradients: in a "ring" (each of m sends its neighbour
            2 (m - 1) / m of them), by a "parameter server" on the first of them (the others send
            all of theirs, and get all weights back), or by a "sharded parameter server" (one on
            each worker for its share: PipeDream, section 4; GeePS).

    Raises:
        ValueError: it has no level, two of one name, or an unknown way to sum.
    """

    name: str
    device: Device
    levels: tuple[Level, ...]
    all_reduce: AllReduce = "ring"

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", tuple(self.levels))
        if not self.levels:
            raise ValueError(
                f"cluster {self.name!r} has no level: give one, of width 1 for a single worker"
            )
        names = [level.name for level in self.levels]
        if len(set(names)) < len(names):
            raise ValueError(f"the levels of cluster {self.name!r} need different names: {names}")
        require_choice(f"all_reduce of {self.name!r}", self.all_reduce, get_args(AllReduce))

    @property
    def workers(self) -> int:
        """How many workers there are: the product of the levels' widths."""
        return math.prod(level.width for level in self.levels)

    def level_between(self, a: int, b: int) -> Level:
        """Return the innermost level that joins workers ``a`` and ``b``; ValueError: one is not."""
        self._require_worker(a)
        self._require_worker(b)
        return next(
            level
            for level in self.levels
            if a // self.group_size(level) == b // self.group_size(level)
        )

    def bandwidth(self, a: int, b: int) -> float:
        """Return the bytes/s from worker ``a`` to worker ``b`` when nobody else uses the link."""
        return self.level_between(a, b).used_bandwidth

    def member(self, worker: int, level: Level) -> int:
        """Return which member of ``level`` a ``worker`` belongs to, and whose link it uses there.

        Members are numbered from 0 over the whole cluster: at the innermost level they are the
        workers themselves, at the next the servers, and so on.
        """
        self._require_worker(worker)
        return worker // (self.group_size(level) // level.width)

    def group_size(self, level: Level) -> int:
        """Return how many workers one group of a level joins."""
        return math.prod(each.width for each in self.levels[: self.levels.index(level) + 1])

    def require_room(self, workers: int) -> None:
        """Raise ValueError: if a schedule has more ``workers`` than there are."""
        if self.workers < workers:
            raise ValueError(
                f"the schedule has {workers} workers and cluster {self.name!r} only "
                f"{self.workers}: use one with at least {workers}"
            )

    def calibrated(self, level: str, bandwidth: float, origin: str) -> "Cluster":
        """Return this cluster with an effective ``bandwidth`` for the ``level`` of a name.

        Args:
            origin: the measurement or the cells that it was fitted on.

        Raises:
            ValueError: no level has this name, or :class:`Calibrated` refuses the rest.
        """
        if level not in (names := [known.name for known in self.levels]):
            raise ValueError(f"cluster {self.name!r} has no level {level!r}: name one of {names}")
        known = Calibrated(bandwidth, origin)
        levels = [replace(x, effective=known) if x.name == level else x for x in self.levels]
        return replace(self, levels=tuple(levels))

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.workers} x {self.device}"]
        lines += map(str, self.levels)
        if self.all_reduce != "ring":
            lines.append(f"sums by {self.all_reduce}")
        return "\n  ".join(lines)

    def _require_worker(self, worker: int) -> None:
        if not 0 <= worker < self.workers:
            raise ValueError(
                f"cluster {self.name!r} has no worker {worker}: its {self.workers} workers are "
                f"numbered from 0"
            )


def flat(workers: int, bandwidth: float, memory: float | None = None) -> Cluster:
    """Return ``workers`` that each reach every other over a link of their own.

    Args:
        bandwidth: bytes/s, in each direction, of one worker's link; ``math.inf`` for free links.
        memory: bytes of each worker, or None for no limit.
    """
    device = Device("any device", math.inf if memory is None else memory, {}, math.inf)
    return Cluster("flat", device, (Level("link", workers, bandwidth),))


def require_positive(what: str, value: float) -> None:
    """Raise ValueError unless a size or rate is above zero."""
    if not value >= 1 / MOST:
        raise ValueError(f"{what} must be above zero, not {value}: use math.inf for no limit")


def _rate(bandwidth: float) -> str:
    return f"{bandwidth / 1e9:.4g} GB/s ({bandwidth * 8 / 1e9:.4g} Gbps)"
