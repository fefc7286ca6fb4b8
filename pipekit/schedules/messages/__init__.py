"""Messages between workers: frameworks' orders, channels' semantics, proofs that nothing hangs."""

from pipekit.schedules.messages.channel import MessageChannel
from pipekit.schedules.messages.program import (
    POLICIES,
    MessageProgram,
    Transfer,
    TransferKind,
    with_messages,
)
from pipekit.schedules.messages.torch_comms import read as read_torch_comms
from pipekit.schedules.messages.torch_comms import write as write_torch_comms
from pipekit.schedules.messages.verdict import MessageVerdict, check_messages, repair

__all__ = [
    "POLICIES",
    "MessageChannel",
    "MessageProgram",
    "MessageVerdict",
    "Transfer",
    "TransferKind",
    "check_messages",
    "read_torch_comms",
    "repair",
    "with_messages",
    "write_torch_comms",
]
