"""Autograd's graph: the nodes from which tensors have come, and the leaves in it."""

from collections.abc import Iterable, Iterator
from itertools import chain

from torch import Tensor, nn
from torch.autograd.graph import Node


def nodes(tensors: Iterable[Tensor], ends: Iterable[Tensor] = ()) -> Iterator[Node]:
    """Yield every node from which one of the tensors comes, once each.

    Args:
        tensors: where it begins.
        ends: those from which it goes no further.
    """
    # Nodes are told apart by their Python objects, which live as long as somebody holds them.
    seen = dict.fromkeys(end.grad_fn for end in ends)
    left = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    while left:
        node = left.pop()
        if node in seen:
            continue
        seen[node] = None
        yield node
        left += [following for following, _ in node.next_functions if following is not None]


def weights_in_graph(
    tensors: Iterable[Tensor], ends: Iterable[Tensor] = ()
) -> Iterator[nn.Parameter]:
    """Yield the parameters that a backward from these tensors comes to, or that are among them."""
    roots = list(tensors)
    leaves = chain(roots, (getattr(node, "variable", None) for node in nodes(roots, ends)))
    return (leaf for leaf in leaves if isinstance(leaf, nn.Parameter) and leaf.requires_grad)
