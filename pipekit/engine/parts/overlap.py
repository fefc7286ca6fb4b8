"""Two tasks of a worker as one, which begins with the data of both and sends at the end of both.

So an emulated forward runs under a backward (DeepSeek-V3 Technical Report, section 3.2.1).
"""

from collections import deque

from pipekit.engine.execution.executor import Executor
from pipekit.engine.execution.update_synchronizer import UpdateSynchronizer
from pipekit.engine.parts.part import Execute, Part, WorkerRun
from pipekit.schedules import Message, Step
from pipekit.trees import Tree


class Overlap(Part):
    """Wraps the transport, so that pairs of steps receive and send as one, and every step."""

    def __init__(self, run: WorkerRun) -> None:
        self._transport, self._second = run.transport, run.together
        self.require_peers, self.finish = self._transport.require_peers, self._transport.finish
        self.begin_all_reduce = self._transport.begin_all_reduce
        self.channel = self._transport.channel
        self._last_of_pairs = {step.task for step in self._second.values()}
        self._here: dict[Message, Tree] = {}
        self._held: deque[tuple[Message, int, Tree]] = deque()
        self._holding = False
        run.transport = self

    def around(self, execute: Execute, executor: Executor, updates: UpdateSynchronizer) -> Execute:
        def run(step: Step) -> None:
            self._holding = step.task in self._second
            if self._holding:
                for message, source in self._second[step.task].receives:
                    self._here[message] = self._transport.receive(message, source)
            execute(step)
            if step.task in self._last_of_pairs:
                self._send_held()

        return run

    def receive(self, message: Message, source: int) -> Tree:
        """Wait for the content of a message."""
        if message in self._here:
            return self._here.pop(message)
        return self._transport.receive(message, source)

    def send(self, message: Message, destination: int, content: Tree) -> None:
        """Send the content of a message; that of a pair's first step goes with the second's."""
        if self._holding:
            self._held.append((message, destination, content))
            return
        self._send_held()
        self._transport.send(message, destination, content)

    def _send_held(self) -> None:
        while self._held:
            self._transport.send(*self._held.popleft())
