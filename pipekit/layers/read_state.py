"""What a forward reads beside its input and its weights, kept for its recomputation.

A forward that edits a buffer (a step counter, a codebook, an estimate of a singular vector) or
draws from a generator of the module's own would otherwise read, when it is run again, what later
microbatches have left there.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from torch import Tensor, nn

from pipekit.host.user_frames import warn
from pipekit.layers.module_state import generators, generators_put_back, tensors_replaced

ReadAgain = Callable[[], AbstractContextManager[None]]
"""Lets a forward read once more what it has read, and leaves all as it finds it."""


class ReadState:
    """Buffers and generators of a stage, whose forwards are run again.

    ``edited`` names the buffers that a forward edits; None: perhaps all.
    """

    def __init__(self, module: nn.Module, edited: Collection[str] | None) -> None:
        self._places = [
            (each._buffers, name, edited is None or f"{path}.{name}".lstrip(".") in edited)
            for path, each in module.named_modules(remove_duplicate=False)
            for name in each._buffers
        ]
        self._generators = generators(module)

    def now(self) -> ReadAgain:
        """Keep it as the next forward reads it: copies of what it edits, versions of all else."""
        copies: dict[int, Tensor] = {}  # layers may share a buffer
        read: list[tuple[Tensor | None, int]] = []
        for owned, name, edited in self._places:
            tensor = owned[name]
            if edited and tensor is not None:
                tensor = copies.setdefault(id(tensor), tensor.clone())
            read.append((tensor, _version(tensor)))
        return partial(self._again, read, [each.get_state() for each in self._generators])

    @contextmanager
    def _again(
        self, all_read: Sequence[tuple[Tensor | None, int]], states: Sequence[Tensor]
    ) -> Iterator[None]:
        copies: dict[int, Tensor] = {}
        given: list[tuple[dict[str, Tensor | None], str, Tensor | None]] = []
        for (owned, name, edited), (read, version) in zip(self._places, all_read, strict=True):
            if read is not None and not edited:
                if owned[name] is not read or _version(owned[name]) != version:
                    warn(
                        f"a forward is run again with a buffer {name!r} that later forwards have "
                        f"edited, and the first batch had not, so that its gradients are of "
                        f"another forward: train with recompute='never' (of a PipelinedModule, "
                        f"checkpoint='never')"
                    )
                read = copies.setdefault(id(read), read.clone())
            given.append((owned, name, read))
        with tensors_replaced(given), generators_put_back(self._generators):
            for each, state in zip(self._generators, states, strict=True):
                each.set_state(state)
            yield


def _version(tensor: Tensor | None) -> int:
    """Return a number that grows with each edit."""
    return 0 if tensor is None or tensor.is_inference() else tensor._version
