"""The recurrence of the optimizer that PipeDream's authors released, as slow as theirs.

A second opinion on pipekit's planner, of which it knows nothing.  It is written from PipeDream,
section 3.2, and from how ``optimizer_graph_hierarchical.py`` and ``graph.py`` of
msr-fiddle/pipedream (11c40c0) behave, loop for loop; none of their code is here.

As there:

- A state is a set of layers closed under predecessors that holds the graph's first source.
- A stage of m machines takes (compute + 4 (m - 1) |w| / (m bandwidth)) / m; all machines are used.
- Transfers are left out unless asked for.  If they count, a stage that others precede takes at
  least 2 C / (m bandwidth) for its input and, unless it ends the model, for its output.
- What crosses a cut: the outputs of the state's last layers, and of their predecessors that some
  layer reads which does not come before that last layer.
- A level's members compute as long as the best of the level below on all its machines.

Not as there, where theirs has slips of its own: layers between two states that are not one within
the other (theirs subtracts their times all the same), and the synchronisation of a stage that a
level does not split (theirs divides it by the machines of the level below).  Its memory limit,
which knows no gradients, is left out.
"""

from collections.abc import Sequence
from math import inf

from pipekit.profiling import Profile

Times = list[list[float]]
"""Seconds of the layers behind one state up to another; row 0 starts before all layers."""


class ReleasedOptimizer:
    """One graph's states, and the recurrence on them."""

    def __init__(self, profile: Profile) -> None:
        layers = range(len(profile))
        self._users: list[set[int]] = [set() for _ in layers]
        self._sizes = [0.0] * len(profile)
        for value in profile.values:
            if value.source is not None:
                self._users[value.source].update(value.users)
                self._sizes[value.source] += value.bytes
        self._before: list[set[int]] = [set() for _ in layers]
        for layer in layers:
            for user in self._users[layer]:
                self._before[user] |= {layer} | self._before[layer]
        self._states = self._closed_sets()
        compute = [layer.forward_s + layer.backward_s for layer in profile.layers]
        self._compute = [sum(compute[k] for k in state) for state in self._states]
        self._parameters = [
            sum(profile.layers[k].parameter_bytes for k in state) for state in self._states
        ]
        self._crossing = [self._output(state) for state in self._states]
        self._within = [
            [k for k, other in enumerate(self._states) if other < state] for state in self._states
        ]

    def seconds(
        self, machines: Sequence[int], bandwidths: Sequence[float], count_transfers: bool = False
    ) -> float:
        """Return seconds a minibatch of the best plan on all machines."""
        times = self._differences(self._compute)
        for level, (count, bandwidth) in enumerate(zip(machines, bandwidths, strict=True)):
            last = level == len(machines) - 1
            times = self._level(times, count, bandwidth, count_transfers, last)
        return times[0][-1]

    def _level(
        self, times: Times, machines: int, bandwidth: float, count_transfers: bool, last: bool
    ) -> Times:
        """Return the seconds of the best plan on exactly so many machines, between all states."""
        states = len(self._states)
        weights = self._differences(self._parameters)
        best: list[Times] = []  # [start][stop][machines - 1]
        for start in range(states + 1):  # of the last level, too, which needs the first alone
            best.append([])
            for stop in range(states):
                best[start].append(
                    [
                        (times[start][stop] + 4 * m * weights[start][stop] / (bandwidth * (m + 1)))
                        / (m + 1)
                        for m in range(machines)
                    ]
                )
        for start in range(1 if last else states):
            for m in range(1, machines):
                for stop in range(start, states):
                    least = best[start][stop][m]
                    for k in self._within[stop]:
                        if start and start - 1 not in self._within[k]:
                            continue
                        for own in range(1, m + 1):
                            stage = times[k + 1][stop]
                            stage += 4 * (own - 1) * weights[k + 1][stop] / (bandwidth * own)
                            together = max(best[start][k][m - own], stage / own)
                            if count_transfers:
                                together = max(together, 2 * self._crossing[k] / (bandwidth * own))
                                if stop < states - 1:
                                    together = max(
                                        together, 2 * self._crossing[stop] / (bandwidth * own)
                                    )
                            least = min(least, together)
                    best[start][stop][m] = least
        return [[stops[machines - 1] for stops in row] for row in best]

    def _differences(self, totals: Sequence[float]) -> Times:
        """Return what lies between two states; infinite seconds if one does not hold the other."""
        rows = [list(totals)]
        for start, before in enumerate(totals):
            rows.append(
                [
                    total - before if start in self._within[stop] else inf
                    for stop, total in enumerate(totals)
                ]
            )
        return rows

    def _closed_sets(self) -> list[frozenset[int]]:
        """Return the states, small ones first."""
        first = frozenset({next(k for k, before in enumerate(self._before) if not before)})
        found, recent = {first}, [first]
        while recent:
            state = recent.pop()
            for layer, before in enumerate(self._before):
                grown = state | {layer}
                if before <= state and grown not in found:
                    found.add(grown)
                    recent.append(grown)
        return sorted(found, key=len)

    def _output(self, state: frozenset[int]) -> float:
        ends = [layer for layer in state if not self._users[layer] & state]
        sent = set(ends)
        for end in ends:
            sent |= {k for k in self._before[end] if self._users[k] - self._before[end] - {end}}
        return sum(self._sizes[layer] for layer in sent)
