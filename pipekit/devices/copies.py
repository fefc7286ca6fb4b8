"""Copies between the host and accelerators, for which no thread stops."""

import torch
from torch import Tensor

from pipekit.devices.streams import Event, current_stream, keep_for_current_stream, record_event
from pipekit.devices.which import is_accelerator
from pipekit.trees import Tree, tree_map


def to_device(tree: Tree, device: torch.device) -> Tree:
    """Return a structure of tensors on an accelerator; for a CPU the structure itself."""
    if not is_accelerator(device):
        return tree
    return tree_map(lambda t: keep_for_current_stream(t).to(device, non_blocking=True), tree)


def moved(tree: Tree, device: torch.device) -> Tree:
    """Return a structure of which what lies on an accelerator lies on this one.

    What lies on the host (lengths, say) stays there.
    """
    return tree_map(lambda t: to_device(t, device) if is_accelerator(t.device) else t, tree)


class HostNumber:
    """A number on its way from an accelerator to the host."""

    def __init__(self, number: Tensor) -> None:
        # Into memory of its own that the device can write while the host goes on.
        self._number = number.detach().to("cpu", non_blocking=True)
        self._copied: Event = record_event(number.device)

    @property
    def is_here(self) -> bool:
        """Whether it has arrived."""
        return self._copied is None or self._copied.query()

    def item(self) -> float:
        """Return the number, once it has arrived."""
        if self._copied is not None:
            self._copied.synchronize()
        return float(self._number.item())


class Copier:
    """Copies what a worker has computed on an accelerator to those of other workers.

    Attributes:
        device: the worker's.
    """

    def __init__(self, device: torch.device, beside: bool = True) -> None:
        self.device = device
        self._leaving = torch.Stream(device) if beside else None
        self._arriving: dict[torch.device, torch.Stream] = {}

    def copy(self, tree: Tree, target: torch.device) -> tuple[Tree, torch.Event]:
        """Start a copy of a structure of tensors; return it, and the event that ends it.

        Tensors that lie on the host (lengths, say) stay there.
        """
        compute = current_stream(self.device)
        if target == self.device:
            return tree, compute.record_event()
        leaving = self._leaving or compute
        leaving.wait_stream(compute)
        # PyTorch has the copy wait for the target's current stream too, and the other way round:
        # that of the target's default stream would hold up whatever computes there.
        if target not in self._arriving:
            self._arriving[target] = torch.Stream(target)
        with self._arriving[target], leaving:
            copied = moved(tree, target)
            ready = leaving.record_event()
        return copied, ready
