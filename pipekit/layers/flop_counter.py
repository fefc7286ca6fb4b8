"""Floating-point operations, counted as PyTorch counts them."""

from contextlib import nullcontext
from typing import Any, cast

from torch.utils.flop_counter import FlopCounterMode
from torch.utils.module_tracker import ModuleTracker


class FlopCounter(FlopCounterMode):
    """Counts operations, of no module apart: torch's tracker of modules fails on a layer's grad.

    It watches a module's inputs by hooks, with which ``torch.autograd.grad`` of them cannot go.
    """

    def __init__(self, custom_mapping: dict[Any, Any] | None = None) -> None:
        super().__init__(display=False, custom_mapping=custom_mapping)
        self.mod_tracker = cast(ModuleTracker, _NoModules())


class _NoModules(nullcontext[None]):
    parents = frozenset({"Global"})

    def __exit__(self, *error: object) -> None: ...
