"""How messages between workers behave: what a worker waits for, and what waits behind what."""

import math
import re
from dataclasses import dataclass

from pipekit.choices import require_choice

COMMUNICATORS = "worker", "pair", "direction"
_WRITTEN = re.compile(r"(rendezvous|eager)(?::(\d{1,9}))?$")


@dataclass(frozen=True)
class MessageChannel:
    """The semantics of a channel.

    Attributes:
        buffers: messages from one worker to another that may be under way before the first of them
            is received; 0: a send ends with its receive (rendezvous).
        waits: whether a worker goes on only when its transfers have ended, as after a blocking
            call.  Otherwise they run beside its tasks, and a task waits for what it needs.
        communicators: transfers of one communicator follow one another in the order of their
            calls, unless they are one group.  "direction": each direction of a pair of workers has
            its own; "pair": both directions share one, as in NCCL; "worker": all of a worker's
            transfers share one, as torch's ``batch_isend_irecv`` runs them.
        shapes_first: whether the shapes of each group's tensors are exchanged before them, by calls
            that wait, as Megatron's for sequences of variable length.
    """

    buffers: float = 0
    waits: bool = True
    communicators: str = "direction"
    shapes_first: bool = False

    def __post_init__(self) -> None:
        require_choice("communicators", self.communicators, COMMUNICATORS)
        if not self.buffers >= 0:
            raise ValueError(f"buffers must be at least 0, not {self.buffers}: 0 is a rendezvous")

    @classmethod
    def parse(
        cls,
        written: str,
        *,
        waits: bool = True,
        communicators: str = "direction",
        shapes_first: bool = False,
    ) -> "MessageChannel":
        """Return a channel by its words: "rendezvous", "eager" (without bound) or "eager:2".

        Raises:
            ValueError: they are none of these.
        """
        found = _WRITTEN.match(written)
        if not found or (found[1] == "rendezvous" and found[2]):
            raise ValueError(
                f"{written!r} is no channel: write rendezvous, eager, or eager:2 for two buffers"
            )
        buffers = 0 if found[1] == "rendezvous" else float(found[2] or math.inf)
        return cls(buffers, waits, communicators, shapes_first)

    def lane(self, worker: int, peer: int, sends: bool) -> tuple[int, ...]:
        """Return the communicator of a worker's transfer."""
        if self.communicators == "worker":
            return (worker,)
        if self.communicators == "pair":
            return min(worker, peer), max(worker, peer)
        return (worker, peer) if sends else (peer, worker)

    def __str__(self) -> str:
        size = "" if math.isinf(self.buffers) else f":{self.buffers:g}"
        words = ["rendezvous" if self.buffers == 0 else f"eager{size}"]
        words += [] if self.waits else ["without waiting"]
        words += [f"a communicator a {self.communicators}"]
        words += ["shapes first"] if self.shapes_first else []
        return ", ".join(words)
