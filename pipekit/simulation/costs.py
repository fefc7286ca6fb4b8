"""What each stage of a schedule costs, from a profile and a plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from pipekit.bucketing import buckets
from pipekit.plans import Plan, Recompute, stage_of_layers
from pipekit.profiling import LayerProfile, Profile, SkipProfile, TieProfile
from pipekit.profiling.layer_profile import renumbered
from pipekit.schedules import Item, Op, Schedule
from pipekit.schedules.ops import PASSES
from pipekit.traces import Trace
from pipekit.units import MOST, plural, require_amount

_LINKS = {
    "microbatch": ("host_bytes_per_s=..., or ", "; in a shell, --host-bandwidth"),
    "stage": ("shards=Shards(...), or ", "; in a shell, --shards, and --bandwidth or --cluster"),
}
"""How the link is given on which an item moves, of a microbatch or of a stage."""


@dataclass(frozen=True)
class Costs:
    """A profile, and which tasks take other times than it says; bytes stay the profile's.

    Attributes:
        profile: what each layer costs for a microbatch.
        workers: how many times as long a worker takes for everything: ``{3: 1.5}`` is a straggler.
        microbatches: how many times as long all passes of a microbatch take.
        tasks: seconds of tasks, by (worker, op, stage, microbatch), in place of all that; a
            forward that runs again takes those of the first.
        chunks: how many times as long the passes of each chunk of a sequence take as an equal share
            of the microbatch's, from the first on; empty: all alike.
        ops: seconds of an op that the profile does not know, for each stage or for all alike.
        host_bytes_per_s: of the link between each worker and its host; None: unknown.
        shards: the workers that share a stage's weights, where the schedule gathers them.

    Raises:
        ValueError: a number is negative or not finite.
    """

    profile: Profile
    workers: Mapping[int, float] = field(default_factory=dict)
    microbatches: Mapping[int, float] = field(default_factory=dict)
    tasks: Mapping[tuple[int, Op, int, int], float] = field(default_factory=dict)
    chunks: Sequence[float] = ()
    ops: Mapping[Op, float | Sequence[float]] = field(default_factory=dict)
    host_bytes_per_s: float | None = None
    shards: "Shards | None" = None

    def __post_init__(self) -> None:
        ops = {(op, n): s for op, each in self.ops.items() for n, s in enumerate(_each(each))}
        given: dict[str, Mapping[Any, float]] = {
            "workers": self.workers,
            "microbatches": self.microbatches,
            "tasks": self.tasks,
            "chunks": dict(enumerate(self.chunks)),
            "ops": ops,
        }
        for name, values in given.items():
            for key, value in values.items():
                require_amount(f"Costs.{name}[{key!r}]", value)
        if self.host_bytes_per_s is not None:
            require_amount("host_bytes_per_s", self.host_bytes_per_s)

    def seconds(self, op: Op, stage: int, cost: "StageCosts") -> float:
        """Return the seconds of an op of a stage on a microbatch; 0 of a transfer to a worker.

        Raises ValueError if they are not known, and says what to give.
        """
        if op in self.ops:
            each = _each(self.ops[op], stage + 1)
            if stage >= len(each):
                raise ValueError(
                    f"Costs(ops=...) has {op.name} of {plural(len(each), 'stage')}, and the "
                    f"schedule has more: give a number for each stage, or one for all"
                )
            return each[stage]
        if op in (*PASSES, Op.UPDATE):
            return cost.whole.seconds(op)
        if op is Op.RECOMPUTE:
            return cost.whole.seconds(Op.FORWARD)
        if op.peer is not None or not op.slots:
            return 0.0
        if op.moves and op.moves.each == "stage" and self.shards:
            return cost.item_bytes(op.moves) * self.shards.others / self.shards.bytes_per_s
        if op.moves and op.moves.each == "microbatch" and self.host_bytes_per_s:
            return cost.item_bytes(op.moves) / self.host_bytes_per_s
        wanted = shell = ""
        if op.moves:
            wanted, shell = _LINKS[op.moves.each]
        raise ValueError(
            f"{op.name} ({op.letter}) has no seconds in the profile: give Costs(profile, "
            f"{wanted}ops={{op: seconds}}){shell}"
        )

    @classmethod
    def measured(cls, profile: Profile, trace: Trace) -> "Costs":
        """Return the seconds of each task in a ``trace`` of the same workers and stages.

        Bytes are the ``profile``'s.  Raises ValueError if the trace is in slots.
        """
        if trace.unit != "s":
            raise ValueError(f"{trace.name} is in {trace.unit}: give a trace in seconds")
        frame = trace.frame
        keys = zip(*(frame[name] for name in ("worker", "op", "stage", "microbatch")), strict=True)
        took = (frame["end_s"] - frame["start_s"]).tolist()
        return cls(
            profile,
            tasks={(w, Op.named(op), s, k): t for (w, op, s, k), t in zip(keys, took, strict=True)},
        )


@dataclass(frozen=True)
class Shards:
    """Workers that share the weights of a stage, each a part (Zhao et al., arXiv 2304.11277)."""

    workers: int  # how many; they stand for one worker of the table
    bytes_per_s: float  # at which each of them receives the parts of the others

    def __post_init__(self) -> None:
        if not 1 <= self.workers <= MOST or not 0 < self.bytes_per_s <= MOST:
            raise ValueError(f"{self} needs at least one worker, and more than 0 bytes/s")

    @property
    def others(self) -> float:
        """The part of a stage's weights that a worker does not keep."""
        return 1 - 1 / self.workers


