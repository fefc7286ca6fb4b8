"""Pipelines in opposite directions on the same workers: Chimera (SC '21), DeepSeek's DualPipe."""

from collections.abc import Iterator

from pipekit.schedules.methods.flushed import Turns, flushed, require_positive, v_stages, v_workers
from pipekit.schedules.ops import Op
from pipekit.schedules.schedule import Pass, Schedule
from pipekit.schedules.task import ScheduleError


def chimera(stages: int, microbatches: int) -> Schedule:
    """Return Chimera's schedule: two pipelines in opposite directions.

    Worker ``w`` of ``D`` has stage ``w`` of the pipeline that goes down and stage ``D - 1 - w`` of
    the one that goes up; every stage has two copies, whose gradients are summed (Chimera, SC '21,
    section 3.1, Figure 3).  A basic unit is ``D`` microbatches, of which the first half goes down.
    Microbatch ``i`` of a half goes forward on the ``s``-th worker of its way in slot ``2 i + s``
    and backward in slot ``2 (i + D) - 1 - s``, so that the two pipelines never want a worker at
    once.  Further units come ``2 D`` slots later each, in the slots that the one before leaves
    empty (section 3.5).  Each of the ``stages`` has a worker, each batch ``microbatches``.

    Raises:
        ScheduleError: a count is below 1, or the number of stages is odd.
    """
    require_positive(stages=stages, microbatches=microbatches)
    if stages % 2:
        raise ScheduleError(
            f"Chimera's two pipelines fit together with an even number of stages only, not "
            f"{stages}: use one stage more or less, or flush"
        )

    def slots(worker: int) -> Iterator[tuple[int, Pass]]:
        for start in range(0, microbatches, stages):
            unit = range(start, min(start + stages, microbatches))
            middle = (len(unit) + 1) // 2
            for half, stage in ((unit[:middle], worker), (unit[middle:], stages - 1 - worker)):
                for i, k in enumerate(half):
                    first = 2 * (start + i)
                    yield first + stage, (Op.FORWARD, stage, k)
                    yield first + 2 * stages - 1 - stage, (Op.BACKWARD, stage, k)

    by_slot = (sorted(slots(worker), key=lambda s: s[0]) for worker in range(stages))
    return flushed("Chimera", ([each for _, each in placed] for placed in by_slot))


def dualpipe(stages: int, microbatches: int) -> Schedule:
    """Return DualPipe's schedule: half of a batch goes down the workers, half up.

    Worker ``w`` of ``p`` has the stages ``w`` and ``p - 1 - w``, so that every stage has two
    copies, whose gradients are summed.  A worker and its mirror image do the same, in
    :func:`eight_phases` (DeepSeek-V3 Technical Report, section 3.2.1, Figure 5;
    github.com/deepseek-ai/DualPipe, dualpipe.py).  Overlaps are meant to hide the communication of
    one pass under the computing of the other.  There are as many workers as ``stages``, an even
    number, and ``microbatches`` in each batch, an even number of at least twice as many.

    Raises:
        ScheduleError: a count is below 1 or odd, or there are too few microbatches.
    """
    require_positive(stages=stages, microbatches=microbatches)
    if stages % 2:
        raise ScheduleError(
            f"DualPipe's ways meet between two workers: use an even number of stages, not {stages}"
        )
    if microbatches % 2 or microbatches < 2 * stages:
        raise ScheduleError(
            f"DualPipe sends half of the microbatches each way, at least one a stage: use an even "
            f"number from {2 * stages}, not {microbatches} (or chimera, which takes any number)"
        )
    half = microbatches // 2
    workers: list[list[Pass]] = []
    overlaps: list[tuple[Pass, Pass]] = []
    for worker in range(stages):
        is_mirrored = worker >= stages // 2
        distance = min(worker, stages - 1 - worker)
        turns = eight_phases(distance, stages // 2, half, distance, stages - 1 - distance)

        def placed(each: Pass, up: bool = is_mirrored, near: int = distance) -> Pass:
            """Return a pass with its microbatch of the batch: what comes near first began here."""
            op, stage, k = each
            return op, stage, k + half * (up != (stage != near))

        workers.append([placed(each) for each in turns.passes])
        overlaps += [(placed(one), placed(other)) for one, other in turns.overlaps]
    return flushed("DualPipe", workers, overlaps)


def dualpipe_v(stages: int, microbatches: int) -> Schedule:
    """Return DualPipeV's schedule: worker ``w`` of ``p`` has the stages ``w`` and ``2 p - 1 - w``.

    It goes through :func:`eight_phases` (dualpipev.py there; ``ScheduleDualPipeV`` of
    ``torch.distributed.pipelining``).  Each worker has two of the ``stages``, each batch at least
    as many ``microbatches`` as stages.

    Raises:
        ScheduleError: a count is below 1, the number of stages is odd, or there are too few
            microbatches.
    """
    workers = v_workers(stages, microbatches, "DualPipeV", "zb_h1")
    if microbatches < stages:
        raise ScheduleError(
            f"DualPipeV needs at least as many microbatches as stages: use microbatches >= "
            f"{stages}, not {microbatches} (or zb_v, which takes any number)"
        )
    each = [
        eight_phases(worker, workers, microbatches, *v_stages(worker, workers))
        for worker in range(workers)
    ]
    overlaps = [pair for turns in each for pair in turns.overlaps]
    return flushed("DualPipeV", [turns.passes for turns in each], overlaps)


def eight_phases(worker: int, workers: int, microbatches: int, near: int, far: int) -> Turns:
    """Return a worker's passes of a batch, in DualPipe's phases.

    Phase 4 is the steady one; each of its forwards runs together with a backward, as do those of
    phase 5.  Backwards are whole up to the middle of phase 6, but for phase 3.  A microbatch comes
    first to the ``near`` stage, ``worker`` stages from an end, or last to the ``far`` one.
    """
    turns, behind = Turns(), workers - 1 - worker
    for _ in range(2 * behind):  # 1: forwards of the near stage
        turns.add(Op.FORWARD, near)
    for _ in range(worker + 1):  # 2: forwards of both
        turns.add(Op.FORWARD, near, far)
    for _ in range(behind):  # 3: backwards and forwards of the far stage
        turns.add(Op.BACKWARD_INPUT, far)
        turns.add_weights()
        turns.add(Op.FORWARD, far)
    for number in range(microbatches - 2 * workers + worker + 1):  # 4: steady
        if number == 0 and not behind:  # apart, which makes the bubble smaller still
            turns.add(Op.FORWARD, near)
            turns.add(Op.BACKWARD, far)
        else:
            turns.add_overlap(near, far)
        turns.add_overlap(far, near)
    for _ in range(behind):  # 5: backwards of the far stage, and the rest of its forwards
        turns.add(Op.BACKWARD, far)
        turns.add_overlap(far, near)
    for number in range(2 * worker + 2):  # 6: backwards of both in turn, the later half in parts
        stage = near if number % 2 else far
        turns.add(Op.BACKWARD_INPUT if number > worker else Op.BACKWARD, stage)
    for _ in range(behind):  # 7: parts for the weights, and backwards of the near stage
        turns.add_weights()
        turns.add(Op.BACKWARD_INPUT, near)
    for _ in range(worker + 1):  # 8: the rest of the parts for the weights
        turns.add_weights()
    return turns
