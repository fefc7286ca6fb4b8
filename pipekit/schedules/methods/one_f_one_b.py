"""The order that PipeDream, 2BW and Flush share: one forward, one backward, in turn."""

from collections.abc import Iterator

from pipekit.schedules.flushed import Pass
from pipekit.schedules.ops import Op


def one_f_one_b(stage: int, stages: int, microbatches: range) -> Iterator[tuple[Op, int]]:
    """Yield ``(op, microbatch)`` as one stage of a straight pipeline runs them.

    Stage ``s`` of ``n``, from 0, has ``n - s`` microbatches in flight.
    """
    return alternate(microbatches, stages - stage)


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