@dataclass(frozen=True)
class StageCosts:
    """One stage's costs for a microbatch."""

    whole: LayerProfile  # its layers as one
    layers: Sequence[LayerProfile]  # one by one, in order
    input_bytes: float  # bytes that enter it from the stage before
    recompute: Recompute  # which microbatches of a batch are recomputed
    workers: tuple[int, ...]  # those that have a copy of it
    # the skip connections from other stages that end here, by number; their ends are stages
    pops: Mapping[int, SkipProfile]
    stashes: Mapping[int, SkipProfile]  # those to other stages that begin here
    # the weights that it shares with other stages, by number; for layers they have stages
    ties: Mapping[int, TieProfile]
    copied_bytes: float  # of those of which an earlier stage has a copy, too
    has_bytes: bool  # whether any layer of the profile has bytes of weights

    @cached_property
    def received_bytes(self) -> float:
        """Bytes of its input and of the skips that it pops."""
        return self.input_bytes + sum(skip.bytes for skip in self.pops.values())

    @cached_property
    def sent_bytes(self) -> float:
        """Bytes of its output and of the skips that it stashes."""
        return self.whole.output_bytes + sum(skip.bytes for skip in self.stashes.values())

    @cached_property
    def kept_bytes(self) -> float:
        """Bytes that a microbatch keeps between forward and backward, but for what it received.

        What the stage sends is kept too: a backward starts there.
        """
        output = 0 if self.whole.saves_output else self.whole.output_bytes
        unsaved = sum(skip.bytes for skip in self.stashes.values() if not skip.saved)
        return self.whole.saved_bytes + output + unsaved

    def item_bytes(self, item: Item) -> float:
        """Return the size of an item, of a microbatch or of the stage."""
        kept = self.received_bytes + self.kept_bytes
        return item.bytes(kept, self.whole.input_only_bytes, self.whole.parameter_bytes)

    @cached_property
    def buckets(self) -> list[list[int]]:
        """The layers whose gradients its workers sum together; none on a single worker.

        If the profile has no bytes, nobody knows of weights: then all layers are one bucket, of
        which nothing is sent, but an update waits until all workers have their gradients.
        """
        if len(self.workers) == 1:
            return []
        if not self.has_bytes:
            return [[*reversed(range(len(self.layers)))]]
        return buckets([layer.parameter_bytes for layer in self.layers])

    def bucket_bytes(self, bucket: Sequence[int]) -> float:
        """Return the bytes of some layers' gradients."""
        return sum(self.layers[number].parameter_bytes for number in bucket)

    def gradients_at_height(self, op: Op) -> float:
        """Return how far the bytes rise above the activations' in a batch's first such pass.

        Before layer l goes backward, the activations of layers up to l are still there, and the
        gradients of layers behind l already; within it the ones come as the others go.
        """
        highest = height = 0.0
        for layer in reversed(self.layers):
            height += layer.parameter_bytes
            height += op.activation_bytes(layer.saved_bytes, layer.input_only_bytes)
            highest = max(highest, height)
        return highest


