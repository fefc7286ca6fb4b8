"""1F1B: one forward, one backward, in turn; with backwards in two parts, or chunks of sequences.

A chunk attends to those before it, so that a stage runs the chunks of a microbatch forward in order
and backward in the reverse one.  How much longer later ones take ``Costs(chunks=...)`` says.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from pipekit.schedules.methods.flushed import flushed, require_positive
from pipekit.schedules.ops import Op
from pipekit.schedules.schedule import Pass, Schedule
from pipekit.schedules.task import ScheduleError, Task


def flush(stages: int, microbatches: int, in_flight: Sequence[int] | None = None) -> Schedule:
    """Return PipeDream-Flush's schedule (PipeDream-2BW, section 3.2, Figure 3).

    Each of the ``stages`` has a worker, each batch ``microbatches``.  ``in_flight`` are the
    microbatches in flight on each stage, by default as many as stages from it on; more hide links
    that take time.

    Raises:
        ScheduleError: a count is below 1, or ``in_flight`` does not fit the stages.
    """
    depths = depths_of(stages, in_flight)
    return _in_flight("PipeDream-Flush", stages, microbatches, depths.__getitem__)


def eager(stages: int, microbatches: int) -> Schedule:
    """Return eager 1F1B's schedule: twice 1F1B's warm-up, so that links may take time.

    Worker ``w`` (from 0) of ``p`` admits ``2 (p - 1 - w)`` forwards before it alternates, where
    :func:`flush` admits half as many (Zhuang et al., MLSys 2023, arXiv 2211.05322;
    ``OverlapFriendlyPipeDreamSchedule`` in github.com/alpa-projects/alpa).  A message on its way
    there or back keeps nobody waiting as long as it takes no longer than a pass.  Each of the
    ``stages`` has a worker, each batch ``microbatches``.
    """
    return _in_flight("eager 1F1B", stages, microbatches, lambda w: 2 * (stages - w) - 1)


def zb_h1(stages: int, microbatches: int) -> Schedule:
    """Return ZB-H1's schedule: 1F1B with backwards in two parts, within 1F1B's memory.

    Worker ``w`` (from 0) of ``p`` goes through four phases (Qi et al., Zero Bubble Pipeline
    Parallelism, ICLR 2024, section 2.1, Figure 3 above):

    - warm-up: ``p - 1 - w`` forwards, as in 1F1B;
    - filling: ``w`` times F I, so that every worker has ``p`` microbatches in flight;
    - steady: F I W, each W that of the microbatch ``w`` before;
    - drain: I W, and ``w`` times W.

    One batch takes m (F + I + W) + (p - 1) (F + I - W) if W is not longer than F or I; else more.
    Each of the ``stages`` has a worker, each batch ``microbatches``.
    """
    return _in_flight("ZB-H1", stages, microbatches, lambda w: stages - w, lambda w: w)


def zb_h2(stages: int, microbatches: int) -> Schedule:
    """Return ZB-H2's schedule: twice 1F1B's memory for no bubble in a worker's span (section 2.2).

    The phases are those of :func:`zb_h1` with ``2 (p - 1 - w)`` forwards, enough to fill the time
    until the first I, and ``2 w`` in place of ``w``.  With passes that take equally long, no worker
    idles between its first task and its last.  A single batch takes as long as with ZB-H1, since
    workers begin and stop one after the other: the gain shows over several, if no update waits for
    other workers.  Each of the ``stages`` has a worker, each batch ``microbatches``.
    """
    in_flight = (lambda w: 2 * (stages - w) - 1), (lambda w: 2 * w)
    return _in_flight("ZB-H2", stages, microbatches, *in_flight)


def depths_of(stages: int, in_flight: Sequence[int] | None) -> Sequence[int]:
    """Return how many microbatches each stage has in flight: if None, as many as stages from it on.

    Raises ScheduleError unless there is a count of at least 1 for each stage.
    """
    require_positive(stages=stages)
    if in_flight is None:
        return range(stages, 0, -1)
    if not isinstance(in_flight, Collection) or len(in_flight) != stages:
        raise ScheduleError(f"in_flight {in_flight} must name a count for each of {stages} stages")
    for each in in_flight:
        require_positive(in_flight=each)
    return in_flight


def _in_flight(
    name: str,
    stages: int,
    microbatches: int,
    in_flight: Callable[[int], int],
    waiting: Callable[[int], int] | None = None,
) -> Schedule:
    require_positive(stages=stages, microbatches=microbatches)

    def passes(worker: int) -> Iterator[Pass]:
        turns = alternate(range(microbatches), in_flight(worker))
        whole = ((op, worker, k) for op, k in turns)
        return split_backwards(whole, waiting(worker)) if waiting else whole

    return flushed(name, map(passes, range(stages)))


def alternate(microbatches: range, in_flight: int) -> Iterator[tuple[Op, int]]:
    """Yield ``(op, microbatch)`` as one worker runs a batch's ``microbatches`` (PipeDream, 3.3).

    It first admits ``in_flight - 1`` forwards, so that with the next one ``in_flight`` are in
    flight; then it alternates; at last it drains.
    """
    warm_up = min(in_flight - 1, len(microbatches))
    for k in microbatches[:warm_up]:
        yield Op.FORWARD, k
    for ahead, k in zip(microbatches[warm_up:], microbatches, strict=False):
        yield Op.FORWARD, ahead
        yield Op.BACKWARD, k
    for k in microbatches[len(microbatches) - warm_up :]:
        yield Op.BACKWARD, k


def split_backwards(passes: Iterable[Pass], waiting: int) -> Iterator[Pass]:
    """Yield a worker's passes with backwards in two parts; so many for the weights may wait."""
    left: deque[Pass] = deque()
    for op, stage, k in passes:
        if op is not Op.BACKWARD:
            yield op, stage, k
            continue
        yield Op.BACKWARD_INPUT, stage, k
        left.append((Op.BACKWARD_WEIGHT, stage, k))
        if len(left) > waiting:
            yield left.popleft()
    yield from left


