"""Where a profile may be cut, and how cuts become stages of consecutive layers."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import inf
from typing import NamedTuple

from pipekit.planning.bottleneck import NestedStage
from pipekit.planning.graph_tables import graph_tables
from pipekit.planning.layer_ranges import LayerRanges, chain_tables
from pipekit.planning.objectives import Bytes
from pipekit.planning.states import States, TooManyStates
from pipekit.profiling import Profile
from pipekit.schedules import optimal_in_flight


class Settled(NamedTuple):
    """A nested plan whose cuts are places in one order of the layers.

    Attributes:
        nodes: with ``first`` and ``stop`` counted in that order.
        order: the layers' numbers in the profile; empty if they run in the order of these.
        ranges: costs of the layers in that order.
        memory: bytes of the same.
    """

    nodes: tuple[NestedStage, ...]
    order: tuple[int, ...]
    ranges: LayerRanges
    memory: Bytes


class SearchSpace:
    """The cuts of a profile: between the layers of a chain, or the states of a graph.

    Attributes:
        ranges: costs of the layers between two cuts.
        memory: bytes of the same.
        remark: what a reader of the plan should know of the cuts; else empty.
    """

    def __init__(self, profile: Profile, optimizer_states: float) -> None:
        self._profile, self._optimizer_states = profile, optimizer_states
        self._states, self.remark = None, ""
        if profile.values and not _is_chain(profile):
            try:
                self._states = States(profile)
            except TooManyStates as error:
                self.remark = f" Only cuts in the order of the layers were looked at: {error}."
        if self._states is None:
            self._tables = chain_tables(profile)
        else:
            self._tables = graph_tables(profile, self._states)
        self.ranges = LayerRanges(self._tables)
        self.memory = Bytes(self.ranges, optimizer_states)

    def settle(self, nodes: Sequence[NestedStage], limit: float) -> Settled:
        """Return a nested plan with its layers in one order.

        Within a stage they run in the profile's order, unless only another fits the memory.
        """
        if self._states is None:
            return Settled(tuple(nodes), (), self.ranges, self.memory)
        leaves = list(_leaves(nodes))
        runs = [self._states.layers_between(leaf.first, leaf.stop) for leaf in leaves]
        if limit < inf:
            self._fit(runs, leaves, limit)
        order, ranges = self._in_order(_joined(runs))
        return Settled(self._counted(nodes), order, ranges, Bytes(ranges, self._optimizer_states))

    def _fit(self, runs: list[list[int]], leaves: Sequence[NestedStage], limit: float) -> None:
        """Reorder the layers of the stages that need more than so many bytes of a worker."""
        assert self._states is not None
        _, ranges = self._in_order(_joined(runs))
        memory = Bytes(ranges, self._optimizer_states)
        first = 0
        counts = optimal_in_flight([leaf.members for leaf in leaves])
        for number, (leaf, in_flight) in enumerate(zip(leaves, counts, strict=True)):
            stop = first + len(runs[number])
            if memory.of(first, stop, in_flight) > limit:
                runs[number] = self._states.layers_between(
                    leaf.first, leaf.stop, self._tables.pairs().lead
                )
            first = stop

    def _in_order(self, order: tuple[int, ...]) -> tuple[tuple[int, ...], LayerRanges]:
        """Return an order, empty if it is the profile's, and the costs of the layers in it."""
        if order == tuple(range(len(order))):
            order = ()
        return order, LayerRanges(self._profile.in_order(order))

    def _counted(self, nodes: Sequence[NestedStage]) -> tuple[NestedStage, ...]:
        """Return nodes that name a state by how many layers it holds."""
        assert self._states is not None
        sizes = self._states.members.sum(axis=1)
        return tuple(
            NestedStage(int(sizes[first]), int(sizes[stop]), members, self._counted(inside))
            for first, stop, members, inside in nodes
        )


def _is_chain(profile: Profile) -> bool:
    """Return whether each layer reads what the one before it makes, so that no order is another."""
    edges = {(value.source, user) for value in profile.values for user in value.users}
    return all(edge in edges for edge in pairwise(range(len(profile))))


def _leaves(nodes: Sequence[NestedStage], groups: int = 1) -> Iterator[NestedStage]:
    """Yield the stages of a nested plan, each with its number of workers."""
    for node in nodes:
        workers = node.members * groups
        if node.inside:
            yield from _leaves(node.inside, workers)
        else:
            yield node._replace(members=workers)


def _joined(runs: Sequence[Sequence[int]]) -> tuple[int, ...]:
    return tuple(layer for run in runs for layer in run)
