"""Two tasks of a worker as one: they begin with the data of both, and give theirs at their end.

So an emulated forward runs under a backward (DeepSeek-V3 Technical Report, section 3.2.1).
"""

from collections import deque
from collections.abc import Mapping

from pipekit.engine.transport import Transport
from pipekit.schedules import Message, Step, Task
from pipekit.trees import Tree


class OverlappedTransport:
    """A worker's transport, which has pairs of steps receive and send as one.

    Args:
        transport: to the other workers.
        second: of each pair, the second step by the first one's task.
    """

    def __init__(self, transport: Transport, second: Mapping[Task, Step]) -> None:
        self._transport, self._second = transport, second
        self.require_peers, self.finish = transport.require_peers, transport.finish
        self.begin_all_reduce, self.channel = transport.begin_all_reduce, transport.channel
        self._ends = {step.task for step in second.values()}
        self._here: dict[Message, Tree] = {}
        self._held: deque[tuple[Message, int, Tree]] = deque()
        self._holding = False

    def begin(self, step: Step) -> None:
        """Make ready for a step: the first of a pair waits for what the second one needs, too."""
        self._holding = step.task in self._second
        if self._holding:
            for message, source in self._second[step.task].receives:
                self._here[message] = self._transport.receive(message, source)

    def end(self, step: Step) -> None:
        """Send what the first step of a pair has given, if this is the second one."""
        if step.task in self._ends:
            self._send_held()

    def receive(self, message: Message, source: int) -> Tree:
        """Wait for the content of a message."""
        if message in self._here:
            return self._here.pop(message)
        return self._transport.receive(message, source)

    def send(self, message: Message, destination: int, content: Tree) -> None:
        """Send the content of a message; that of a pair's first step, with the second one's."""
        if self._holding:
            self._held.append((message, destination, content))
            return
        self._send_held()
        self._transport.send(message, destination, content)

    def _send_held(self) -> None:
        while self._held:
            self._transport.send(*self._held.popleft())
