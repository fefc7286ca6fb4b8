"""Which messages come from whom, in which order: torch.distributed has no names for them."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from pipekit.schedules import Message, Steps


def incoming(steps: Sequence[Steps]) -> list[Mapping[int, Sequence[Message]]]:
    """Return, for each worker, the messages that each other one sends it, as they leave there.

    Args:
        steps: of all workers, each finite.
    """
    found: list[dict[int, list[Message]]] = [defaultdict(list) for _ in steps]
    for sender, own in enumerate(steps):
        for step in own.head:
            for message, receiver in step.sends:
                if receiver != sender:
                    found[receiver][sender].append(message)
    return list(found)
