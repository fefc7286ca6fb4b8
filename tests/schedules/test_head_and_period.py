"""What methods that never flush run first, and what they repeat: ``F4:2`` reads version 2, and
``^3:2`` makes it of the microbatches up to 3.  Behind the bar is the period.
"""

from collections.abc import Sequence
from inspect import cleandoc

import pytest

from pipekit.schedules import Op, Schedule, Task, asp, paci, pipedream, replicate, two_bw

PICTURES: list[tuple[Schedule, str]] = [
    (
        pipedream(3),
        """
        F0:0 F1:0 F2:0 B0:0 ^0:1 F3:1 B1:0 ^1:2 | F4:2 B2:0 ^2:3
        F0:0 F1:0 B0:0 ^0:1                     | F2:1 B1:0 ^1:2
                                                | F0:0 B0:0 ^0:1
        """,
    ),
    (
        pipedream(3, stashing=False),
        """
        F0:0 F1:0 | F2:0 B0:0 ^0:1
        F0:0      | F1:0 B0:0 ^0:1
                  | F0:0 B0:0 ^0:1
        """,
    ),
    (
        pipedream(3, vertical_sync=True),
        """
        F0:0 F1:0 F2:0 B0:0 ^0:1 F3:1 B1:0 ^1:2 | F4:2 B2:0 ^2:3
        F0:0 F1:0 B0:0 ^0:1 F2:0 B1:0 ^1:2      | F3:1 B2:0 ^2:3
        F0:0 B0:0 ^0:1 F1:0 B1:0 ^1:2           | F2:0 B2:0 ^2:3
        """,
    ),
    (
        pipedream(2, in_flight=[3, 1]),
        """
        F0:0 F1:0 F2:0 B0:0 ^0:1 F3:1 B1:0 ^1:2 | F4:2 B2:0 ^2:3
                                                | F0:0 B0:0 ^0:1
        """,
    ),
    (
        pipedream([2, 1]),
        """
        F0:0 F2:0 B0:0 ^1:1 | F4:1 B2:0 ^3:2
        F1:0 F3:0 B1:0 ^1:1 | F5:1 B3:0 ^3:2
                            | F0:0 B0:0 ^0:1 F1:1 B1:1 ^1:2
        """,
    ),
    (
        pipedream([1, 2]),
        """
        F0:0 F1:0 F2:0 B0:0 ^0:1 F3:1 B1:0 ^1:2 | F4:2 B2:0 ^2:3 F5:3 B3:1 ^3:4
                                                | F0:0 B0:0 ^1:1
                                                | F1:0 B1:0 ^1:1
        """,
    ),
    (
        two_bw(2, 2),
        """
        F0:0 F1:0 B0:0 F2:0 B1:0 ^1:1 | F3:0 B2:0 F4:1 B3:0 ^3:2
        F0:0 B0:0 F1:0 B1:0 ^1:1      | F2:0 B2:0 F3:0 B3:0 ^3:2
        """,
    ),
    (
        two_bw(2, 2, flush_after=[0]),
        """
        F0:0 F1:0 B0:0 B1:0 ^1:1 F2:1 F3:1 B2:1 F4:1 B3:1 ^3:2 | F5:1 B4:1 F6:2 B5:1 ^5:3
        F0:0 B0:0 F1:0 B1:0 ^1:1 F2:1 B2:1 F3:1 B3:1 ^3:2      | F4:1 B4:1 F5:1 B5:1 ^5:3
        """,
    ),
    (
        paci(2, 2),
        """
        F0:0 | F1:0 B0:0 F2:0 B1:0 ^1:1
             | F0:0 B0:0 F1:0 B1:0 ^1:1
        """,
    ),
    (
        asp(2),
        """
        F0:0 B0:0 ^0:1 F2:1 B2:1      | ^1:2 ^2:3 F4:3 B4:3
        F1:0 B1:0 ^0:1 ^1:2 F3:2 B3:2 | ^2:3 ^3:4 F5:4 B5:4
        """,
    ),
    (
        # Updates come a batch later, right before whoever reads them.
        replicate(two_bw(1, 2), 2),
        """
        F0:0 B0:0 F2:0 B2:0 | F4:0 B4:0 F6:0 B6:0 ^3:1
        F1:0 B1:0 F3:0 B3:0 | F5:0 B5:0 F7:0 B7:0 ^3:1
        """,
    ),
]


def drawn(tasks: Sequence[Task]) -> list[str]:
    return [f"{'^' if op is Op.UPDATE else op.letter}{k}:{version}" for op, _, k, version in tasks]


@pytest.mark.parametrize(("schedule", "picture"), PICTURES, ids=str)
def test_the_head_and_the_period(schedule: Schedule, picture: str) -> None:
    wanted = [line.split("|") for line in cleandoc(picture).splitlines()]
    assert [drawn(tasks) for tasks in schedule.head] == [head.split() for head, _ in wanted]
    assert [drawn(tasks) for tasks in schedule.period] == [period.split() for _, period in wanted]
