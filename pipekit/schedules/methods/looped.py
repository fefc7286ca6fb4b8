"""Several stages a worker, passed in a loop or in waves: 1F1B, split backwards, breadth first."""

import math
from collections.abc import Iterator

import numpy as np

from pipekit.schedules.list_scheduler import BatchPasses, Policy, choose
from pipekit.schedules.methods.flushed import flushed, require_positive
from pipekit.schedules.methods.one_f_one_b import alternate, split_backwards
from pipekit.schedules.ops import Op
from pipekit.schedules.schedule import Pass, Schedule
from pipekit.schedules.task import ScheduleError


def interleaved(stages: int, microbatches: int, *, workers: int) -> Schedule:
    """Return interleaved 1F1B's schedule.

    Worker ``w`` has the stages ``w``, ``w + workers``, ``w + 2 workers``, ... (Narayanan et al.,
    Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM, SC '21, section
    2.2 and Figure 4).  With v of them and as many microbatches as workers or more, the bubble is
    1 / v of :func:`.flush`'s; in return each microbatch crosses v times as many links, and more of
    them are in flight.  A worker runs a round of microbatches through its first stage, then through
    its next, and so on: there ``workers`` at a time, here even rounds of so many or more.  The
    ``workers`` have two or more of the ``stages`` each, each batch has ``microbatches``.
    """
    # Each worker behind needs one forward to have work at once, and one more so that messages have
    # time to arrive.
    return flushed("interleaved 1F1B", _interleaved(stages, microbatches, workers, ahead=2))


def gis(stages: int, microbatches: int, *, workers: int) -> Schedule:
    """Return the generalized interleaved schedule, GIS (Wan et al., PipeOffload, arXiv 2503.01328).

    :func:`interleaved` that admits one forward ahead for each worker behind, and not two: it is as
    long, has ``workers - 1`` fewer passes in flight, and leaves no time for messages.  ``stages``
    and ``microbatches`` are as there.
    """
    return flushed("GIS", generalized(stages, microbatches, workers, workers))


