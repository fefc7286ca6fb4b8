"""What does not go with what: one table, which the checks, docs/train.md and a test read."""

from collections.abc import Collection
from typing import NamedTuple

from pipekit.engine.options import Execution, Updates
from pipekit.names import TRANSPORTS
from pipekit.schedules import Op, Schedule, ScheduleError, check


class Conflict(NamedTuple):
    """Two features that cannot be used together."""

    one: str
    other: str
    why: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.one} and {self.other} do not go together: {self.why}; {self.remedy}"


CLIP = "clip_norm"
SCALE = "loss_scale"
RECOMPUTE = "recompute"
MITIGATION = "mitigation"
FOR_STASHING = "a mitigation for stashed weights"
FOR_NEWEST = "a mitigation for the newest weights"
BY_DELAY = "a mitigation that corrects updates by each stage's delay"
TIES = "weights that stages share"
NO_SEED = "seed=None"
CLUSTER = "cluster"
CHECKPOINTS = "checkpoints"
FEWER = "short_batches='fewer'"
STOP = "on_batch that returns True"
VALIDATE = "validate"
CHUNKS = "chunks of sequences"
OUTPUTS = "outputs that are kept"
PARTNER = "activations that a partner keeps"

STASHING = "a schedule with weight stashing"
NO_STASHING = "a schedule without weight stashing"
APART = "stages that update at different times"
SEVERAL = "several stages or workers"
PROCESSES = "transport='distributed'"
TORCHRUN = "torchrun or GPUs in processes"

_TOGETHER = "let every stage update after the same microbatches, and have equal replicas"
_IN_TURN = "several would take turns at one generator in no fixed order, and no plain loop has that"

CONFLICTS = (
    Conflict(
        RECOMPUTE,
        NO_STASHING,
        "a recomputed forward would read other weights than the first one did",
        "use recompute='never', and a table without R",
    ),
    Conflict(
        FOR_STASHING,
        NO_STASHING,
        "a backward there reads another weight version than its forward",
        "use a schedule with weight stashing, as schedules.pipedream and two_bw are",
    ),
    Conflict(
        FOR_NEWEST,
        STASHING,
        "a backward there reads the weight version of its forward",
        "use one without, e.g. schedules.pipedream(stages, stashing=False)",
    ),
    Conflict(
        MITIGATION,
        SCALE,
        "a mitigation counts updates, of which a loss scale may skip some",
        "leave one of them out",
    ),
    Conflict(
        BY_DELAY,
        TIES,
        "their copies on stages with different delays would drift apart",
        "use a schedule with one delay for all stages, as schedules.two_bw is",
    ),
    *(
        Conflict(feature, APART, "the updates of a batch wait for one another", _TOGETHER)
        for feature in (CLIP, SCALE, TIES, VALIDATE)
    ),
    Conflict(NO_SEED, SEVERAL, _IN_TURN, "give a seed"),
    Conflict(
        NO_SEED,
        PROCESSES,
        "layers draw from this process's generator, as in a plain loop",
        "give a seed, or use transport='threads'",
    ),
    Conflict(NO_SEED, RECOMPUTE, "a second forward would draw other numbers", "give a seed"),
    Conflict(NO_SEED, CHECKPOINTS, "they do not hold what a generator gives", "give a seed"),
    Conflict(
        CLUSTER,
        PROCESSES,
        "links can be slowed down between threads only",
        "use transport='threads'",
    ),
    Conflict(
        CLUSTER,
        PARTNER,
        "only messages between stages are slowed down",
        "leave the cluster out, or simulate the schedule on it",
    ),
    Conflict(
        CHUNKS,
        FEWER,
        "each microbatch needs rows to cut",
        "give batches whose rows are a multiple of the microbatches",
    ),
    Conflict(
        CHUNKS,
        OUTPUTS,
        "they would be in pieces",
        "call predict() after training, which takes whole sequences",
    ),
    Conflict(
        PARTNER,
        PROCESSES,
        "a process cannot reach into another's memory",
        "use transport='threads', or offload to the host",
    ),
    Conflict(
        STOP,
        TORCHRUN,
        "their workers run to the end of a table",
        "use transport='threads', or give train() fewer batches",
    ),
)
"""Every pair that is refused, before any worker starts or, for a stop, when it is asked for."""


def conflict(used: Collection[str]) -> Conflict | None:
    """Return the first two of the features that do not go together, or None."""
    return next((row for row in CONFLICTS if row.one in used and row.other in used), None)


def require_compatible(used: Collection[str]) -> None:
    """Raise ValueError if two of the features do not go together."""
    if found := conflict(used):
        raise ValueError(str(found))


def of_pipeline(
    schedule: Schedule, updates: Updates, execution: Execution, seed: object, transport: str
) -> set[str]:
    """Return the features that a pipeline uses; ``execution`` names what each stage recomputes."""
    rule, in_process = updates.rule, TRANSPORTS[transport].in_process
    modes, ops = execution.recompute or (), schedule.ops
    features = {
        CLIP: updates.clip_norm is not None,
        SCALE: updates.scale,
        RECOMPUTE: Op.RECOMPUTE in ops or any(mode != "never" for mode in modes),
        MITIGATION: rule,
        FOR_STASHING: rule and rule.stashing is True,
        FOR_NEWEST: rule and rule.stashing is False,
        STASHING: schedule.stashing,
        NO_STASHING: not schedule.stashing,
        NO_SEED: seed is None,
        SEVERAL: (schedule.worker_count, schedule.stages) != (1, 1),
        CLUSTER: execution.cluster,
        FEWER: execution.short_batches == "fewer",
        CHUNKS: schedule.chunks > 1,
        PARTNER: any(op.peer is not None for op in ops),
        PROCESSES: not in_process,
    }
    return {name for name, used in features.items() if used}


def require_joint_updates(schedule: Schedule, feature: str) -> None:
    """Raise ScheduleError if the stages cannot make each update together."""
    row = conflict({feature, APART})
    try:
        check(schedule, joint_updates=True)
    except ScheduleError as error:
        raise ScheduleError(f"{row}") from error
    if len(set(schedule.excerpt().updates)) > 1:
        raise ScheduleError(f"{row} (an update sums other microbatches on another stage)")
