"""What happened, or would happen: one table of events, from schedules, simulation and engine."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from pipekit.memory import Memory
from pipekit.schedules import Op, Schedule
from pipekit.schedules.slots import PAPER_SLOTS, slots

COLUMNS = ["worker", "stage", "op", "microbatch", "version", "start_s", "end_s", "bytes"]
TRANSFERS = ["source", "destination", "purpose", "stage", "microbatch", "start_s", "end_s", "bytes"]
RECOMPUTE = "RECOMPUTE"


@dataclass(frozen=True)
class Trace:
    """A table of events and what its numbers are.

    Attributes:
        frame: one row an event, sorted by worker and start: worker, stage, op (FORWARD, BACKWARD,
            UPDATE or RECOMPUTE), microbatch, version, start_s, end_s (in ``unit``, from the first
            event's start) and the bytes that it sent to other workers.
        label: what the times are: measured, emulated, simulated or exact.
        name: what ran, for titles.
        workers: how many workers, idle ones counted.
        unit: "s", or "slots" for a schedule that was only drawn.
        transfers: one row a message, if they were followed: source and destination (workers),
            purpose ("activation", "gradient" or "weights"), the stage that made it, microbatch,
            start_s and end_s on the link, bytes.  An all-reduce of weights' gradients has a row for
            each of its workers, with what that one sends.
        memory: bytes over time, if they were followed.
    """

    frame: pd.DataFrame
    label: str
    name: str
    workers: int
    unit: str = "s"
    transfers: pd.DataFrame | None = None
    memory: Memory | None = None

    @classmethod
    def from_schedule(
        cls, schedule: Schedule, durations: Mapping[Op, float] = PAPER_SLOTS
    ) -> "Trace":
        """Return the events of a schedule in time slots, as the papers draw it.

        Raises:
            ScheduleError: the workers would wait for one another for ever.
        """
        tasks = [(w, t) for w, tasks in enumerate(schedule.workers) for t in tasks]
        times = np.concatenate([np.empty((0, 2)), *slots(schedule, durations)])
        frame = pd.DataFrame(
            {
                "worker": [w for w, _ in tasks],
                "stage": [t.stage for _, t in tasks],
                "op": [t.op.name for _, t in tasks],
                "microbatch": [t.microbatch for _, t in tasks],
                "version": [t.version for _, t in tasks],
                "start_s": times[:, 0],
                "end_s": times[:, 1],
                "bytes": 0,
            }
        )
        return cls(frame, "exact", schedule.name, len(schedule.workers), "slots")

    @property
    def makespan_s(self) -> float:
        """Time from the first event's start to the last one's end, in ``unit``."""
        if self.frame.empty:
            return 0.0
        return float(self.frame["end_s"].max() - self.frame["start_s"].min())

    @property
    def bubble(self) -> float:
        """Fraction of all workers' time in which they compute nothing, waits and sends included.

        For GPipe in equal slots this is (K-1)/(T+K-1) (GPipe, section 3.2).
        """
        total = self.makespan_s * self.workers
        busy = float((self.frame["end_s"] - self.frame["start_s"]).sum())
        return 1.0 - busy / total if total else 0.0

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write the events as CSV."""
        self.frame.to_csv(path, index=False)
