"""Max-min fairness twice over, the judge of shared links: by its definition, and step by step.

A flow uses some ports: ``uses[f][port]`` is what passes the port for each of the flow's bytes.
Rates are max-min fair if none can rise without another falling that is no higher, each counted by
its flow's weight (Bertsekas and Gallager, "Data Networks", section 6.5.2).
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

Uses = Sequence[Mapping[int, float]]


def by_programmes(
    uses: Uses, weights: Sequence[float], capacity: Mapping[int, float]
) -> list[float]:
    """Return the rates by linear programmes: raise the least, fix whoever cannot have more."""
    ports = sorted(capacity)
    load = np.array([[use.get(port, 0.0) for use in uses] for port in ports])
    room = [capacity[port] for port in ports]
    fixed: dict[int, float] = {}
    while len(fixed) < len(uses):
        free = [f for f in range(len(uses)) if f not in fixed]
        # One more variable, the level: every free flow has at least its weight times that.
        above = [[-float(f == g) for g in range(len(uses))] + [weights[f]] for f in free]
        bounds: list[tuple[float, float | None]] = [
            (fixed[f], fixed[f]) if f in fixed else (0, None) for f in range(len(uses))
        ]
        limits = np.vstack([np.hstack([load, np.zeros((len(ports), 1))]), above])
        rights = [*room, *[0.0] * len(free)]
        level = _most([0.0] * len(uses) + [1.0], limits, rights, [*bounds, (0, None)])
        for f in free:
            most = [*bounds]
            for g in free:
                most[g] = (weights[g] * level * (1 - 1e-9), None)
            best = _most([float(f == g) for g in range(len(uses))], load, room, most)
            if best <= weights[f] * level * (1 + 1e-6):
                fixed[f] = weights[f] * level
    return [fixed[f] for f in range(len(uses))]


def _most(
    objective: Sequence[float],
    load: NDArray[np.float64],
    room: Sequence[float],
    bounds: Sequence[tuple[float, float | None]],
) -> float:
    result = linprog([-one for one in objective], load, room, bounds=bounds)
    assert result.fun is not None
    return -float(result.fun)


def by_steps(uses: Uses, weights: Sequence[float], capacity: Mapping[int, float]) -> list[float]:
    """Return the same rates by pouring: all rise together until a port is full, then the others."""
    rates, rising = [0.0] * len(uses), set(range(len(uses)))
    while rising:
        levels = {}
        for port, room in capacity.items():
            slope = sum(weights[f] * uses[f].get(port, 0.0) for f in rising)
            taken = sum(rates[f] * use.get(port, 0.0) for f, use in enumerate(uses))
            taken -= sum(rates[f] * uses[f].get(port, 0.0) for f in rising)
            if slope:
                levels[port] = (room - taken) / slope
        level = min(levels.values())
        full = {port for port, one in levels.items() if one <= level * (1 + 1e-12)}
        for f in rising:
            rates[f] = weights[f] * level
        rising = {f for f in rising if not full & set(uses[f])}
    return rates


class Sent(NamedTuple):
    """Bytes that set out at a moment over some ports, behind all others of their connection."""

    start: float
    size: float
    uses: Mapping[int, float]
    connection: Hashable
    weight: float = 1.0


def ends(sent: Sequence[Sent], capacity: Mapping[int, float]) -> list[float]:
    """Return when each is through, all rates being found anew whenever one sets out or ends."""
    left = [float(one.size) for one in sent]
    found = [0.0] * len(sent)
    waiting = sorted(range(len(sent)), key=lambda f: sent[f].start)
    now = 0.0
    while waiting:
        active, connections = list[int](), set[Hashable]()
        for f in waiting:
            if sent[f].start <= now and sent[f].connection not in connections:
                active.append(f)
                connections.add(sent[f].connection)
        uses, weights = [sent[f].uses for f in active], [sent[f].weight for f in active]
        rates = by_steps(uses, weights, capacity)
        times = [now + left[f] / rate for f, rate in zip(active, rates, strict=True)]
        following = min([*times, *(sent[f].start for f in waiting if sent[f].start > now)])
        for f, rate, end in zip(active, rates, times, strict=True):
            left[f] -= rate * (following - now)
            if end <= following * (1 + 1e-12):
                found[f] = end
                waiting.remove(f)
        now = following
    return found