def _each(seconds: float | Sequence[float], count: int = 1) -> Sequence[float]:
    return seconds if isinstance(seconds, Sequence | np.ndarray) else [seconds] * count


def stage_costs(schedule: Schedule, profile: Profile, plan: Plan | None) -> list[StageCosts]:
    """Return the costs of every stage."""
    if plan is None:
        if len(profile) != schedule.stages:
            raise ValueError(
                f"the profile has {len(profile)} layers and the schedule {schedule.stages} stages: "
                f"pass a plan that says which layers each stage has, e.g. Plan.by_hand([2, 3])"
            )
        replicas = [len(workers) for workers in schedule.stage_workers]
        plan = Plan.by_hand([1] * schedule.stages, rows=profile.rows, replicas=replicas)
    if len(plan.stages) != schedule.stages:
        raise ValueError(
            f"the plan has {len(plan.stages)} stages and the schedule {schedule.stages}: build the "
            f"schedule for {len(plan.stages)} stages"
        )
    if plan.layers != len(profile):
        raise ValueError(
            f"the plan is for {plan.layers} layers and the profile has {len(profile)}: plan with "
            f"this profile"
        )
    if (plan.microbatch_rows, schedule.chunks) != (profile.rows, 1):
        profile = profile.scaled(plan.microbatch_rows, schedule.chunks)
    stage_of = stage_of_layers(plan.balance)
    skips = [
        replace(skip, source=stage_of[skip.source], destination=stage_of[skip.destination])
        for skip in profile.skips
        if stage_of[skip.source] != stage_of[skip.destination]
    ]
    shared: dict[tuple[int, ...], float] = {}  # bytes of the weights that the same stages share
    for tie in renumbered(profile.ties, stage_of):
        shared[tie.layers] = shared.get(tie.layers, 0.0) + tie.bytes
    ties = [TieProfile(*each) for each in shared.items()]
    costs = []
    for index, (stage, workers) in enumerate(zip(plan.stages, schedule.stage_workers, strict=True)):
        if stage.replicas != len(workers):
            raise ValueError(
                f"the plan has stage {index} on {stage.replicas} workers and the schedule on "
                f"{len(workers)}: build the schedule for the plan's replicas"
            )
        costs.append(
            StageCosts(
                profile.stage(stage.first, stage.stop),
                profile.layers[stage.first : stage.stop],
                profile.boundary_bytes(stage.first),
                stage.recompute,
                workers,
                {number: skip for number, skip in enumerate(skips) if skip.destination == index},
                {number: skip for number, skip in enumerate(skips) if skip.source == index},
                {number: tie for number, tie in enumerate(ties) if index in tie.layers},
                sum(tie.bytes for tie in ties if index in tie.layers[1:]),
                profile.parameter_bytes > 0,
            )
        )
    return costs


def sums_between_workers(costs: Sequence[StageCosts]) -> bool:
    """Return whether stages are on several workers, or share weights."""
    return any(cost.buckets or cost.ties for cost in costs)


def skips_of(costs: Sequence[StageCosts]) -> list[SkipProfile]:
    """Return the skip connections between stages, each at its number."""
    numbered = {number: skip for cost in costs for number, skip in cost.stashes.items()}
    return [numbered[number] for number in range(len(numbered))]


def ties_of(costs: Sequence[StageCosts]) -> list[TieProfile]:
    """Return the weights that stages share, each at its number."""
    numbered = {number: tie for cost in costs for number, tie in cost.ties.items()}
    return [numbered[number] for number in range(len(numbered))]
