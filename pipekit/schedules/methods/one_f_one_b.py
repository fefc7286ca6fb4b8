"""The order that PipeDream, 2BW and Flush share: one forward, one backward, in turn."""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from pipekit.schedules.flushed import Pass
from pipekit.schedules.ops import Op
from pipekit.schedules.task import Task


def alternate(microbatches: range, in_flight: int) -> Iterator[tuple[Op, int]]:
    """Yield ``(op, microbatch)`` as one worker runs them (PipeDream, section 3.3).

    It first admits ``in_flight - 1`` forwards, so that with the next one ``in_flight`` are in
    flight; then it alternates, so that no worker of a balanced pipeline idles; at the end it
    drains.
    """
    warm_up = min(in_flight - 1, len(microbatches))
    for k in microbatches[:warm_up]:
        yield Op.FORWARD, k
    for ahead, k in zip(microbatches[warm_up:], microbatches, strict=False):
        yield Op.FORWARD, ahead
        yield Op.BACKWARD, k
    for k in microbatches[len(microbatches) - warm_up :]:
        yield Op.BACKWARD, k


def stage_passes(stage: int, microbatches: int, in_flight: int) -> Iterator[Pass]:
    """Yield the passes of a batch on a worker that has one stage; see :func:`alternate`."""
    for op, k in alternate(range(microbatches), in_flight):
        yield op, stage, k


def without_end(
    tasks: Callable[[Op, int], Iterable[Task]], in_flight: int, settled: int, period: int
) -> tuple[tuple[Task, ...], tuple[Task, ...]]:
    """Return the head and the period of a worker that alternates without end.

    Its passes are numbered by their place, from 0: of all minibatches on a worker without
    replicas.  ``in_flight`` forwards ahead of the backwards, it goes on as :func:`alternate` does.

    Args:
        tasks: what it runs for a pass: the pass, and the updates behind it.
        in_flight: microbatches in flight, with the forward before each backward.
        settled: the backward from which on the tasks are those of a period before, but later.
        period: how many backwards a period has.
    """

    def rounds(first: int, count: int) -> Iterator[Task]:
        for number in range(first, first + count):
            yield from tasks(Op.FORWARD, number + in_flight - 1)
            yield from tasks(Op.BACKWARD, number)

    warm_up = (task for number in range(in_flight - 1) for task in tasks(Op.FORWARD, number))
    return tuple(chain(warm_up, rounds(0, settled))), tuple(rounds(settled, period))
