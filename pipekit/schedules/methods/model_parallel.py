"""Model parallelism without pipelining: one minibatch at a time (PipeDream, Figure 3)."""

from dataclasses import replace

from pipekit.schedules.methods.gpipe import gpipe
from pipekit.schedules.schedule import Schedule


def model_parallel(stages: int) -> Schedule:
    """Return the schedule with one minibatch in flight: GPipe's with one microbatch a batch.

    Args:
        stages: how many stages, one worker each.

    Raises:
        ScheduleError: a count is below 1.
    """
    return replace(gpipe(stages, microbatches=1), name="model parallel")
