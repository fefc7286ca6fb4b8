"""How flows share ports: max-min fairly, as TCP's connections do in the long run."""

from collections.abc import Iterable, Sequence
from typing import Protocol

PortUse = tuple[tuple[int, float], ...]
"""Ports by number, and what passes each of them for each byte of a flow."""


class User(Protocol):
    """What passes some ports with a weight: as many connections as count on its busiest."""

    @property
    def ports(self) -> PortUse: ...

    @property
    def weight(self) -> float: ...


def fair_rates(flows: Iterable[User], capacity: Sequence[float]) -> list[float]:
    """Return the bytes/s of each flow: no rate can rise without a lower one falling.

    All rise together, each by its weight.  When a port is full, those that pass it stay, and the
    others go on (Bertsekas and Gallager, "Data Networks", section 6.5.2).

    Args:
        flows: each with a port at least.
        capacity: bytes/s of every port, by number.
    """
    flows = list(flows)
    users: dict[int, list[int]] = {}
    load: dict[int, float] = {}  # what passes a port when all that still rise have their weight
    for number, flow in enumerate(flows):
        for port, share in flow.ports:
            users.setdefault(port, []).append(number)
            load[port] = load.get(port, 0.0) + flow.weight * share
    room = {port: capacity[port] for port in users}
    rising = {port: len(numbers) for port, numbers in users.items()}
    rates = [-1.0] * len(flows)
    level = 0.0
    while rising:
        tight = min(rising, key=lambda port: room[port] / load[port])
        level = max(level, room[tight] / load[tight])  # else rounding could lower it
        for number in users[tight]:
            if rates[number] >= 0:
                continue
            flow = flows[number]
            rates[number] = flow.weight * level
            for port, share in flow.ports:
                room[port] -= rates[number] * share
                load[port] -= flow.weight * share
                rising[port] -= 1
                if not rising[port]:
                    del rising[port]
    return rates
