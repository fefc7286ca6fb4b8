"""What the papers' timelines have in common: how they are drawn, and what is asked of them."""

from collections.abc import Iterator, Mapping, Sequence

import pandas as pd
import plotly.graph_objects as go

from pipekit.plots import compare
from pipekit.schedules import Op, Schedule, Task
from pipekit.traces import Trace
from pipekit.traces.memory import Memory

EQUAL_SLOTS: Mapping[Op, float] = {Op.FORWARD: 1, Op.BACKWARD: 1, Op.UPDATE: 0}
"""Both passes take one time unit, as in PipeDream's Figures 3 and 8."""


def as_drawn(stages: int, microbatches: int, batches: int = 1) -> Schedule:
    """Return GPipe's schedule with the backwards from the last microbatch to the first.

    So Figure 2c draws it.  :func:`gpipe` runs them from the first to the last,
    which idles no less.
    """

    def worker(stage: int) -> Iterator[Task]:
        for t in range(batches):
            batch = range(t * microbatches, (t + 1) * microbatches)
            yield from (Task(Op.FORWARD, stage, k, t) for k in batch)
            yield from (Task(Op.BACKWARD, stage, k, t) for k in reversed(batch))
            yield Task(Op.UPDATE, stage, batch[-1], t + 1)

    return Schedule(tuple(tuple(worker(s)) for s in range(stages)), "GPipe as drawn")


def passes_of(trace: Trace) -> pd.DataFrame:
    """Return the forwards and backwards of a trace."""
    return trace.frame[trace.frame["op"].isin(["FORWARD", "BACKWARD"])]


def starts(trace: Trace) -> dict[tuple[str, int, int], float]:
    """Return when each pass begins, by (op, stage, minibatch), all as the trace counts."""
    passes = passes_of(trace)
    keys = zip(passes["op"], passes["stage"], passes["microbatch"], strict=True)
    return dict(zip(keys, passes["start_s"].tolist(), strict=True))


def busy_s(events: pd.DataFrame, start: float, end: float) -> float:
    """Return how much of some events' time lies between two times, in the trace's unit."""
    clipped = events["end_s"].clip(start, end) - events["start_s"].clip(start, end)
    return float(clipped.sum())


def memory_of(trace: Trace) -> Memory:
    """Return what lay in the workers' memory, for a trace that has followed it.

    Simulated traces always have; a training's has with ``memory=True``.

    Raises:
        ValueError: it has not.
    """
    if trace.memory is None:
        raise ValueError(f"the memory of {trace.name} was not followed: train with memory=True")
    return trace.memory


def most_active(trace: Trace) -> int:
    """Return the most workers that compute at the same time."""
    passes = passes_of(trace)
    begins = passes.assign(time=passes["start_s"], change=1)
    ends = passes.assign(time=passes["end_s"], change=-1)
    changes = pd.concat([begins, ends]).sort_values(["time", "change"])
    return int(changes["change"].cumsum().max())


def rows_figure(traces: Sequence[Trace], titles: Sequence[str], rows: Sequence[str]) -> go.Figure:
    """Draw traces whose rows are not workers, one under another.

    Args:
        traces: what to draw.
        titles: of each, to which its label is added.
        rows: what each row is, from the top; the same for all traces.
    """
    figure = compare(*traces)
    for trace, title, note in zip(traces, titles, figure.layout.annotations, strict=True):
        note.text = f"{title} ({trace.label})"
    figure.update_yaxes(tickvals=list(range(len(rows))), ticktext=list(rows))
    return figure
