"""Activations that lie elsewhere between forward and backward: with a partner, or on the host."""

from collections.abc import Iterator, Mapping, Sequence

from pipekit.schedules.methods.flushed import flushed, require_positive
from pipekit.schedules.methods.looped import generalized
from pipekit.schedules.methods.one_f_one_b import alternate
from pipekit.schedules.ops import Op
from pipekit.schedules.schedule import Pass, Schedule
from pipekit.schedules.task import ScheduleError
from pipekit.schedules.transfers import LOAD, OFFLOAD

Place = tuple[int, int]
"""A stage and a microbatch, whose activations are offloaded."""


def bpipe(stages: int, microbatches: int) -> Schedule:
    """Return BPipe's schedule: 1F1B whose early workers keep activations with late ones.

    Worker ``w`` (from 0) of the first half evicts to worker ``p - 1 - w``, and loads from there in
    time, so that neither has more than ``ceil((p + 2) / 2)`` microbatches' activations, where
    1F1B's first worker has ``p`` (Kim et al., BPipe, ICML 2023).  Of a pair one transfer is under
    way at a time as long as it takes no longer than a forward: an eviction beside a backward, or a
    forward of the warm-up; a load beside a forward.  The newest are evicted, which are needed last.

    Args:
        stages, microbatches: how many stages, one worker each, and microbatches a batch.
    """
    require_positive(stages=stages, microbatches=microbatches)

    def passes(worker: int) -> Iterator[Pass]:
        whole = [(op, worker, k) for op, k in alternate(range(microbatches), stages - worker)]
        return offloaded(whole, _evicted(whole, worker, stages), stages - 1 - worker)

    return flushed("BPipe", map(passes, range(stages)))


def _evicted(passes: Sequence[Pass], worker: int, stages: int) -> dict[Place, int]:
    """Return what a worker evicts, and behind which of its passes it loads each again."""
    backwards = [n for n, (op, *_) in enumerate(passes) if op is Op.BACKWARD]
    room, most = (stages + 3) // 2, min(stages - worker, len(backwards))
    if most <= room:
        return {}
    # Beside those that stay there is room for one on its way, and for that of a forward.  When the
    # first backward is due, the last forward's stay, too: the partner has no room for them.
    evicted = [k for k in range(room - 2, len(backwards)) if k != most - 1]
    return {(worker, k): n for k, n in zip(evicted, backwards, strict=False)}


def pipe_offload(
    stages: int, microbatches: int, *, workers: int, offloaded_stages: int | None = None
) -> Schedule:
    """Return PipeOffload's schedule: :func:`.gis`, with activations on the host meanwhile.

    Offloaded are those of each worker's first stages, which wait longest for their backwards (Wan
    et al., PipeOffload, ICML 2025, arXiv 2503.01328: selective offload; ``offload_chunk_num`` in
    its code).  They go right behind the forward, and come back when the last backward but one
    before theirs is over; what would hardly be away stays.

    Args:
        stages, microbatches: how many stages, and microbatches a batch.
        workers: how many share the stages, each two or more.
        offloaded_stages: of each worker; None: half of them, rounded down.

    Raises:
        ScheduleError: a count is below 1, or the stages cannot be shared so.
    """
    each = [*map(list, generalized(stages, microbatches, workers, workers))]
    mine = stages // workers
    count = mine // 2 if offloaded_stages is None else offloaded_stages
    if not 0 <= count <= mine:
        raise ScheduleError(f"offloaded_stages must be from 0 to a worker's {mine}, not {count}")
    first = count * workers
    return flushed("PipeOffload", (offloaded(passes, _away(passes, first)) for passes in each))


def _away(passes: Sequence[Pass], stages: int) -> dict[Place, int]:
    """Return what of the first stages goes to the host, and behind which pass it comes back."""
    forwards = {(stage, k): n for n, (op, stage, k) in enumerate(passes) if op is Op.FORWARD}
    backwards = [n for n, (op, *_) in enumerate(passes) if op is Op.BACKWARD]
    loads: dict[Place, int] = {}
    for before, n in zip(backwards, backwards[2:], strict=False):
        _, stage, k = passes[n]
        if stage < stages and before - forwards[stage, k] > 2:
            loads[stage, k] = before
    return loads


def offloaded(
    passes: Sequence[Pass], loads: Mapping[Place, int], peer: int | None = None
) -> Iterator[Pass]:
    """Yield a worker's passes, and between them transfers: away behind a forward, and back.

    Args:
        passes: of the worker.
        loads: behind which of them the activations of a stage and microbatch come back.
        peer: the worker that keeps them meanwhile; None: the host.
    """
    away, back = (OFFLOAD, LOAD) if peer is None else (OFFLOAD.to(peer), LOAD.to(peer))
    places = {n: place for place, n in loads.items()}
    for n, (op, stage, k) in enumerate(passes):
        yield op, stage, k
        if op is Op.FORWARD and (stage, k) in loads:
            yield away, stage, k
        if n in places:
            yield back, *places[n]
