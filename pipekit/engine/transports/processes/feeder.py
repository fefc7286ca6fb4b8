"""Batches on their way to worker processes, read in the process that started these.

They travel like messages between workers.  Who takes inputs tells the feeder which batch it has
come to, so that a few lie ready and no more are read.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count

import torch

from pipekit.engine.batches import Batch, Plain, parted
from pipekit.engine.feed import End, Needs
from pipekit.engine.transports.mailbox import BATCH, END, Key, KeyedMailbox
from pipekit.engine.transports.processes.pickling import said_if_refused
from pipekit.engine.transports.processes.shared_mailbox import SharedMailboxes
from pipekit.host.unpickling import loads
from pipekit.trees import Tree

READ_AHEAD = 2  # batches


def send_batches(
    batches: Iterable[Batch | End],
    needs: Mapping[int, Needs],
    mailboxes: SharedMailboxes,
    end: Callable[[int], None],
    run: int,
) -> None:
    """Send every batch to the workers of ``needs``, as they come to it; ``end`` an early end."""
    allowed, first = READ_AHEAD, 0
    for number, batch in enumerate(batches):
        if isinstance(batch, End):
            end(first)
            return
        while number > allowed:
            (kind, *_, begun), _ = mailboxes.get()
            if kind == END:  # a worker has failed
                return
            allowed = max(allowed, begun + READ_AHEAD)
        here = range(first, first + len(batch.sizes))
        for worker, needed in needs.items():
            inputs, targets = (any(k in numbers for k in here) for numbers in needed)
            mailboxes.put(worker, _batch_key(first, run), _message(batch, inputs, targets))
        first = here.stop


def received_batches(mailbox: KeyedMailbox, feeder: int | None, run: int) -> Iterator[Batch]:
    """Yield the batches that arrive in a worker's mailbox."""
    first = 0
    for number in count():
        if feeder is not None:
            mailbox.put(feeder, (BATCH, 0, 0, number), ())
        message = mailbox.wait(_batch_key(first, run), first)
        about: tuple[Batch, Plain | None] = loads(message["about"].numpy())
        batch, plain = about
        target = message.get("target")
        if plain and target is not None:
            target = plain.joined(target)
        yield batch._replace(input=message.get("input"), target=target)
        first += len(batch.sizes)


def _batch_key(first: int, run: int) -> Key:
    # With the run: not every batch is taken, if the last ones are another worker's of the stage.
    return BATCH, 0, run, first


def _message(batch: Batch, inputs: bool, targets: bool) -> dict[str, Tree]:
    """Return what a worker gets of a batch, of which it takes inputs or targets: all rows.

    Cut here, a microbatch would lie elsewhere in memory than in a thread's batch, and sums on a CPU
    depend on how their numbers are aligned.
    """
    tensors, plain = parted(batch.target)
    with said_if_refused():
        about = pickle.dumps((batch._replace(input=None, target=None), plain))
    message: dict[str, Tree] = {"about": torch.frombuffer(bytearray(about), dtype=torch.uint8)}
    if inputs:
        message["input"] = batch.input
    if targets:
        message["target"] = tensors
    return message
