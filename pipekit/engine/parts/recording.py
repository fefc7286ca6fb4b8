"""The record of a worker, and its news during the run."""

from pipekit.devices import peak_bytes, reset_peak_bytes
from pipekit.engine.observers.memory_tracker import MemoryTracker
from pipekit.engine.observers.record import TraceRecorder, TrafficCounter, WorkerRecord
from pipekit.engine.observers.reporter import Listener, Reporter
from pipekit.engine.parts.part import WorkerRun


class Recording:
    """Watches the worker: events, traffic, memory and, on the last stage, losses and updates."""

    def __init__(self, run: WorkerRun, on_news: Listener | None) -> None:
        watch, self._device = run.config.watch, run.device
        self.traffic = TrafficCounter()
        self._trace = TraceRecorder() if watch.trace else None
        self._memory = MemoryTracker(run.recompute) if watch.memory else None
        run.observers += [each for each in (self._trace, self.traffic, self._memory) if each]
        if on_news and len(run.config.stage_workers) - 1 in run.trained:
            held = self._memory.held_bytes if self._memory else lambda: None
            run.observers.append(Reporter(on_news, run.config, held))
        if self._memory:
            reset_peak_bytes(self._device)

    def record(self) -> WorkerRecord:
        """Return the record."""
        return WorkerRecord(
            self._trace.events() if self._trace else [],
            self._memory.samples if self._memory else [],
            peak_bytes(self._device) if self._memory else None,
        )
