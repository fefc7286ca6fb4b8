"""Groups of processes in torch.distributed, and how those of a group sum gradients."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch.distributed as dist
from torch import Tensor

from pipekit.devices import is_accelerator
from pipekit.engine.transport import Aborted, FlatBucket, SumPart


@contextmanager
def abort_if_broken() -> Iterator[None]:
    """Turn an error of the network, which means that a peer is gone, into Aborted."""
    try:
        yield
    except RuntimeError as error:
        raise Aborted(str(error)) from error


def wait_for(works: Iterable[Any]) -> None:
    """Wait for sends or receives that were begun; raises Aborted if a peer is gone."""
    with abort_if_broken():
        for work in works:
            work.wait()


@cache
def group_of(world: object, members: tuple[int, ...], purpose: object) -> Any:
    """Return the process group of some workers for one purpose; the same in every run.

    All processes ask for all groups of a run in one order, as PyTorch wants it.
    """
    return dist.new_group(list(members))


class GroupChannel:
    """A channel within a process group: two workers send and receive in one order, unnamed."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self._sending: list[tuple[Any, Tensor]] = []

    def exchange(
        self, sends: Sequence[SumPart], receives: Sequence[SumPart], microbatch: int = -1
    ) -> list[FlatBucket]:
        # Receives come first: on the host, a link that waits for them is busy in one direction
        # only.  What lies on an accelerator goes as one: whatever shares a communicator of NCCL's
        # runs in order, so that these receives would hold up the sends that others wait for.
        calls: list[tuple[Any, SumPart]] = [(dist.irecv, part) for part in receives]
        calls += [(dist.isend, part) for part in sends]
        coming, together = [], []
        with abort_if_broken():
            for call, part in calls:
                for tensor in part.content:
                    if is_accelerator(tensor.device):
                        together.append(dist.P2POp(call, tensor, part.worker, self._group))
                    elif call == dist.irecv:
                        coming.append(call(tensor, part.worker, group=self._group))
                    else:
                        work = call(tensor, part.worker, group=self._group)
                        self._sending.append((work, tensor))
            if together:
                coming += dist.batch_isend_irecv(together)
        wait_for(coming)
        return [part.content for part in receives]

    def finish(self, stage: int, number: int, size: int) -> None:
        wait_for([work for work, _ in self._sending])
        self._sending.clear()
