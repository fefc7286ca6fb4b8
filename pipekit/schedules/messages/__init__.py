"""Messages between workers: frameworks' orders, channels' semantics, proofs that nothing hangs."""

from pipekit.schedules.messages.channel import MessageChannel as MessageChannel
from pipekit.schedules.messages.program import POLICIES as POLICIES
from pipekit.schedules.messages.program import MessageProgram as MessageProgram
from pipekit.schedules.messages.program import Transfer as Transfer
from pipekit.schedules.messages.program import TransferKind as TransferKind
from pipekit.schedules.messages.program import with_messages as with_messages
from pipekit.schedules.messages.torch_comms import read_torch_comms as read_torch_comms
from pipekit.schedules.messages.torch_comms import write_torch_comms as write_torch_comms
from pipekit.schedules.messages.verdict import MessageVerdict as MessageVerdict
from pipekit.schedules.messages.verdict import check_messages as check_messages
from pipekit.schedules.messages.verdict import repair as repair
