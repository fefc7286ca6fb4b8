"""The only package that talks to accelerators.

It does so through PyTorch's interface for all kinds of them: ``torch.accelerator``,
``torch.Stream``, ``torch.Event``, ``torch.get_device_module``.
"""

from pipekit.devices.random_states import RandomState as RandomState
from pipekit.devices.random_states import new_generators as new_generators
from pipekit.devices.random_states import random_states as random_states
from pipekit.devices.random_states import random_states_put_back as random_states_put_back
from pipekit.devices.streams import Clock as Clock
from pipekit.devices.streams import Copier as Copier
from pipekit.devices.streams import Event as Event
from pipekit.devices.streams import HostNumber as HostNumber
from pipekit.devices.streams import Mover as Mover
from pipekit.devices.streams import ThreadStreams as ThreadStreams
from pipekit.devices.streams import as_current as as_current
from pipekit.devices.streams import current_stream as current_stream
from pipekit.devices.streams import is_accelerator as is_accelerator
from pipekit.devices.streams import keep_for_current_stream as keep_for_current_stream
from pipekit.devices.streams import moved as moved
from pipekit.devices.streams import new_stream as new_stream
from pipekit.devices.streams import on_stream as on_stream
from pipekit.devices.streams import record_event as record_event
from pipekit.devices.streams import record_events as record_events
from pipekit.devices.streams import synchronize as synchronize
from pipekit.devices.streams import to_device as to_device
from pipekit.devices.streams import unix_ns as unix_ns
from pipekit.devices.streams import wait_event as wait_event
from pipekit.devices.streams import wait_events as wait_events
from pipekit.devices.which import CPU as CPU
from pipekit.devices.which import accelerators as accelerators
from pipekit.devices.which import device_count as device_count
from pipekit.devices.which import memory_bytes as memory_bytes
from pipekit.devices.which import name_of as name_of
from pipekit.devices.which import process_group as process_group
from pipekit.devices.which import require_one_each as require_one_each
from pipekit.devices.which import resolve as resolve
from pipekit.devices.which import resolve_for_workers as resolve_for_workers
from pipekit.devices.which import set_device as set_device
from pipekit.devices.which import stay_on_cpu as stay_on_cpu