def without_end(
    tasks: Callable[[Op, int], Iterable[Task]], in_flight: int, settled: int, period: int
) -> tuple[tuple[Task, ...], tuple[Task, ...]]:
    """Return the head and the period of a worker that alternates without end.

    Its passes are numbered by their place, from 0.  ``in_flight`` forwards ahead of the backwards,
    it goes on as :func:`alternate` does.  From the backward ``settled`` on, tasks are those of
    ``period`` backwards before, but later.
    """

    def rounds(first: int, count: int) -> Iterator[Task]:
        for number in range(first, first + count):
            yield from tasks(Op.FORWARD, number + in_flight - 1)
            yield from tasks(Op.BACKWARD, number)

    warm_up = (task for number in range(in_flight - 1) for task in tasks(Op.FORWARD, number))
    return tuple(chain(warm_up, rounds(0, settled))), tuple(rounds(settled, period))


def seq1f1b(stages: int, microbatches: int, *, chunks: int) -> Schedule:
    """Return Seq1F1B's schedule: one forward, one backward, of chunks of sequences.

    Worker ``w`` (from 0) of ``p`` runs ``p - 2 - w + chunks`` forwards before it alternates: what
    1F1B admits, and so many more that the last worker has all of a microbatch when its first
    backward begins, which is that of the last chunk (Sun et al., arXiv 2406.03488; ``num_warmup``
    in github.com/sail-sg/zero-bubble-pipeline-parallelism).  Each of the ``stages`` has a worker,
    each batch ``microbatches``, each of these so many ``chunks``.
    """
    return _chunked("Seq1F1B", stages, microbatches, chunks, chunks)


def terapipe(stages: int, microbatches: int, *, chunks: int) -> Schedule:
    """Return TeraPipe's schedule: all chunks forward, then all backward, one update.

    It is GPipe's, with ``chunks`` of sequences in place of microbatches (Li et al., ICML 2021,
    arXiv 2102.07988); how long each is the costs say.  ``stages`` and ``microbatches`` are as for
    :func:`seq1f1b`.
    """
    return _chunked("TeraPipe", stages, microbatches, chunks, chunks * microbatches)


def _chunked(name: str, stages: int, microbatches: int, chunks: int, ahead: int) -> Schedule:
    """Return batches in which the last worker has so many chunks in flight, and others more."""
    require_positive(stages=stages, microbatches=microbatches, chunks=chunks)

    def passes(worker: int) -> Iterator[Pass]:
        for op, n in alternate(range(microbatches * chunks), stages - 1 - worker + ahead):
            first = n - n % chunks  # of the microbatch
            yield op, worker, n if op is Op.FORWARD else 2 * first + chunks - 1 - n

    return replace(flushed(name, map(passes, range(stages))), chunks=chunks)
