"""Model parallelism without pipelining: one minibatch at a time (PipeDream, Figure 3)."""

from dataclasses import replace

from pipekit.schedules.methods.gpipe import gpipe
from pipekit.schedules.schedule import Schedule


def model_parallel(stages: int, minibatches: int) -> Schedule:
    """Return the schedule with a single minibatch in flight: GPipe's with one microbatch a batch.

    Args:
        stages: how many stages, one worker each.
        minibatches: how many minibatches, each followed by an update.

    Raises:
        ScheduleError: a count is below 1.
    """
    return replace(gpipe(stages, microbatches=1, batches=minibatches), name="model parallel")
