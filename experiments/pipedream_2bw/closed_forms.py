"""PipeDream-2BW's Figures 1 to 3 in closed form, for tables of tasks to be held against (2, 3)."""

from pipekit.schedules import Op, Schedule, Task
from pipekit.schedules.methods.one_f_one_b import alternate

Starts = dict[tuple[str, int, int], float]
"""In which slot, from 0, each pass begins, by (op, stage, microbatch), these from 0 too; a forward
takes one slot and a backward two."""


def gpipe_starts(depth: int, microbatches: int) -> Starts:
    """Return Figure 1a's first batch: all forwards, then all backwards."""
    turned = microbatches + depth - 1
    passes = [(s, k) for s in range(depth) for k in range(microbatches)]
    forwards: Starts = {("FORWARD", s, k): s + k for s, k in passes}
    return forwards | {("BACKWARD", s, k): turned + 2 * (depth - 1 - s + k) for s, k in passes}


def one_f_one_b_starts(depth: int, microbatches: int) -> Starts:
    """Return Figures 1b and 2: stage s, from 0, admits d - s; then it alternates without a gap.

    The output stage turns microbatch k around at d + 3k, and its gradient goes up a stage in every
    two slots.  Once a stage is full, the backward of k makes room for the forward of k + d - s.
    """
    found: Starts = {}
    for s in range(depth):
        for k in range(microbatches):
            found["BACKWARD", s, k] = depth + 3 * k + 2 * (depth - 1 - s)
            room = found.get(("BACKWARD", s, k - (depth - s)))
            found["FORWARD", s, k] = s + k if room is None else room + 2
    return found


def version_read(microbatch: int, microbatches: int) -> int:
    """Return max(floor((k - 1) / m) - 1, 0) for microbatch k, from 1 (section 3.1)."""
    return max((microbatch - 1) // microbatches - 1, 0)


def unguarded(depth: int, microbatches: int, batches: int) -> Schedule:
    """Return 2BW's table for any m, also below d, where it may read versions before they exist."""

    def worker(stage: int) -> list[Task]:
        tasks = []
        for op, k in alternate(range(microbatches * batches), depth - stage):
            tasks.append(Task(op, stage, k, version_read(k + 1, microbatches)))
            if op is Op.BACKWARD and (k + 1) % microbatches == 0:
                tasks.append(Task(Op.UPDATE, stage, k, (k + 1) // microbatches))
        return tasks

    return Schedule(tuple(tuple(worker(s)) for s in range(depth)), "2BW, any m")
