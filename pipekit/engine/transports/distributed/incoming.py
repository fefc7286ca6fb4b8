"""Which messages come from whom, in which order: torch.distributed has no names for them."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from pipekit.schedules import Message, Step, alike, distinct


def incoming(steps: Sequence[Sequence[Step]]) -> list[Mapping[int, Sequence[Message]]]:
    """Return, for each worker, the messages that each other one sends it, as they leave there.

    Args:
        steps: of all workers.
    """
    found: list[dict[int, list[Message]]] = [defaultdict(list) for _ in steps]
    for sender, own in enumerate(steps):
        for step in distinct(own):
            for message, receiver in step.sends:
                if receiver != sender:
                    found[receiver][sender].append(message)
    return [
        {sender: alike(steps[sender], messages) for sender, messages in each.items()}
        for each in found
    ]
