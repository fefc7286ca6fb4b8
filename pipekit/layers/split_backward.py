"""A backward in two parts: first the gradients of a stage's input, later those of its weights.

Another stage waits for the first part, and only the update for the second (Qi et al., "Zero Bubble
Pipeline Parallelism", ICLR 2024).  The first part runs autograd's graph for the input alone, and
keeps what comes to each node from which a weight branches off.  The second part starts from these
nodes, one after the other, so that no gradient of an activation is computed twice.

Gradients are the same to the bit as those of a whole backward, since the same nodes compute them
from the same numbers.  That holds if each weight branches off at one node only and if no tensor
within the layers has a gradient hook, which would be called twice.  So the first split backward of
a stage is compared with a whole one, and if they differ, as well as for weights that are used
several times, the second part runs the whole graph once more.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

Gradients = tuple[Tensor | None, ...]


class _Branch(NamedTuple):
    """A node from which weights branch off."""

    edges: list[GradientEdge]  # the node's outputs that gradients came to
    arrived: list[Tensor]  # these gradients
    weights: list[Tensor]


class WeightBackward:
    """The second part of a backward, which adds to the gradients of the weights."""

    def __init__(
        self,
        roots: Sequence[Tensor],
        seeds: Sequence[Tensor] | None,
        weights: Sequence[Tensor] | None = None,
        branches: Sequence[_Branch] | None = None,
    ) -> None:
        self._roots, self._seeds = roots, seeds
        self._weights, self._branches = weights, branches

    def is_exact(self) -> bool:
        """Return whether the branches give the same gradients as the whole graph, to the bit."""
        if self._branches is None or not self._weights:
            return True
        whole = torch.autograd.grad(
            self._roots, self._weights, self._seeds, retain_graph=True, allow_unused=True
        )
        found: list[Tensor | None] = []  # as the weights, branch by branch
        for branch in self._branches:
            found += torch.autograd.grad(
                branch.edges, branch.weights, branch.arrived, retain_graph=True, allow_unused=True
            )
        return all(map(_equal, found, whole))

    def run(self, by_branches: bool) -> None:
        if by_branches and self._branches is not None:
            for branch in self._branches:
                torch.autograd.backward(branch.edges, branch.arrived, inputs=branch.weights)
        elif self._weights is None or self._weights:
            torch.autograd.backward(self._roots, self._seeds, inputs=self._weights)


def backward_input(
    roots: Sequence[Tensor], seeds: Sequence[Tensor] | None, inputs: Sequence[Tensor]
) -> WeightBackward:
    """Run the part of a backward that gives the gradients of the inputs; return the other part."""
    ends = [get_gradient_edge(root) for root in roots]
    graph = _Graph([end.node for end in ends], [get_gradient_edge(x).node for x in inputs])
    if not any(end.node in graph.leading for end in ends):
        return WeightBackward(roots, seeds)
    seen: dict[Node, Gradients] = {}
    hooks = [
        node.register_prehook(lambda arrived, n=node: seen.update({n: arrived}))
        for node in graph.branching()
    ]
    torch.autograd.backward(roots, seeds, retain_graph=True, inputs=inputs)
    for hook in hooks:
        hook.remove()
    branches = []
    for node, gradients in seen.items():
        arrived = {GradientEdge(node, n): g for n, g in enumerate(gradients) if g is not None}
        branches.append(_Branch([*arrived], [*arrived.values()], graph.weights_off(node)))
    for place, end in enumerate(ends):
        if end.node not in graph.leading:  # the inputs have no part in it
            seed = torch.ones_like(roots[place]) if seeds is None else seeds[place]
            branches.append(_Branch([end], [seed], graph.weights_off(end.node)))
    reached = [weight for branch in branches for weight in branch.weights]
    if len(set(reached)) < len(reached):
        # By branches, the gradients of a weight that is used twice would be added up in parts.
        return WeightBackward(roots, seeds, list(dict.fromkeys(reached)))
    return WeightBackward(roots, seeds, reached, branches)


class _Graph:
    """What autograd does from some roots on, and which of its nodes are ``leading`` to inputs."""

    def __init__(self, roots: Iterable[Node], inputs: Sequence[Node]) -> None:
        # Nodes are told apart by their Python objects, which live as long as somebody holds them.
        self._next: dict[Node, list[Node]] = {node: [] for node in inputs}
        before = defaultdict[Node, list[Node]](list)
        left = list(roots)
        while left:
            node = left.pop()
            if node not in self._next:
                self._next[node] = [n for n, _ in node.next_functions if n is not None]
                left += self._next[node]
                for other in self._next[node]:
                    before[other].append(node)
        self.leading = set[Node]()
        left = list(inputs)
        while left:
            node = left.pop()
            if node not in self.leading:
                self.leading.add(node)
                left += before[node]

    def branching(self) -> list[Node]:
        """Return the nodes on the way to an input from which others branch off."""
        return [node for node in self.leading if not self.leading.issuperset(self._next[node])]

    def weights_off(self, node: Node) -> list[Tensor]:
        """Return the weights to which a node leads, but for those on the way to an input."""
        weights, seen, left = list[Tensor](), set[Node](), [node]
        while left:
            node = left.pop()
            if node not in seen:
                seen.add(node)
                weights += [node.variable] if hasattr(node, "variable") else []
                left += [other for other in self._next[node] if other not in self.leading]
        return weights


def _equal(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return torch.equal(a, b) and a.stride() == b.stride()
