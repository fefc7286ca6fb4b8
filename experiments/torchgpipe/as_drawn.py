"""GPipe's schedule as its Figure 2c draws it, which is the one that torchgpipe runs."""

from collections.abc import Iterator

from pipekit.schedules import Op, Schedule, Task


def as_drawn(stages: int, microbatches: int) -> Schedule:
    """Return a batch of GPipe's schedule with the backwards from the last microbatch to the first.

    So Figure 2c draws it.  :func:`gpipe` runs them from the first to the last, which idles no less.
    """

    def worker(stage: int) -> Iterator[Task]:
        batch = range(microbatches)
        yield from (Task(Op.FORWARD, stage, k, 0) for k in batch)
        yield from (Task(Op.BACKWARD, stage, k, 0) for k in reversed(batch))
        yield Task(Op.UPDATE, stage, batch[-1], 1)

    return Schedule(tuple(tuple(worker(s)) for s in range(stages)), "GPipe as drawn")
