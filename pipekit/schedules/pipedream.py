"""PipeDream: 1F1B without flushes, an update a minibatch (PipeDream, sections 3.3 and 3.4)."""

from pipekit.schedules.arguments import require_positive
from pipekit.schedules.one_f_one_b import one_f_one_b
from pipekit.schedules.schedule import Schedule, ScheduleError
from pipekit.schedules.task import Op, Task


def pipedream(
    stages: int, minibatches: int, stashing: bool = True, vertical_sync: bool = False
) -> Schedule:
    """Return PipeDream's schedule.

    Which weights minibatch ``k`` sees on stage ``s`` of ``n`` (all from 0; version = updates made):

    - weight stashing: ``k - (n - 1 - s)``, the newest there is when its forward runs, for forward
      and backward: w(t+1) = w(t) - nu * grad f(w1(t-n+1), w2(t-n+2), ..., wn(t));
    - vertical sync: ``k - (n - 1)`` on all stages: grad f(w1(t-n+1), ..., wn(t-n+1));
    - no stashing: the forward as with stashing, the backward the newest, ``k``: no gradient of
      ``f`` at any weights.  For study.

    A version below 0 is 0.

    Args:
        stages: how many stages, one worker each.
        minibatches: how many minibatches; each is one microbatch, followed by an update.
        stashing: whether a backward reads the weights of its forward.
        vertical_sync: whether all stages read the same version for a minibatch.

    Raises:
        ScheduleError: a count is below 1, or vertical sync is asked for without stashing.
    """
    require_positive(stages=stages, minibatches=minibatches)
    if vertical_sync and not stashing:
        raise ScheduleError("vertical sync needs weight stashing: leave stashing=True")

    def worker(stage: int) -> list[Task]:
        delay = stages - 1 - (0 if vertical_sync else stage)
        tasks = []
        for op, k in one_f_one_b(stage, stages, range(minibatches)):
            version = k if op is Op.BACKWARD and not stashing else max(0, k - delay)
            tasks.append(Task(op, stage, k, version))
            if op is Op.BACKWARD:
                tasks.append(Task(Op.UPDATE, stage, k, k + 1))
        return tasks

    variant = " + vertical sync" if vertical_sync else "" if stashing else " without stashing"
    return Schedule(tuple(tuple(worker(s)) for s in range(stages)), "PipeDream" + variant, stashing)
