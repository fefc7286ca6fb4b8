"""Random schedules for hypothesis: every method, and what a slip of the pen makes of one."""

from collections.abc import Callable
from dataclasses import replace

from hypothesis import strategies as st

from pipekit import schedules
from pipekit.schedules import OPS, Op, Schedule, Task
from pipekit.schedules.ops import PASSES

Lists = list[list[Task]]
Slip = Callable[[st.DataObject, Lists], None]

small = st.integers(1, 4)
stages = st.integers(1, 6)
microbatches = st.integers(1, 8)


@st.composite
def with_split_backwards(
    draw: st.DrawFn, methods: st.SearchStrategy[Schedule], apart: bool = True
) -> Schedule:
    """Draw a method of whose backwards some are in two parts.

    Args:
        draw: what hypothesis passes.
        methods: those to choose from.
        apart: whether the part for the weights may come later than right after the other one, up to
            the update that sums it.
    """
    schedule = draw(methods)
    lists: Lists = []
    for tasks in schedule.workers:
        mine: list[Task] = []
        waiting: list[Task] = []
        for task in tasks:
            if task.op is Op.BACKWARD and draw(st.booleans()):
                mine.append(task._replace(op=Op.BACKWARD_INPUT))
                waiting.append(task._replace(op=Op.BACKWARD_WEIGHT))
            else:
                if task.op is Op.UPDATE:
                    mine += (w for w in waiting if w.stage == task.stage)
                    waiting = [w for w in waiting if w.stage != task.stage]
                mine.append(task)
            if not apart or draw(st.booleans()):
                mine += waiting
                waiting = []
        lists.append(mine + waiting)
    return replace(schedule, head=tuple(map(tuple, lists)))


def taken(
    method: st.SearchStrategy[Schedule], batches: st.SearchStrategy[int]
) -> st.SearchStrategy[Schedule]:
    """Draw the first batches of a method."""
    return st.builds(Schedule.take, method, batches)


minibatches = st.integers(1, 12)
_more = st.integers(0, 4)
_whole: st.SearchStrategy[Schedule] = st.one_of(
    taken(st.builds(schedules.gpipe, stages, microbatches), small),
    taken(st.builds(schedules.flush, stages, microbatches), small),
    taken(st.builds(schedules.pipedream, stages), minibatches),
    taken(st.builds(schedules.pipedream, stages, vertical_sync=st.just(True)), minibatches),
    taken(st.builds(lambda d, more: schedules.two_bw(d, d + more), stages, _more), small),
    taken(st.builds(schedules.model_parallel, stages), microbatches),
)
stashing_methods: st.SearchStrategy[Schedule] = st.one_of(_whole, with_split_backwards(_whole))
_naive = taken(st.builds(schedules.pipedream, stages, stashing=st.just(False)), minibatches)
training_methods: st.SearchStrategy[Schedule] = st.one_of(
    stashing_methods, _naive, with_split_backwards(_naive, apart=False)
)
methods: st.SearchStrategy[Schedule] = st.one_of(
    training_methods, taken(st.builds(schedules.inference, stages), microbatches)
)

_replicas = st.lists(st.integers(1, 3), min_size=1, max_size=3)
_in_flight = st.lists(st.tuples(st.integers(1, 2), st.integers(1, 4)), min_size=1, max_size=3)
_one_pipeline: st.SearchStrategy[Schedule] = st.one_of(
    st.builds(schedules.flush, stages, microbatches),
    st.builds(schedules.zb_h2, small, microbatches),
    st.builds(lambda p, m: schedules.interleaved(2 * p, m, workers=p), small, microbatches),
    st.builds(schedules.paci, small, small),
    st.builds(
        lambda d, more, flushes: schedules.two_bw(d, d + more, flushes),
        small,
        _more,
        st.lists(st.integers(0, 3), max_size=2),
    ),
    st.builds(schedules.pipedream, small, vertical_sync=st.booleans()),
)
endless_methods: st.SearchStrategy[Schedule] = st.one_of(
    _one_pipeline,
    st.builds(schedules.pipedream, _replicas, vertical_sync=st.booleans()),
    st.builds(schedules.pipedream, _replicas, stashing=st.just(False)),
    st.builds(lambda n, more: schedules.asp(n, n - 1 + more), small, _more),
    st.builds(lambda p, m: schedules.chimera(2 * p, m), st.integers(1, 2), microbatches),
    st.builds(schedules.replicate, _one_pipeline, st.integers(2, 3)),
    st.builds(schedules.inference, small),
    st.builds(Schedule.repeat, stashing_methods),
)
"""Schedules without end."""
any_in_flight: st.SearchStrategy[Schedule] = st.builds(
    lambda each, vertical_sync: schedules.pipedream(
        [width for width, _ in each],
        vertical_sync=vertical_sync,
        in_flight=[count for _, count in each],
    ),
    _in_flight,
    st.booleans(),
)
"""PipeDream with any minibatches in flight, of which some wait for ever."""


