"""What a forward reads beside its input and its weights, kept for its recomputation.

A forward that edits a buffer (a step counter, a codebook, an estimate of a singular vector) or
draws from a generator of the module's own would otherwise read, when it is run again, what later
microbatches have left there.
"""

import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from pipekit.layers.module_state import generators, generators_put_back


class ReadState:
    """Buffers and generators of a stage, whose forwards are run again.

    ``edited`` names the buffers that a forward edits; None: perhaps all.
    """

    def __init__(self, module: nn.Module, edited: Collection[str] | None) -> None:
        self._buffers = [
            (each._buffers, name, edited is None or f"{path}.{name}".lstrip(".") in edited)
            for path, each in module.named_modules(remove_duplicate=False)
            for name in each._buffers
        ]
        self._generators = generators(module)

    def now(self) -> "ReadNow":
        """Keep it as the next forward is to read it."""
        return ReadNow(self._buffers, self._generators)


_Buffers = list[tuple[dict[str, Tensor | None], str, bool]]


class ReadNow:
    """The same as one forward reads it: copies of what it edits, versions of all else."""

    def __init__(self, buffers: _Buffers, drawn: list[torch.Generator]) -> None:
        self._buffers = buffers
        copies: dict[int, Tensor] = {}  # layers may share a buffer
        self._read: list[tuple[Tensor | None, int]] = []
        for owned, name, edited in buffers:
            tensor = owned[name]
            if edited and tensor is not None:
                tensor = copies.setdefault(id(tensor), tensor.clone())
            self._read.append((tensor, _version(tensor)))
        self._states = [(each, each.get_state()) for each in drawn]

    @contextmanager
    def again(self) -> Iterator[None]:
        """Let a forward read it once more, and leave all as it finds it."""
        before = [owned[name] for owned, name, _ in self._buffers]
        copies: dict[int, Tensor] = {}
        for (owned, name, edited), now, (read, version) in zip(
            self._buffers, before, self._read, strict=True
        ):
            if read is not None and not edited:
                if now is not read or _version(now) != version:
                    self._warn(name)
                read = copies.setdefault(id(read), read.clone())
            owned[name] = read
        try:
            with generators_put_back(each for each, _ in self._states):
                for each, state in self._states:
                    each.set_state(state)
                yield
        finally:
            for (owned, name, _), tensor in zip(self._buffers, before, strict=True):
                owned[name] = tensor

    def _warn(self, name: str) -> None:
        warnings.warn(
            f"a forward is run again with a buffer {name!r} that later forwards have edited, and "
            f"the first batch had not, so that its gradients are of another forward: train with "
            f"recompute='never' (of a PipelinedModule, checkpoint='never')",
            stacklevel=2,
        )


def _version(tensor: Tensor | None) -> int:
    """Return a number that grows with each edit."""
    return 0 if tensor is None or tensor.is_inference() else tensor._version