def gis_h(stages: int, microbatches: int, *, workers: int) -> Schedule:
    """Return GIS-H's schedule: :func:`gis` in rounds of half as many microbatches.

    With ``p`` workers and ``v`` stages each, the first worker has ``p + (v - 1) ceil(p / 2)``
    passes in flight, if rounds of ``ceil(p / 2)`` divide the microbatches: half of GIS's as ``v``
    grows (PipeOffload; the least ``interleave_group_size`` in
    github.com/sail-sg/zero-bubble-pipeline-parallelism).  A gradient has to come back through all
    workers in such a round, so that backwards are in two parts.  ``stages``, ``microbatches`` and
    ``workers`` are as for :func:`interleaved`.
    """
    each = generalized(stages, microbatches, workers, -(-workers // 2))
    return flushed("GIS-H", (split_backwards(passes, waiting=0) for passes in each))


def uniform(stages: int, microbatches: int, workers: int) -> Iterator[list[Pass]]:
    """Yield each worker's passes of GIS-H's block, repeated for each microbatch in even steps.

    Where interleaving runs a round of microbatches through a stage, here microbatches follow one
    another in steps of one forward and one backward on each of a worker's stages, so that a stage's
    activations are as many as they wait long (PipeOffload, section 2).
    """
    half = -(-workers // 2)

    def turns(own: range) -> Iterator[tuple[int, bool, Pass]]:
        count, behind = len(own), workers - 1 - own[0]
        # Steps from one stage to the next, and one more wherever two would want the same.
        lag = [half * n + n // (count // math.gcd(count, half)) for n in range(count)]
        for n, stage in enumerate(own):
            back = lag[-1] + behind + lag[-1 - n]
            for k in range(microbatches):
                yield count * k + lag[n], False, (Op.FORWARD, stage, k)
                yield count * k + back, True, (Op.BACKWARD, stage, k)

    for own in _loop(stages, microbatches, workers, "interleaved", "flush"):
        yield [each for *_, each in sorted(turns(own), key=lambda turn: turn[:2])]


def generalized(
    stages: int, microbatches: int, workers: int, group: int
) -> Iterator[Iterator[Pass]]:
    """Return each worker's passes of GIS, with so many microbatches a round."""
    return _interleaved(stages, microbatches, workers, ahead=1, group=group)


def interleaved_zero_bubble(stages: int, microbatches: int, *, workers: int) -> Schedule:
    """Return interleaved 1F1B with backwards in two parts, as :func:`.zb_h1` is 1F1B with these.

    It is ``ScheduleInterleavedZeroBubble`` of ``torch.distributed.pipelining``, there only for
    equal rounds.  Worker ``w`` (from 0) of ``p`` runs a round of microbatches through all its
    stages but one, then ``p - 1 - w`` forwards; ``w`` times F I; then F I W, each W that of the
    pass ``w`` before; and at last I W and ``w`` times W.  ``stages``, ``microbatches`` and
    ``workers`` are as for :func:`interleaved`.
    """
    each = _interleaved(stages, microbatches, workers, ahead=1, straight="zb_h1")
    split = (split_backwards(passes, waiting=worker) for worker, passes in enumerate(each))
    return flushed("interleaved zero bubble", split)


def looped_bfs(stages: int, microbatches: int, *, workers: int) -> Schedule:
    """Return the looped breadth-first schedule (Lamy-Poirier, MLSys 2023, arXiv 2211.05953).

    Each worker runs the forwards of all microbatches through its first stage, then through the
    next, and so on; then the backwards, last stage first.  So a stage's weights are needed in one
    piece of time, and all of its gradients come early.  The bubble is that of interleaved 1F1B; all
    activations are kept.  ``torch.distributed.pipelining`` reverses a stage's backwards, which
    idles no less.  ``stages``, ``microbatches`` and ``workers`` are as for :func:`interleaved`.
    """

    def passes(own: range) -> list[Pass]:
        orders = ((Op.FORWARD, own), (Op.BACKWARD, own[::-1]))
        return [(op, s, k) for op, order in orders for s in order for k in range(microbatches)]

    loop = _loop(stages, microbatches, workers, "looped", "gpipe")
    return flushed("looped breadth-first", map(passes, loop))


def _loop(
    stages: int, microbatches: int, workers: int, method: str, straight: str
) -> Iterator[range]:
    require_positive(stages=stages, workers=workers)
    if stages % workers or stages == workers:
        raise ScheduleError(
            f"{stages} stages cannot be {method} on {workers} workers: use a multiple of "
            f"{workers} from {2 * workers} (one stage a worker is {straight})"
        )
    require_positive(microbatches=microbatches)
    return (range(worker, stages, workers) for worker in range(workers))


def _interleaved(
    stages: int,
    microbatches: int,
    workers: int,
    *,
    ahead: int,
    group: int | None = None,
    straight: str = "flush",
) -> Iterator[Iterator[Pass]]:
    """Return each worker's passes of a batch: all its stages but one for a round of microbatches.

    Then come ``ahead`` forwards for each worker behind, before it alternates.  A batch is cut into
    rounds of ``group`` microbatches or more, the larger ones first.
    """
    loop = _loop(stages, microbatches, workers, "interleaved", straight)
    parts = np.array_split(range(microbatches), max(1, microbatches // (group or workers)))
    rounds = [part.tolist() for part in parts]

    def passes(own: range) -> Iterator[Pass]:
        order = {
            Op.FORWARD: [(stage, k) for some in rounds for stage in own for k in some],
            Op.BACKWARD: [(stage, k) for some in rounds for stage in reversed(own) for k in some],
        }
        behind = workers - 1 - own[0]
        in_flight = (len(own) - 1) * len(rounds[0]) + ahead * behind + 1
        for op, position in alternate(range(len(own) * microbatches), in_flight):
            yield op, *order[op][position]

    return map(passes, loop)


def hanayo(stages: int, microbatches: int, *, workers: int) -> Schedule:
    """Return Hanayo's schedule: stages go down the workers and back, once for each wave.

    With ``p`` workers and W waves worker ``w`` has the stages ``w``, ``2 p - 1 - w``, ``2 p + w``,
    ... (SC '23, arXiv 2308.15762): Chimera without the second copy of the weights.  The paper draws
    its order and gives no rule for it.  Here a free worker takes, of what is ready, a backward
    before a forward, and of each kind the earliest microbatch's, the last of its stages first; a
    microbatch begins when fewer than ``p`` are on their way, so that no worker keeps more
    activations than 1F1B's first; and each pass takes one slot.  The ``workers`` have ``2 W`` of
    the ``stages`` each, each batch has ``microbatches``.

    Raises:
        ScheduleError: a count is below 1, or the stages are not a whole number of waves.
    """
    require_positive(stages=stages, microbatches=microbatches, workers=workers)
    if stages % (2 * workers):
        raise ScheduleError(
            f"{stages} stages are not a whole number of waves over {workers} workers: use a "
            f"multiple of {2 * workers}"
        )
    homes = [*range(workers), *reversed(range(workers))] * (stages // (2 * workers))
    policy = Policy([workers, *[math.inf] * (stages - 1)])
    # A backward stands in its two parts, the second of which takes no time; memory has no limit.
    slot, none, endless = [1.0] * stages, [0.0] * stages, [math.inf] * workers
    seconds, kept = (slot, slot, none), [none] * 3
    passes = BatchPasses(homes, microbatches, seconds, none, kept, none, none, endless)
    rows = choose(passes, policy)
    whole = {Op.FORWARD: Op.FORWARD, Op.BACKWARD_INPUT: Op.BACKWARD}
    each = ([(whole[op], stage, k) for op, stage, k in row if op in whole] for row in rows)
    return flushed("Hanayo", each)
