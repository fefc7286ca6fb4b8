"""Schedules that were drawn by hand."""

from collections.abc import Iterator

from pipekit.schedules import Schedule, Task, parse
from pipekit.schedules.replay import Replay

SPLIT_PICTURE = """\
# split backward
time     | 1   2   3   4   5   6   7   8   9   10  11  12  13  14  15  16  17  18  19  20  21  22  23  24  25  26  27  28
worker 0 | F0  F1  F2  .   .   I0  F3  I1  W0  I2  W1  W2  I3  W3^ F4  F5  F6  .   .   I4  F7  I5  W4  I6  W5  W6  I7  W7^
worker 1 | .   F0  F1  .   I0  F2  I1  F3  I2  W0  W1  I3  W2  W3^ .   F4  F5  .   I4  F6  I5  F7  I6  W4  W5  I7  W6  W7^
worker 2 | .   .   F0  I0  F1  I1  F2  I2  W0  F3  I3  W1  W2  W3^ .   .   F4  I4  F5  I5  F6  I6  W4  F7  I7  W5  W6  W7^"""
"""Three stages, two batches of four microbatches, a flush after each.  As in ZB-H1 (Qi et al.,
"Zero Bubble Pipeline Parallelism", ICLR 2024) the parts for the weights fill what would be idle: of
a batch's 14 slots each worker is idle for 2, where whole backwards leave 6 of 18."""

SPLIT = parse(SPLIT_PICTURE)

LATE_UPDATE = parse("worker 0 | F0 F0@1 B0@1 B0^ F1 F1@1 ^0@1 B1@1:0 B1^ ^1@1")
"""Two stages on a worker, of which the second makes its update after the next forward."""


def replay(schedule: Schedule) -> Iterator[tuple[int, int, Task]]:
    """Yield ``(worker, position, task)`` in an order in which the tasks can run."""
    graph = schedule.dependencies
    for number in Replay(graph).order():
        worker = graph.worker_of[number]
        yield worker, number - graph.first[worker], graph.tasks[number]
