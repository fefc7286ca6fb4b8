"""Where a profile may be cut, and how cuts become stages of consecutive layers."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import inf
from typing import NamedTuple

from pipekit.planning.bottleneck import NestedStage
from pipekit.planning.layer_ranges import LayerRanges
from pipekit.planning.objectives import Bytes
from pipekit.planning.states import StateRanges, States, TooManyStates
from pipekit.profiling import Profile
from pipekit.schedules import optimal_in_flight


class Settled(NamedTuple):
    """A nested plan whose cuts are places in one order; empty: the order of the layers' numbers."""

    nodes: tuple[NestedStage, ...]
    order: tuple[int, ...]
    ranges: LayerRanges
    memory: Bytes


class SearchSpace:
    """The cuts of a profile: between the layers of a chain, or the states of a graph.

    ``remark`` is what a reader of the plan should know of the cuts.
    """

    def __init__(self, profile: Profile, optimizer_states: float) -> None:
        self._profile, self._optimizer_states = profile, optimizer_states
        self._states, self.remark = None, ""
        edges = {(value.source, user) for value in profile.values for user in value.users}
        if profile.values and not edges >= set(pairwise(range(len(profile)))):
            try:
                self._states = States(profile)
            except TooManyStates as error:
                self.remark = f" Only cuts in the order of the layers were looked at: {error}."
        states = self._states
        self.ranges = LayerRanges(profile) if states is None else StateRanges(profile, states)
        self.memory = Bytes(self.ranges, optimizer_states)

    def settle(self, nodes: Sequence[NestedStage], limit: float) -> Settled:
        """Return a nested plan with its layers in one order.

        Within a stage they run in the profile's order, unless only another fits the memory.
        """
        if (states := self._states) is None:
            return Settled(tuple(nodes), (), self.ranges, self.memory)
        leaves = list(_leaves(nodes))
        runs = [states.layers_between(leaf.first, leaf.stop) for leaf in leaves]
        settled = self._in_order(nodes, runs)
        if limit == inf:
            return settled
        counts, first = optimal_in_flight([leaf.members for leaf in leaves]), 0
        for number, (leaf, in_flight) in enumerate(zip(leaves, counts, strict=True)):
            stop = first + len(runs[number])
            if settled.memory.of(first, stop, in_flight) > limit:
                lean = self.ranges.pairs.lead
                runs[number] = states.layers_between(leaf.first, leaf.stop, lean)
            first = stop
        return self._in_order(nodes, runs)

    def _in_order(self, nodes: Sequence[NestedStage], runs: Sequence[Sequence[int]]) -> Settled:
        order = tuple(layer for run in runs for layer in run)
        if order == tuple(range(len(order))):
            order = ()
        ranges = LayerRanges(self._profile.in_order(order))
        return Settled(self._counted(nodes), order, ranges, Bytes(ranges, self._optimizer_states))

    def _counted(self, nodes: Sequence[NestedStage]) -> tuple[NestedStage, ...]:
        """Return nodes that name a state by how many layers it holds."""
        assert self._states is not None
        sizes = self._states.members.sum(axis=1)
        return tuple(
            NestedStage(int(sizes[first]), int(sizes[stop]), members, self._counted(inside))
            for first, stop, members, inside in nodes
        )


def _leaves(nodes: Sequence[NestedStage], groups: int = 1) -> Iterator[NestedStage]:
    """Yield the stages of a nested plan, each with its number of workers."""
    for node in nodes:
        workers = node.members * groups
        if node.inside:
            yield from _leaves(node.inside, workers)
        else:
            yield node._replace(members=workers)