def drop(data: st.DataObject, lists: Lists) -> None:
    worker, position = _pick(data, lists)
    del lists[worker][position]


def duplicate(data: st.DataObject, lists: Lists) -> None:
    worker, position = _pick(data, lists)
    other = data.draw(st.integers(0, len(lists) - 1))
    lists[other].insert(data.draw(st.integers(0, len(lists[other]))), lists[worker][position])


def swap(data: st.DataObject, lists: Lists) -> None:
    worker, one = _pick(data, lists)
    other = data.draw(st.integers(0, len(lists[worker]) - 1))
    tasks = lists[worker]
    tasks[one], tasks[other] = tasks[other], tasks[one]


def move(data: st.DataObject, lists: Lists) -> None:
    worker, position = _pick(data, lists)
    task = lists[worker].pop(position)
    lists[worker].insert(data.draw(st.integers(0, len(lists[worker]))), task)


def move_update(data: st.DataObject, lists: Lists) -> None:
    worker = data.draw(st.integers(0, len(lists) - 1))
    updates = [i for i, task in enumerate(lists[worker]) if task.op is Op.UPDATE]
    task = lists[worker].pop(data.draw(st.sampled_from(updates)))
    lists[worker].insert(data.draw(st.integers(0, len(lists[worker]))), task)


def change(data: st.DataObject, lists: Lists) -> None:
    worker, position = _pick(data, lists)
    task = lists[worker][position]
    number = data.draw(st.integers(-1, 13))
    lists[worker][position] = data.draw(
        st.sampled_from(
            [
                task._replace(op=data.draw(st.sampled_from(OPS[:5]))),
                task._replace(stage=number),
                task._replace(microbatch=number),
                task._replace(version=number),
            ]
        )
    )


def shuffle(data: st.DataObject, lists: Lists) -> None:
    worker = data.draw(st.integers(0, len(lists) - 1))
    lists[worker] = data.draw(st.permutations(lists[worker]))


def permute_microbatches(data: st.DataObject, lists: Lists) -> None:
    """Give one worker's passes of one op another order; versions stay in their places."""
    worker = data.draw(st.integers(0, len(lists) - 1))
    op = data.draw(st.sampled_from(PASSES))
    places = [i for i, task in enumerate(lists[worker]) if task.op is op]
    order = data.draw(st.permutations([lists[worker][i].microbatch for i in places]))
    for place, k in zip(places, order, strict=True):
        lists[worker][place] = lists[worker][place]._replace(microbatch=k)


def empty_a_worker(data: st.DataObject, lists: Lists) -> None:
    lists[data.draw(st.integers(0, len(lists) - 1))].clear()


SLIPS: list[Slip] = [
    drop,
    duplicate,
    swap,
    move,
    move_update,
    change,
    shuffle,
    permute_microbatches,
    empty_a_worker,
]


def slipped(data: st.DataObject, schedule: Schedule, slip: Slip) -> Schedule:
    """Return a schedule after one slip."""
    lists = [list(tasks) for tasks in schedule.workers]
    slip(data, lists)
    return replace(schedule, head=tuple(map(tuple, lists)))


def _pick(data: st.DataObject, lists: Lists) -> tuple[int, int]:
    return data.draw(
        st.sampled_from([(w, i) for w, tasks in enumerate(lists) for i in range(len(tasks))])
    )
