"""PipeFisher: a second-order optimizer's own work, done in the bubbles of 1F1B."""

from collections.abc import Iterator
from dataclasses import replace

from pipekit.schedules.methods.bubbles import filled
from pipekit.schedules.methods.flushed import require_positive
from pipekit.schedules.methods.one_f_one_b import flush
from pipekit.schedules.ops import Item, Op
from pipekit.schedules.schedule import Schedule
from pipekit.schedules.task import ScheduleError, Task

FACTORS = Item("Kronecker factors", each="stage")
"""Of a stage's Fisher information, to which each microbatch of a batch adds."""
INVERSES = Item("inverses of the factors", each="stage")

CURVATURE = Op("K", "CURVATURE", gives=(FACTORS,))
"""Adds a microbatch's products of inputs and of gradients to a stage's factors."""
INVERSION = Op("V", "INVERSION", needs=(FACTORS,), gives=(INVERSES,), slots=2)
"""Inverts them, once all microbatches of a batch are in them."""


def pipefisher(stages: int, microbatches: int) -> Schedule:
    """Return PipeFisher's schedule: 1F1B, with the work of K-FAC in its bubbles.

    A microbatch's curvature may be computed once it is backward, and the factors of a stage are
    inverted once they have all microbatches of a batch.  This takes the bubbles of as many batches
    as it needs, the fewest; then it begins again with the newest batch, and an update preconditions
    by the last inverses there are (Osawa et al., PipeFisher, MLSys 2023, arXiv 2211.14133).

    Preconditioning counts as part of an update.  The memory of factors, and of the inputs and
    gradients that wait for their curvature, is in no table of costs.  What the two ops take,
    ``Costs(ops={CURVATURE: ..., INVERSION: ...})`` says; here one slot and two.  Each of the
    ``stages`` has a worker, each batch ``microbatches``.

    Raises:
        ScheduleError: a count is below 1, or there is a single stage, which has no bubble.
    """
    require_positive(stages=stages, microbatches=microbatches)
    if stages == 1:
        raise ScheduleError("one stage has no bubbles to fill: use two stages or more")

    def behind(task: Task) -> Iterator[Task]:
        if task.op.adds_gradient and task.microbatch < microbatches:
            yield task._replace(op=CURVATURE)
        if task.op is CURVATURE and task.microbatch == microbatches - 1:
            yield task._replace(op=INVERSION)

    batches = 1
    while True:
        try:
            found = filled(flush(stages, microbatches).take(batches).repeat(), behind)
        except ScheduleError:  # too few bubbles
            batches += 1
        else:
            return replace(found, name="PipeFisher")
