"""What happened, or would happen: one table of events, from schedules, simulation and engine."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipekit.schedules import Op, Schedule
from pipekit.schedules.clock import PAPER_SLOTS
from pipekit.schedules.dependencies import NOTHING
from pipekit.schedules.ops import PASSES
from pipekit.schedules.replay import slots
from pipekit.traces import perfetto
from pipekit.traces.breakdown import breakdown, bubbles
from pipekit.traces.event_graph import EventGraph, event_graph
from pipekit.traces.gaps import GAPS, ROWS, gaps
from pipekit.traces.record import COLUMNS, TraceRecord, events_of, moved, tasks_of
from pipekit.units import plural


@dataclass(frozen=True)
class Trace(TraceRecord):
    """A table of events and what its numbers are.

    Attributes:
        frame: a row an event, sorted by worker and start: worker, stage, op (the name of a
            :class:`pipekit.schedules.Op`, or RECOMPUTE), microbatch, version, start_s, end_s (in
            ``unit``, from the first task's start) and the bytes that it sent to other workers.
        label: what the times are: measured, emulated, simulated or exact.
        name: what ran, for titles.
        workers: how many workers, idle ones counted.
        unit: "s", or "slots" for a schedule that was only drawn.
        transfers: a row a message, if they were followed, and one a task that moves data: source
            and destination (workers; of a move from or to the host its own), purpose ("activation",
            "gradient", "weights", or the op's name: "offload"), the stage that made it, microbatch,
            start_s and end_s on the link, bytes.  An all-reduce has a row for each of its workers.
        memory: bytes over time, if they were followed.
        origin_ns: the Unix time of 0, in nanoseconds; None if nothing ran.
        other: recorded operations that are not tasks (:func:`pipekit.read_trace`), a row each:
            worker, replica, stage, step, kind (its name), microbatch (-1: none), start_s, end_s,
            moves (whether it communicates) and group (those of one number end together; -1: alone).
            "send activation" and its like are the two ends of a message.
        steps: the recorded training steps, a row each: step, start_s, end_s; with them ``frame``
            has a column ``step``, and a column ``replica`` if several pipelines train together.
        notes: what reading a file left out or estimated, in sentences.
        chunks: parts of a sequence that each microbatch consists of; ``microbatch`` counts them.
    """

    def __repr__(self) -> str:
        events = f"{plural(self.workers, 'worker')}, {plural(len(self.frame), 'event')}"
        return f"<Trace {self.name}: {events}, {self.makespan_s:.4g} {self.unit} ({self.label})>"

    @classmethod
    def from_schedule(
        cls,
        schedule: Schedule,
        durations: Mapping[Op, float] = PAPER_SLOTS,
        overlap: float | None = None,
        batches: int | None = None,
    ) -> "Trace":
        """Return the events of a schedule in time slots, as the papers draw it.

        Args:
            schedule: finite, or without end.
            durations: slots of each op; by default a whole backward takes two, and an update none.
            overlap: of tasks that run together; see :func:`pipekit.schedules.slots`.
            batches: how many; None: as many as fill the pipeline (:meth:`Schedule.excerpt`).

        Raises:
            ScheduleError: the workers would wait for one another for ever.
        """
        schedule = schedule.excerpt(batches)
        graph = schedule.dependencies
        times = np.concatenate([np.empty((0, 2)), *slots(schedule, durations, overlap)])
        beside = moved(
            (worker, task, *when, 0.0)
            for worker, task, when in zip(graph.worker_of, graph.tasks, times.tolist(), strict=True)
        )
        return cls(
            events_of(schedule, *times.T).reset_index(drop=True),
            "exact",
            schedule.name,
            schedule.worker_count,
            "slots",
            transfers=None if beside.empty else beside,
            chunks=schedule.chunks,
        )

    @property
    def makespan_s(self) -> float:
        """Time from the first task's start to the last one's end, in ``unit``; a gather's, too."""
        begin, end = self.span_s
        return end - begin

    @cached_property
    def span_s(self) -> tuple[float, float]:
        """When the first task begins, and when the last one ends, in ``unit``."""
        if self.frame.empty:
            return 0.0, 0.0
        beside = tasks_of(self.transfers)
        rows = [self.frame, beside] if len(beside) else [self.frame]
        begin = min(each["start_s"].min() for each in rows)
        return float(begin), float(max(each["end_s"].max() for each in rows))

    @property
    def bubble(self) -> float:
        """The share of all workers' time in which they compute nothing; see also :meth:`bubbles`.

        For GPipe in equal slots it is (K-1)/(T+K-1) (GPipe, section 3.2).
        """
        total = self.makespan_s * self.workers
        busy = float((self.frame["end_s"] - self.frame["start_s"]).sum())
        return 1.0 - busy / total if total else 0.0

    @property
    def passes(self) -> pd.DataFrame:
        """The events that are forwards and backwards: no updates, nothing that is recomputed."""
        return self.frame[self.frame["op"].isin([op.name for op in PASSES])]

    @property
    def most_active(self) -> int:
        """The most workers that compute passes at the same time."""
        passes = self.passes
        begins = passes.assign(time=passes["start_s"], change=1)
        ends = passes.assign(time=passes["end_s"], change=-1)
        changes = pd.concat([begins, ends]).sort_values(["time", "change"])
        return int(changes["change"].cumsum().max())

    def ends(
        self, op: str, *, stage: int | None = None, worker: int | None = None, group: int = 1
    ) -> list[float]:
        """Return when the events of an op ended, in order, in ``unit``.

        Args:
            op: the name of a :class:`pipekit.schedules.Op`, or RECOMPUTE.
            stage: only its events.
            worker: only its events.
            group: so many consecutive microbatches, say those of a batch, end with their last one.
        """
        events = self.frame[self.frame["op"] == op]
        for column, number in ("stage", stage), ("worker", worker):
            if number is not None:
                events = events[events[column] == number]
        return sorted(events["end_s"].groupby(events["microbatch"] // group).max())

    def bubbles(self) -> pd.DataFrame:
        """Return the three shares of time in which workers compute nothing, each between 0 and 1.

        - ``makespan``: of the time from the run's first task to its last (:attr:`bubble`), which
          is what a single batch costs;
        - ``span``: of the time from a worker's own first event to its own last, which is what the
          zero-bubble papers count;
        - ``steady``: of the time from the end of a worker's first update to the end of its last
          one before its last forward: what remains in the long run.

        Returns:
            A row a worker (0, 1, ...) and a row "all", a column each; NaN where there is no such
            time: a steady period needs two updates with a forward after them.
        """
        self._require_one_run()
        return bubbles(self.frame, self.workers, self.makespan_s)

    def breakdown(self) -> pd.DataFrame:
        """Return what all workers' time went into, in percent, as in GPipe's Figure 4.

        Seconds that a worker computes are counted as they are: ``computation`` (forwards and
        backwards), ``recompute`` and ``update``.  Idle seconds are sorted by what removes them:
        events are replayed in their order, each as soon as its worker is free and its data
        computed, with one cause less each time; what the run gets shorter by is lost to that cause:

        - ``communication``: tasks no longer wait for messages, or sums, that are computed;
        - ``other``: nor does any other task begin late (set-up, the engine's own time), and all
          of a worker's events of one stage and op take their mean time;
        - ``imbalance``: the workers that have an op take equally long for all of it together;
        - ``bubble``: the rest, what the table leaves idle with balanced stages.  For GPipe that is
          (K-1)/(T+K-1) (GPipe, section 3.2), if nothing is recomputed early and updates take no
          time.  Where balance would not make the run shorter, all of this is bubble.

        ``imbalance`` and ``bubble`` are split among the workers in proportion to their idle time,
        since a wait may be any stage's doing.

        Returns:
            A row a worker (0, 1, ...) and a row "all", a column a category; each row sums to 100.

        Raises:
            ValueError: no event takes any time.
            ScheduleError: the events cannot be a run's: say, some were left out.
        """
        if not self.makespan_s:
            raise ValueError("no time can be split: no event of the trace takes any")
        return breakdown(self._graph, self.workers, self.span_s)

    def gaps(self) -> pd.DataFrame:
        """Return when each worker computes nothing, and why: a row a gap.

        A gap before a worker's first event is ``warm-up``, one after its last ``drain``.  Another
        gap lasts until what the next event needs is computed, and is named by that: an
        ``activation``, a ``gradient``, or the passes that an update sums (``sum``).  What is left
        until the event begins is a ``transfer`` if that comes from another worker or by a task
        beside it (for an update still the ``sum``), and ``other`` if the worker had all that it
        needs.  An update that no stage makes before all have computed their gradients (clipped,
        scaled or shared ones) waits for these: a ``global stop``.

        Returns:
            Columns: worker; start_s, end_s (in ``unit``); cause (a value of
            :class:`pipekit.traces.Cause`); waits_for, the event waited for ("F3 of stage 1", or
            "") and waits_for_worker, its worker (or -1); before, the event behind the gap; the rows
            of both in ``frame`` (waits_for_row, before_row; -1 where there is none).

        Raises:
            ScheduleError: the events cannot be a run's: say, some were left out.
        """
        if self.frame.empty:
            return pd.DataFrame(columns=[*GAPS, *ROWS])
        return gaps(self._graph, tasks_of(self.transfers), self.workers, self.span_s)

    def waited_for(self) -> NDArray[np.int32]:
        """Return what each event waited for, as rows of ``frame``: why it did not begin sooner.

        That is what ended last of its worker's event before it and those whose output it needs; -1
        where there is none.  ScheduleError: as for :meth:`gaps`.
        """
        return np.array(self._graph.latest if len(self.frame) else [], np.int32)

    def critical_path(self) -> pd.DataFrame:
        """Return the events that the makespan hangs on, from the run's beginning to its end.

        Before each event stands the one that it waited for (:meth:`waited_for`).  The columns are
        those of ``frame``, and waited_s: how long after that one's end it began, in ``unit``.
        """
        if self.frame.empty:
            return self.frame.assign(waited_s=[])
        waited, path = self.waited_for(), [int(self.frame["end_s"].to_numpy().argmax())]
        while (before := waited[path[-1]]) != NOTHING:
            path.append(int(before))
        rows = self.frame[COLUMNS].iloc[path[::-1]].reset_index(drop=True)
        since = rows["end_s"].shift(fill_value=self.span_s[0])
        return rows.assign(waited_s=(rows["start_s"] - since).clip(lower=0.0))

    @cached_property
    def _graph(self) -> EventGraph:
        self._require_one_run()
        return event_graph(self.frame)

    def _require_one_run(self) -> None:
        """Raise ValueError if others recorded the events, in steps without weight versions."""
        if self.steps is not None:
            raise ValueError(
                f"{self.name} has {len(self.steps)} recorded steps without weight versions, which "
                f"this needs: ask pk.explain(trace), whose timeline() is a trace of one step"
            )

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write the events as CSV."""
        self.frame.to_csv(path, index=False)

    def to_perfetto(
        self,
        path: str | os.PathLike[str],
        *,
        provenance: dict[str, Any] | None = None,
        torch_profiles: Sequence[str | os.PathLike[str]] = (),
    ) -> None:
        """Write the trace as Chrome's trace events, for Perfetto (ui.perfetto.dev) and others.

        Every worker is a process, with a thread that computes and, if messages were followed,
        threads that send and receive, with an arrow for each message.  Times are microseconds from
        the first task; a slot of a drawn schedule is a second.  Files of ``torch.profiler`` can be
        laid over a run's trace over threads (docs/cost.md).

        Args:
            path: a .json file; its folder is made if it is missing.
            provenance: a JSON-able record to keep in the file, say ``run.provenance``.
            torch_profiles: files of torch.profiler, one of each process that was profiled.

        Raises:
            ValueError: a number is not finite; a profile is none, or this trace is not a run's; or
                others recorded it.
        """
        self._require_one_run()
        perfetto.write(self, path, provenance, torch_profiles)

    @classmethod
    def from_perfetto(cls, path: str | os.PathLike[str]) -> "Trace":
        """Read back what :meth:`to_perfetto` wrote; the events of other profilers are left out.

        Raises:
            ValueError: the file is no such trace; the message names the row.
            OSError: there is no such file, or it cannot be opened.
        """
        return cls(**vars(perfetto.read(path)))
