"""A worker: one device, one list of steps, and the function that executes them."""

from collections.abc import Callable, Iterable, Sequence

from pipekit.engine.observers.observer import Observer, WorkerView, listeners
from pipekit.engine.transport import Aborted, BeyondStop, Transport
from pipekit.layers.pass_state import during, set_ends_batch
from pipekit.schedules import Step


class Worker:
    """Goes through a list of steps, with observers around each.

    It knows neither methods nor ops: the meaning of a step is its executor's.

    Args:
        view: the observers' view of it.
        execute: executes one step.
        transport: to the other workers.
        observers: watch it, in this order.
        conclude: is called after the last step, before the observers hear of the end; or None.
        survives: returns whether the other steps can go on after a step's error.
    """

    def __init__(
        self,
        view: WorkerView,
        execute: Callable[[Step], None],
        transport: Transport,
        observers: Sequence[Observer] = (),
        conclude: Callable[[], None] | None = None,
        survives: Callable[[Step, Exception], bool] = lambda step, error: False,
    ) -> None:
        self._view, self._execute, self._transport = view, execute, transport
        self._survives = survives
        self._observers, self._conclude = observers, conclude
        self._tell_before = listeners(observers, Observer.before_step, view.number)
        self._tell_after = listeners(observers, Observer.after_step, view.number)

    def run(self, steps: Iterable[Step]) -> None:
        """Execute every step between the observers' ``begin`` and ``end``.

        Raises:
            Exception: of a layer or the loss, with a note that names the task.
            Aborted: another worker failed.
        """
        try:
            for observer in self._observers:
                observer.begin(self._view)
            self.execute(steps)
            if self._conclude:
                self._conclude()
            for observer in self._observers:
                observer.end(self._view.number)
        finally:
            for observer in self._observers:
                observer.close(self._view.number)

    def execute(self, steps: Iterable[Step]) -> None:
        """Execute every step; raises as :meth:`run`."""
        with during():
            for step in steps:
                try:
                    self._transport.require_peers()
                    set_ends_batch(step.ends_batch)
                    for tell in self._tell_before:
                        tell(step)
                    self._execute(step)
                    for tell in self._tell_after:
                        tell(step)
                except Aborted:
                    raise
                except BeyondStop:  # before this step
                    continue
                except Exception as error:
                    error.add_note(f"(raised in {step.task})")
                    if not self._survives(step, error):
                        raise
